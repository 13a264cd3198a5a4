"""`headway truth` prints what was measured, notes it, and says when there is nothing to measure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.cli.truth import truth
from headway.errors import UserError
from headway.inside.measure.truth import Truth
from headway.settings.folder import SHIPPED

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


def test_maps_of_a_translator_are_measured_beside_chance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "truth.json"
    truth("tatoeba-de-en", named={"pairs": pairs_file(tmp_path)}, few=1, out=out)
    printed = capsys.readouterr()
    assert printed.out.startswith(
        "names and numbers copied: 5 words in 3 texts; chance is right 0.197"
    )
    assert f"wrote {out}" in printed.err
    assert "only 5 words could be judged: too few" in printed.err
    names = [line.partition("  ")[0] for line in printed.out.splitlines() if line[:1].islower()]
    for name in ("occlusion", "norm", "rollout", "cross 2 mean", "random", "diagonal"):
        assert name in names
    found = Truth.load(out)
    assert (found.n, found.unit) == (5, "words")
    assert found.best is not None
    _, layer, head = found.best.name.split(".")
    people = f"cross {int(layer) + 1}.{int(head) + 1}"
    assert f"chosen on one half of the texts: {people}, P@1" in printed.out
    assert people in names
    assert "cross.1." not in printed.out
    assert found.maps["cross.1.norm"].p1 > found.maps["random"].random
    assert found.maps["occlusion"].n == 2
    assert found.maps["random"].random == pytest.approx((2 / 5 + 1 / 4 + 2 / 6) / 5, abs=1e-3)


def test_alignments_that_are_given_are_the_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "Er kommt.\tHe comes.\t0-0 1-1\nSie geht.\tShe goes.\t0-0 1-1\n"
    truth("tatoeba-de-en", named={"pairs": pairs_file(tmp_path, lines)}, few=0, as_json=True)
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert (facts["task"], facts["n"]) == ("words with a known alignment", 4)
    assert facts["maps"]["random"]["random"] == 0.5
    assert "not written: this model comes with headway" in printed.err


def test_truth_is_noted_in_the_run_folder_and_not_for_a_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_run(tmp_path / "run", "translate")
    pairs = pairs_file(tmp_path, "ba de\tde ba\t0-1 1-0\nko fi\tfi ko\t0-1 1-0\n")
    truth(str(folder), named={"pairs": pairs}, few=0, untrained=True)
    assert not (folder / "truth.json").exists()
    truth(str(folder), [str(pairs)], named={}, few=0)
    assert Truth.load(folder / "truth.json").n == 4
    assert "best head, chosen on one half of the texts" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["classify", "tag", "embed", "fill"])
def test_what_nobody_knows_is_not_validated(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth(str(tiny_run(tmp_path / "run", task)), named={})
    assert capsys.readouterr().out.startswith("not validated: nobody knows where a run of the task")


def test_where_nothing_is_copied_nothing_is_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth(str(tiny_run(tmp_path / "run", "complete")), texts=2, named={})
    wanted = "not validated: tokens copied from random text: there is none.\n"
    assert capsys.readouterr().out == wanted
    truth("tatoeba-de-en", named={"pairs": pairs_file(tmp_path, "Hallo!\tHello!\n")})
    assert capsys.readouterr().out == "not validated: names and numbers copied: there is none.\n"


def test_mistakes_are_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"headway truth tatoeba-de-en pairs\.tsv"):
        truth("tatoeba-de-en", named={})
    file = str(pairs_file(tmp_path))
    with pytest.raises(UserError, match="has no effect: a run of the task complete takes no file"):
        truth("stories", [file], named={})
    for words, said in (([file, file], "one file at a time"), (["none.tsv"], "there is no file")):
        with pytest.raises(UserError, match=said):
            truth("tatoeba-de-en", words, named={})
    with pytest.raises(UserError, match=r"--pairs and a file .* do not go together"):
        truth("tatoeba-de-en", [file], named={"pairs": Path(file)})
    with pytest.raises(UserError, match="--pairs has no effect on a run of the task complete"):
        truth("stories", named={"pairs": pairs_file(tmp_path)})
    with pytest.raises(UserError, match="--reactions has no effect on a run of the task complete"):
        truth("stories", named={"reactions": tmp_path / "x.smi"})


def test_the_unit_of_what_was_judged_is_named_and_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth("stories", texts=30, few=0, methods="mean", out=tmp_path / "stories.json", named={})
    shown = capsys.readouterr().out
    assert re.match(r"tokens copied from random text: \d+ tokens in \d+ texts", shown)
    assert re.search(r"^map +P@1 +AER +tokens$", shown, re.MULTILINE)
    assert json.loads((tmp_path / "stories.json").read_text())["unit"] == "tokens"


@pytest.mark.parametrize(
    ("name", "unit"),
    [("stories", "tokens"), ("tatoeba-de-en", "words"), ("tatoeba-en-de", "words")],
)
def test_shipped_truth_says_what_it_counts_and_is_as_it_would_be_written(
    name: str, unit: str, tmp_path: Path
) -> None:
    path = SHIPPED / name / "truth.json"
    found = Truth.load(path)
    assert found.unit == unit
    found.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())
