"""`headway truth` prints and saves what was measured, or that there is nothing to measure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.cli.head_names import shown
from headway.cli.truth import truth
from headway.errors import UserError
from headway.inside.measure.truth import MapAccuracy
from headway.settings.folder import SHIPPED
from tests.facts import figures, missing, naming

from ..interop.padded_runs import tiny_run

PAIRS = """\
Ich kenne Tom seit 1999.	I have known Tom since 1999.
Wohnt Maria in Boston?	Does Mary live in Boston?
Ich habe Tom in Boston gesehen.	I saw Tom in Boston.
Hallo!	Hello!
"""


def pairs_file(folder: Path, text: str = PAIRS) -> Path:
    (folder / "pairs.tsv").write_text(text)
    return folder / "pairs.tsv"


def test_maps_of_a_translator_are_measured_with_chance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "truth.json"
    truth("tatoeba-de-en", named={"pairs": pairs_file(tmp_path)}, few=1, out=out)
    printed = capsys.readouterr()
    assert figures(printed.out.splitlines()[0]) == ["5", "3", "0.197"]
    assert str(out) in printed.err
    assert ["5"] in [figures(line) for line in printed.err.splitlines()]  # too few words
    names = [line.partition("  ")[0] for line in printed.out.splitlines() if line[:1].islower()]
    for name in ("occlusion", "norm", "rollout", "cross 2 mean", "random", "diagonal"):
        assert name in names
    found = MapAccuracy.load(out)
    assert (found.n, found.unit) == (5, "words")
    assert found.best is not None
    _, layer, head = found.best.name.split(".")
    people = f"cross {int(layer) + 1}.{int(head) + 1}"
    assert [line for line in printed.out.splitlines() if not missing(line, people, "P@1")]
    assert people in names
    assert "cross.1." not in printed.out
    assert found.maps["cross.1.norm"].p1 > found.maps["random"].random
    assert found.maps["occlusion"].n == 2
    assert found.maps["random"].random == pytest.approx((2 / 5 + 1 / 4 + 2 / 6) / 5, abs=1e-3)


def test_alignments_that_are_given_are_the_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (SHIPPED / "tatoeba-de-en" / "truth.json").read_bytes()
    lines = "Er kommt.\tHe comes.\t0-0 1-1\nSie geht.\tShe goes.\t0-0 1-1\n"
    truth("tatoeba-de-en", named={"pairs": pairs_file(tmp_path, lines)}, few=0, as_json=True)
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert (facts["unit"], facts["n"]) == ("words", 4)
    assert facts["maps"]["random"]["random"] == 0.5
    assert (SHIPPED / "tatoeba-de-en" / "truth.json").read_bytes() == before


def test_truth_is_saved_in_the_run_folder_but_not_for_a_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_run(tmp_path / "run", "translate")
    pairs = pairs_file(tmp_path, "ba de\tde ba\t0-1 1-0\nko fi\tfi ko\t0-1 1-0\n")
    truth(str(folder), named={"pairs": pairs}, few=0, untrained=True)
    assert not (folder / "truth.json").exists()
    truth(str(folder), [str(pairs)], named={}, few=0)
    found = MapAccuracy.load(folder / "truth.json")
    assert found.n == 4
    assert found.best is not None
    assert shown(found.best.name) in capsys.readouterr().out


@pytest.mark.parametrize("task", ["classify", "tag", "embed", "fill"])
def test_tasks_without_a_known_truth_are_not_validated(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_run(tmp_path / "run", task)
    truth(str(folder), named={})
    out = capsys.readouterr().out
    assert task in out
    assert "P@1" not in out
    assert not (folder / "truth.json").exists()


def test_texts_without_copies_are_not_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_run(tmp_path / "run", "complete")
    pairs = pairs_file(tmp_path, "Hallo!\tHello!\n")
    out = tmp_path / "truth.json"
    truth(str(run), texts=2, named={}, out=out)
    truth("tatoeba-de-en", named={"pairs": pairs}, out=out)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert not any("P@1" in line or figures(line) for line in lines)
    assert not out.exists()


def test_mistakes_are_errors_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=naming("`headway truth tatoeba-de-en pairs.tsv`")):
        truth("tatoeba-de-en", named={})
    file = str(pairs_file(tmp_path))
    with pytest.raises(UserError, match=naming(file, "complete")):
        truth("stories", [file], named={})
    for words, facts in (([file, file], f"2 {file}"), (["none.tsv"], "none.tsv")):
        with pytest.raises(UserError, match=naming(facts)):
            truth("tatoeba-de-en", words, named={})
    with pytest.raises(UserError, match=naming("--pairs", file)):
        truth("tatoeba-de-en", [file], named={"pairs": Path(file)})
    with pytest.raises(UserError, match=naming("--pairs complete")):
        truth("stories", named={"pairs": pairs_file(tmp_path)})
    with pytest.raises(UserError, match=naming("--reactions complete")):
        truth("stories", named={"reactions": tmp_path / "x.smi"})


def test_the_unit_of_judged_items_is_named_and_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth("stories", texts=30, few=0, methods="mean", out=tmp_path / "stories.json", named={})
    first, *rest = capsys.readouterr().out.splitlines()
    assert re.search(r"\b\d+ tokens\b.*\b\d+ texts\b", first)
    assert [line for line in rest if not missing(line, "P@1 AER tokens")]
    assert json.loads((tmp_path / "stories.json").read_text())["unit"] == "tokens"


@pytest.mark.parametrize(
    ("name", "unit"),
    [("stories", "tokens"), ("tatoeba-de-en", "words"), ("tatoeba-en-de", "words")],
)
def test_shipped_truth_has_its_unit_and_the_current_format(
    name: str, unit: str, tmp_path: Path
) -> None:
    path = SHIPPED / name / "truth.json"
    found = MapAccuracy.load(path)
    assert found.unit == unit
    found.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())
