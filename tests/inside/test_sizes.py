"""Pages stay small enough to send: the whole page, all panels, with what a real text makes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headway.inside.capture.reading import GenerationOptions
from headway.inside.page.look import look
from headway.web.pack import unpack

from ..interop.padded_runs import WORDS, tiny_run

SMALL, LARGE = 400_000, 1_500_000


@pytest.mark.parametrize("name", ["tatoeba-de-en", pytest.param("stories", marks=pytest.mark.slow)])
def test_the_page_of_a_small_model_is_under_400_kb(name: str) -> None:
    page = look(name, "Ein Mann." if name != "stories" else "Once upon a time")
    assert len(page.html.encode()) <= SMALL


@pytest.mark.parametrize("task", ["classify", pytest.param("complete", marks=pytest.mark.slow)])
def test_twelve_layers_of_twelve_heads_over_128_tokens_fit_in_a_megabyte_and_a_half(
    task: str, tmp_path: Path
) -> None:
    """All panels. As JSON and lines of SVG the attention alone was 53 MB in another tool."""
    size = {"n_layers": 12, "n_heads": 12, "d_model": 96, "d_ff": 384, "max_len": 160}
    variant = "as-published" if task == "classify" else "pre-learned-all-biases"
    folder = tiny_run(tmp_path / "run", task, variant, **size)
    text = " ".join(random.Random(0).choices(WORDS, k=126))
    page = look(
        folder, text, **({} if task == "classify" else {"ask": GenerationOptions(max_new_tokens=1)})
    )
    kinds = unpack(page.html)["looks"][0]["sections"]["attention"]["kinds"]
    assert len(kinds[0]["layers"]) == 12
    assert kinds[0]["layers"][0].shape[0] == 12
    assert 126 <= kinds[0]["layers"][0].shape[1] <= 130
    assert len(page.html.encode()) <= LARGE
