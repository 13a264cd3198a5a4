"""`headway models`: what there is, without opening any of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.models.summary import count, outline
from headway.settings.folder import SHIPPED, load_run, shipped_names

Output = pytest.CaptureFixture[str]


def listed(capsys: Output, *words: str) -> dict[str, dict[str, object]]:
    assert main(["models", *words, "--json"]) == 0
    return {one["name"]: one for one in json.loads(capsys.readouterr().out)}


def test_models_that_come_with_headway_have_size_score_and_date(capsys: Output) -> None:
    found = listed(capsys)
    assert list(found)[: len(shipped_names())] == shipped_names()
    for name in shipped_names():
        one, settings = found[name], load_run(name)
        assert one["task"] == settings.task
        assert one["parameters"] == count(outline(settings.model))
        assert one["bytes"] == (SHIPPED / name / "model.safetensors").stat().st_size
        assert isinstance(one["score"], float)
        assert str(one["date"]).startswith("20")
    assert (found["digits"]["metric"], found["digits"]["score"]) == ("wer", 0.25)
    assert (found["tatoeba-de-en"]["metric"], found["tatoeba-de-en"]["score"]) == ("bleu", 51.71)


def test_runs_of_ones_own_are_found_in_runs_here_and_where_one_says(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs/one", "two", "else/where/three"):
        shutil.copytree(SHIPPED / "shapes", place)
        Path(place, "README.md").unlink()
    end = {"kind": "end", "step": 9, "kept": "best", "scores": {"best": {"exact": 12.5}}}
    Path("two/metrics.jsonl").write_text(json.dumps(end) + "\n")
    found = listed(capsys)
    assert list(found)[len(shipped_names()) :] == ["one", "two"]
    assert found["one"]["score"] is None
    assert (found["two"]["metric"], found["two"]["score"]) == ("exact", 12.5)
    assert list(listed(capsys, "else/where")) == ["else/where/three"]
    assert list(listed(capsys, "two")) == ["two"]
    assert main(["models"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["name", "task", "parameters", "MB", "score", "date"]
    assert rows[-1][:7] == ["two", "caption", "2,480,128", "2.7", "exact", "match", "12.50"]


def test_what_is_not_whole_is_said_in_its_place(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("half").mkdir()
    shutil.copy(SHIPPED / "shapes" / "config.toml", "half")
    shutil.copytree("half", "fast")
    Path("fast/decoder.onnx").touch()
    shutil.copytree("half", "begun")
    Path("begun/checkpoints/step-45").mkdir(parents=True)
    Path("begun/checkpoints/step-45/manifest.json").write_text("{}")
    shutil.copytree("half", "broken")
    with Path("broken/config.toml").open("a") as file:
        file.write("seed = 2\n")
    found = listed(capsys)
    assert "half is not finished: it has no model.safetensors" in str(found["half"]["trouble"])
    assert found["half"]["task"] == "caption"
    assert "Use engine=" in str(found["fast"]["trouble"])
    assert main(["models", "."]) == 0
    said = capsys.readouterr()
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in said.out.splitlines()}
    assert rows["half"] == "not finished"
    assert rows["begun"] == f"not finished: step 45 of {load_run('half').train.steps:,}"
    assert rows["fast"] == "for --engine onnx"
    assert rows["broken"] == "damaged"
    assert "broken/config.toml has changed" in said.err
    assert max(map(len, said.out.splitlines())) < 80
    assert main(["models", "nowhere"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("revews", "comes with headway. Did you mean 'reviews'?"),
        ("digit", "Did you mean 'digits'?"),
        ("her", "Did you mean 'here'?"),
        ("runs/revews", "no folder runs/revews. Did you mean 'runs/reviews'? "),
        (
            "xyzzy",
            "Yours here: reviews, here. With headway come: base-en, digits, shapes, stories, ",
        ),
    ],
)
def test_a_misspelt_run_is_answered_with_those_there_are(
    name: str, said: str, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs/reviews", "here"):
        Path(place).mkdir(parents=True)
        shutil.copy(SHIPPED / "shapes" / "config.toml", place)
    assert main(["predict", name, "--text", "x"]) == 2
    assert said in capsys.readouterr().err
    if "/" not in name and name != "xyzzy":
        assert main(["info", name]) == 2
        assert said.rpartition(". ")[2] in capsys.readouterr().err
