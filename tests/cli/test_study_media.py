"""`headway prune`, `factors` and `look --corpus` of runs that see or hear, from files or from the
validation data that a run keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.inside.capture.corpus import Corpus
from headway.inside.measure.features.dictionary import FeatureDictionary
from headway.inside.measure.pruning_curve import load_head_analysis
from headway.progress import SILENT
from headway.settings.folder import load_run
from headway.tasks.loaded_run import open_plain
from headway.tasks.task import find_task
from headway.web.pack import unpack
from tests.facts import figures, missing

from ..interop.padded_runs import LABELS, media_lines, media_run

SMALL = ["n=4", "k=2", "steps=5", "browse=100", "--method", "topk"]


def studied(folder: Path, name: str) -> tuple[Path, Path]:
    """A run of twelve heads, and a list of twelve files."""
    run = media_run(folder / "run", name, n_layers=3)
    task = load_run(run).task
    right = {"label": "I-x"} if task in ("classify", "identify") else {"text": "ba de"}
    lines = [
        {"path": path} | ({} if task == "fill" else right | _label(right, number))
        for number, path in enumerate(media_lines(folder / "files", name) * 3)
    ]
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return run, folder / "list.jsonl"


def _label(right: dict[str, str], number: int) -> dict[str, str]:
    return {"label": LABELS[number % 3]} if "label" in right else {}


@pytest.mark.parametrize(
    "name", ["see", "watch", "identify", "caption", "transcribe ctc", "fill images"]
)
def test_heads_of_a_run_that_sees_or_hears_are_taken_out(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, listed = studied(tmp_path, name)
    out = tmp_path / "small"
    words = ["--heads", "2", "--out", str(out), "--media", str(listed), "--json"]
    assert main(["prune", str(run), *words]) == 0
    printed = capsys.readouterr()
    spec = open_plain(run).spec
    assert figures(printed.err.splitlines()[0]) == ["12"]
    lines = {line["name"]: line for line in json.loads(printed.out)["lines"]}
    assert lines["heads"]["after"] == lines["heads"]["before"] - 2
    assert {"loss", spec.headline.axis, "forward"} <= lines.keys()
    assert ("prediction" in lines) == spec.writes
    if spec.answers != "gaps":  # it is a run like any other
        assert main(["predict", str(out), "--json", str(listed)]) == 0


@pytest.mark.parametrize("name", ["see", "caption", "fill audio"])
def test_a_run_is_studied_on_its_own_validation_data(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, listed = studied(tmp_path, name)
    settings = load_run(run)
    data = replace(settings.data, media=(str(listed),), valid_media=(str(listed),))
    find_task(settings).prepare(replace(settings, data=data), run, SILENT)
    opened = open_plain(run)
    corpus = Corpus.own(opened)
    assert len(corpus) == 12
    if name == "see":
        assert sorted(corpus.labels or ()) == [0] * 4 + [1] * 4 + [2] * 4
    if name == "caption":
        assert corpus.targets == ("ba de",) * 12
    assert main(["factors", str(run), *SMALL]) == 0
    printed = capsys.readouterr()
    assert figures(printed.err.splitlines()[0])[1] == "12"
    assert not missing(printed.out, "headway look --file")
    assert len(FeatureDictionary.load(run / "factors").entries) == 4
    assert main(["prune", str(run), "--heads", "2", "--out", str(tmp_path / "small")]) == 0
    assert figures(capsys.readouterr().err.splitlines()[0]) == ["12"]


def test_the_page_of_a_image_shows_its_corpus(tmp_path: Path) -> None:
    run, listed = studied(tmp_path, "see")
    first, page = json.loads(listed.read_text().split("\n")[0])["path"], tmp_path / "look.html"
    assert main(["factors", str(run), str(listed), *SMALL]) == 0
    words = ["--corpus", str(listed), "--factors", str(run / "factors"), "--out", str(page)]
    assert main(["look", str(run), "--file", first, *words]) == 0
    sections = unpack(page.read_text())["looks"][0]["sections"]
    assert sections["heads"]["n_texts"] == 12
    assert figures(sections["heads"]["scope"])[0] == "12"
    assert sections["features"]["total"] == 4
    assert sections["neighbours"]["tokens"]["image"] > 12
    at, pieces, seen = sections["neighbours"]["texts"][0]
    assert pieces[at].startswith("row ")
    assert pieces[-1].startswith(" list.jsonl")
    assert seen.startswith("data:image/png;base64,")
    contexts = [one for factor in sections["features"]["factors"] for one in factor["contexts"]]
    assert all(len(one) == 4 for one in contexts)
    lens = tmp_path / "look.lens.safetensors"
    words = ["--tuned", str(listed), "--out", str(page)]
    assert main(["look", str(run), "--file", first, *words]) == 2  # twelve are too few
    (tmp_path / "more.jsonl").write_text("\n".join([listed.read_text()] * 2))
    words = ["--tuned", str(tmp_path / "more.jsonl"), "--out", str(page)]
    assert main(["look", str(run), "--file", first, *words]) == 0
    assert lens.is_file()


def test_the_curve_of_a_run_that_sees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, listed = studied(tmp_path, "see")
    assert main(["prune", str(run), "--curve", "--media", str(listed)]) == 0
    found = load_head_analysis(run)
    assert found is not None
    assert found[1] is not None
    assert found[1].metric == "accuracy, %"
    assert found[1].data == str(listed)


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (["prune", "--heads", "2", "--text", "x.txt"], "--text classify"),
        (["prune", "--heads", "2"], "run FILES --importance-from"),
        (["factors", "--text", "x.txt"], "--text classify"),
        (["factors"], "run FILES"),
        (["factors", "--media", "nowhere"], "nowhere"),
    ],
)
def test_mistakes(
    given: list[str], facts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = studied(tmp_path, "see")
    command, *words = given
    out = ["--out", str(tmp_path / "out")]
    assert main([command, str(run), *words, *out]) == 2
    error = capsys.readouterr().err
    assert not missing(error, facts)
    assert "Traceback" not in error
