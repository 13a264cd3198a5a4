"""Two looks side by side: what fits, what does not, and nothing where both are the same."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import UserError
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.streams import display_piece
from headway.inside.capture.trace import trace
from headway.inside.measure.checkpoints import stages
from headway.inside.page.compare import fits
from headway.inside.page.look import Page, look
from headway.tasks.loaded_run import open_plain
from headway.web.pack import unpack

from ..interop.padded_runs import tiny_run
from .browser import VALUES, open_page
from .browser import browser as browser
from .kept_runs import KEPT, kept_run

TEXT = "ba de fi ko ga mo"
OTHER = "ba de fi ko ga pu"
ASK = GenerationOptions(output="go ba de fi")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny", "translate", n_layers=2)


@pytest.fixture(scope="module")
def pair(translator: Path) -> Page:
    return look(translator, TEXT, ASK, against_text=OTHER)


def test_the_same_twice_fits_everywhere(translator: Path) -> None:
    one = trace(open_plain(translator), TEXT, ASK)
    assert fits(one, one) == {"encoder": None, "decoder": None, "cross": None, "outputs": None}


def test_reasons_name_both_sides(translator: Path, tmp_path: Path) -> None:
    one, longer = (
        trace(open_plain(translator), TEXT, ASK),
        trace(open_plain(translator), f"{TEXT} ko ko", ASK),
    )
    found = fits(one, longer)
    assert re.search("7 × 7.*9 × 9", found["encoder"])
    deeper = open_plain(tiny_run(tmp_path / "deeper", "translate", n_layers=3))
    found = fits(one, trace(deeper, TEXT, ASK))
    assert re.findall(r"\d+", found["encoder"]) == ["2", "4", "3", "4"]
    alone = open_plain(tiny_run(tmp_path / "lm", "complete"))
    found = fits(one, trace(alone, TEXT))
    assert "self" in found["self"]


def test_nothing_in_common_is_an_error(translator: Path, tmp_path: Path) -> None:
    other = tiny_run(tmp_path / "classes", "classify")
    with pytest.raises(UserError, match=r"(?=.*encoder)(?=.*decoder)(?=.*cross)(?=.*self)"):
        look(translator, TEXT, against=other)


def test_the_sides_are_the_outputs_of_each_model(pair: Page, translator: Path) -> None:
    shown = unpack(pair.html)["shared"]["compare"]
    run = open_plain(translator)
    for side, text in zip(shown["sides"], (TEXT, OTHER), strict=True):
        found = trace(run, text, ASK)
        assert found.scores_RC is not None
        logs_RC = found.scores_RC.log_softmax(-1)
        for row, (output, expected) in enumerate(
            zip(side["outputs"], found.reading.outputs, strict=True)
        ):
            assert output["id"] == expected.id
            assert math.isclose(output["log_prob"], float(logs_RC[row, expected.id]), rel_tol=1e-5)
            assert output["top"][0][1] == pytest.approx(float(logs_RC[row].max().exp()))


def test_identical_runs_differ_by_nothing(browser: Any, translator: Path, tmp_path: Path) -> None:
    page = open_page(browser, look(translator, TEXT, ASK, against=str(translator)).html, tmp_path)
    page.tab("compare")
    cells = page.locator("[data-card=compare-heads] [data-value]")
    assert cells.count() == 2 * 4 * 3  # layers, heads, kinds
    assert set(_values(cells)) == {0.0}
    assert page.get_attribute("[data-card=compare-map] .body", "data-most") == "0"
    assert page.get_attribute("[data-card=compare-lens] .body", "data-most") == "0"
    rows = page.locator("tbody[data-outputs] tr")
    assert rows.count() == len(trace(open_plain(translator), TEXT, ASK).reading.outputs)
    last = page.locator("tbody[data-outputs] tr td:nth-child(6)")
    assert set(_values(last)) == {0.0}
    assert page.locator("[data-misfit]").count() == 0
    page.close()


def test_differences_in_the_page_are_those_of_the_traces(
    browser: Any, pair: Page, translator: Path, tmp_path: Path
) -> None:
    one, other = (trace(open_plain(translator), text, ASK) for text in (TEXT, OTHER))
    page = open_page(browser, pair.html, tmp_path, state="tab=compare")
    for layer, (a_HTS, b_HTS) in enumerate(
        zip(one.attention["encoder"], other.attention["encoder"], strict=True)
    ):
        expected_H = (a_HTS - b_HTS).abs().mean((1, 2))
        cells = [
            page.get_attribute(f"[data-head='encoder.{layer}.{head}']", "data-value")
            for head in range(len(a_HTS))
        ]
        np.testing.assert_allclose(np.array(cells, float), expected_H, atol=1 / 255)
    assert max(_values(page.locator("[data-head^='encoder.']"))) > 0.001
    page.click("[data-head='encoder.1.3']")
    assert page.state() | {"kind": "encoder", "layer": "1", "head": "3"} == page.state()
    most = float(page.get_attribute("[data-card=compare-map] .body", "data-most"))
    expected = float(
        (one.attention["encoder"][1][3] - other.attention["encoder"][1][3]).abs().max()
    )
    assert most == pytest.approx(expected, abs=2 / 255)
    page.close()


def test_rows_are_what_is_written_and_layers_go_up(
    browser: Any, pair: Page, translator: Path, tmp_path: Path
) -> None:
    """As in the attention panel, for each side by its own output."""
    page = open_page(browser, pair.html, tmp_path, state="tab=compare&kind=cross")
    for side, text in (("a", TEXT), ("b", OTHER)):
        outputs = trace(open_plain(translator), text, ASK).reading.outputs
        canvas = page.locator(f"[data-map={side}] canvas")
        left, top = (float(canvas.get_attribute(f"data-{name}")) for name in ("left", "top"))
        canvas.hover(position={"x": left + 3, "y": top + 3})
        assert page.locator(".tip").inner_text().startswith(f"{display_piece(outputs[0].name)} → ")
    above, below = (page.locator(f"[data-head='cross.{n}.1']").bounding_box() for n in (1, 0))
    assert above["y"] < below["y"]
    assert page.locator(".headrow").first.inner_text().split() == ["1", "2", "3", "4"]
    page.close()


def test_texts_of_different_lengths_have_no_difference_map(
    browser: Any, translator: Path, tmp_path: Path
) -> None:
    shown = look(translator, TEXT, ASK, against_text="ba de")
    page = open_page(browser, shown.html, tmp_path, state="tab=compare&kind=encoder")
    printed = page.text_content("[data-misfit=encoder]")
    assert re.search("7 × 7.*3 × 3", printed)
    assert page.locator("[data-map=a] canvas").count() == 1
    assert page.locator("[data-map=b] canvas").count() == 1
    assert page.locator("[data-map=difference]").count() == 0
    page.close()


def test_the_slider_the_charts_and_the_other_checkpoint(browser: Any, tmp_path: Path) -> None:
    folder = kept_run(tmp_path / "kept")
    run = open_plain(folder)
    final = trace(run, TEXT, ASK)
    traces = [trace(stage.run, final.reading) for stage in stages(run)]

    def loss(number: int) -> float:
        scores_RC = traces[number].scores_RC
        assert scores_RC is not None
        chosen = torch.tensor([output.id for output in final.reading.outputs])
        return float(torch.nn.functional.cross_entropy(scores_RC, chosen))

    page = open_page(browser, look(folder, TEXT, ASK).html, tmp_path, state="tab=training")
    shown = page.locator("[data-now=loss] [data-value]")
    assert _values(shown) == [pytest.approx(loss(3), rel=1e-5)]  # it begins with the final weights
    assert KEPT in page.text_content("#panel")
    page.locator("input[type=range]").fill("1")
    assert page.state()["look"] == "1"
    assert _values(shown) == [pytest.approx(loss(1), rel=1e-5)]
    drawn = _values(page.locator("[data-figure=loss] svg circle"))
    assert drawn == [pytest.approx(loss(number), rel=1e-5) for number in range(3)]
    drawing = page.locator("[data-figure=loss] svg")
    box = drawing.bounding_box()
    page.mouse.click(box["x"] + 54, box["y"] + box["height"] / 2)  # at the left end
    assert page.state()["look"] == "0"
    assert _values(shown) == [pytest.approx(loss(0), rel=1e-5)]
    page.tab("compare")
    assert page.locator("#panel .empty").count() == 1
    page.locator("select[data-key=other]").select_option("3")
    weights = [traces[number].attention["encoder"][0][2] for number in (0, 3)]
    cell = page.get_attribute("[data-head='encoder.0.2']", "data-value")
    assert float(cell) == pytest.approx(float((weights[0] - weights[1]).abs().mean()), abs=1 / 255)
    page.close()


def _values(found: Any) -> list[float]:
    values: list[float] = found.evaluate_all(VALUES)
    return values


def test_checkpoints_without_attention_are_compared_by_their_outputs(
    browser: Any, tmp_path: Path
) -> None:
    run = kept_run(tmp_path / "lstm", "classify", variant="lstm-additive")
    shown = open_page(browser, look(run, TEXT).html, tmp_path, state="tab=compare&look=0&other=2")
    cards = shown.locator("[data-card]").evaluate_all("(all) => all.map((n) => n.dataset.card)")
    assert cards == ["compare-lens", "compare-outputs"]
    shown.close()
