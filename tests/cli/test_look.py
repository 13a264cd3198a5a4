"""`headway look`: a page for every task with no other word than the text, and mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import headway
from headway.cli.main import main
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.media import MediaInput, example_input
from headway.inside.capture.reading import read
from headway.nn.tap import record
from headway.settings.folder import SHIPPED, shipped_names
from headway.tasks.loaded_run import open_plain
from headway.web.pack import unpack
from tests.facts import missing

from ..interop.padded_runs import RUNS, tiny_run

REQUEST = re.compile(r"""(?:src|href|action)\s*=|@import|url\(|https?://(?!www\.w3\.org/)""", re.I)
"""What would make a browser ask someone; the name of SVG's namespace is only a name."""


def text_for(task: str) -> str:
    return "ba [MASK] de go" if task == "fill" else "ba de go fi"


@pytest.mark.parametrize("task", RUNS)
def test_every_task_has_a_page_that_holds_the_true_numbers(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_run(tmp_path / "run", task, n_layers=2)
    out = tmp_path / "page.html"
    assert main(["look", str(folder), "--text", text_for(task), "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    html = out.read_text(encoding="utf-8")
    assert len(html) <= 400_000
    shown = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not REQUEST.findall(shown)
    run = open_plain(folder)
    reading = read(run, text_for(task))
    weights = _independent(run, reading)
    [look] = unpack(html)["looks"]
    kinds = look["sections"]["attention"]["kinds"]
    assert {kind["name"] for kind in kinds} == set(weights)
    for kind in kinds:
        for layer, shown_HTS in enumerate(_layers(kind)):
            np.testing.assert_allclose(shown_HTS, weights[kind["name"]][layer], atol=1 / 255)


def _independent(run, reading):  # type: ignore[no-untyped-def]
    """The weights, from queries and keys by another way than the trace's."""
    from headway.inside.capture.forward import run_reading

    found: dict[str, list[np.ndarray]] = {}
    with record(run.model, ".weights") as seen, torch.no_grad():
        run_reading(run, reading)
    names = {id(module): name for name, module in run.model.named_modules()}
    for kind in Anatomy.of(run.model).kinds:
        calls = [seen[names[id(layer.weights)]] for layer in kind.layers]
        shared = len({id(layer) for layer in kind.layers}) == 1
        found[kind.name] = [
            (call[number] if shared else call[0])[0].numpy() for number, call in enumerate(calls)
        ]
    return found


def _layers(kind):  # type: ignore[no-untyped-def]
    return list(kind["layers"])


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], "--text"),
        (["--text", "  "], "--text"),
        (["--text", "ba", "--off", "cross.1"], "--off 'cross.1' kind.layer.head"),
        (["--text", "ba", "--off", "cross.1.99"], "cross 1 4 99"),
        (["--text", "ba", "--off", "crss.1.1"], "crss cross"),
        (["--text", "ba", "--hide", "0"], "'0' 1"),
        (["--text", "ba", "--hide", "99"], "source 2 99"),
        (["--text", "ba", "--checkpoints"], "/run checkpoints/ --checkpoints"),
        (["--text", "ba", "--terminal", "--serve"], "--terminal --serve"),
        (["--text", "ba", "model.n_heads=2"], "model.n_heads=2 decode.*"),
        (["--text", "ba", "decode.beam=0"], "decode.beam=0 1"),
        (["--text", "ba " * 99], "101 31 max_len"),
        (["--text", "ba", "--walk", "cross.1"], "--walk 'cross.1' kind.layer.head.row"),
        (["--text", "ba", "--truth", "nowhere.json"], "nowhere.json `headway truth`"),
        (["--text", "ba", "--factors", "nowhere"], "nowhere"),
        (["--text", "ba", "--corpus", "nowhere.txt"], "nowhere.txt"),
        (["--text", "ba", "--tuned", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--text", "ba", "--against", "nowhere"], "nowhere tatoeba-de-en"),
        (["--text", "ba", "--against-text", " "], "--against-text"),
        (["--text", "ba", "--terminal", "--against", "x"], "--against --terminal"),
        (["--serve", "--checkpoints"], "--checkpoints --serve"),
        (["--text", "ba", "--against-text", "de", "--checkpoints"], ""),
        (["--text", "ba", "--pin", "99"], "--pin 99 12"),
        (["--text", "ba", "--new=-1"], "--new -1 0"),
        (["a.png"], "'a.png' --file --text"),
    ],
)
def test_a_mistake_is_one_line_and_writes_no_page(
    words: list[str],
    facts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny_run(tmp_path / "run", "translate")
    assert main(["look", str(folder), *words]) == 2
    errors = capsys.readouterr().err
    assert not missing(errors, facts)
    assert errors.splitlines()[-1].startswith("headway look: error: ")  # after the progress
    assert not (tmp_path / "look.html").exists()


def test_a_trace_is_kept_and_shown_again(tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run", "classify")
    page, kept = tmp_path / "one.html", tmp_path / "kept"
    words = ["look", str(folder), "--text", "ba de", "--out", str(page), "--trace", str(kept)]
    assert main(words) == 0
    assert main(["look", str(kept), "--out", str(tmp_path / "two.html")]) == 0
    one, two = (unpack((tmp_path / f"{name}.html").read_text()) for name in ("one", "two"))
    first, second = (page["looks"][0]["sections"]["attention"]["kinds"] for page in (one, two))
    for mine, other in zip(first, second, strict=True):
        for a, b in zip(mine["layers"], other["layers"], strict=True):
            np.testing.assert_array_equal(a, b)
    assert main(["look", str(kept), "--text", "ba"]) == 2


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_models_have_an_example_to_look_at(name: str) -> None:
    example = example_input(open_plain(name))
    assert isinstance(example, str if (SHIPPED / name / "example.txt").is_file() else MediaInput)


def test_without_an_input_the_page_shows_the_models_example(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["look", "base-en", "--out", str(out)]) == 0
    run, example = headway.load("base-en"), (SHIPPED / "base-en" / "example.txt").read_text()
    assert run.look().packed == run.look(example.strip()).packed
    assert unpack(out.read_text())["title"] == unpack(run.look().html)["title"]
