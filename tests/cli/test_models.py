"""`headway models`: what there is, without opening any of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.models.summary import count_parameters, meta_model
from headway.settings.folder import SHIPPED, load_run, shipped_names
from tests.facts import figures, missing

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
        assert one["parameters"] == count_parameters(meta_model(settings.model))
        assert one["bytes"] == (SHIPPED / name / "model.safetensors").stat().st_size
        assert isinstance(one["score"], float)
        assert str(one["date"]).startswith("20")
    assert (found["digits"]["metric"], found["digits"]["score"]) == ("wer", 0.25)
    assert (found["tatoeba-de-en"]["metric"], found["tatoeba-de-en"]["score"]) == ("bleu", 51.71)


def test_runs_are_found_in_runs_here_and_in_given_folders(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs/one", "two", "else/where/three"):
        shutil.copytree(SHIPPED / "shapes", place)
        Path(place, "README.md").unlink()
    end = {"kind": "end", "step": 9, "kept": "best", "scores": {"best": {"exact_match": 12.5}}}
    Path("two/metrics.jsonl").write_text(json.dumps(end) + "\n")
    found = listed(capsys)
    assert list(found)[len(shipped_names()) :] == ["one", "two"]
    assert found["one"]["score"] is None
    assert (found["two"]["metric"], found["two"]["score"]) == ("exact_match", 12.5)
    assert list(listed(capsys, "else/where")) == ["else/where/three"]
    assert list(listed(capsys, "two")) == ["two"]
    assert main(["models"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["name", "task", "parameters", "MB", "score", "date"]
    assert rows[-1][:4] == ["two", "caption", "2,480,128", "2.7"]
    assert "12.50" in rows[-1]


def test_incomplete_runs_are_listed_with_their_state(
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
    assert not missing(str(found["half"]["trouble"]), "half model.safetensors")
    assert found["half"]["task"] == "caption"
    assert not missing(str(found["fast"]["trouble"]), "fast --engine onnx")
    assert main(["models", "."]) == 0
    printed = capsys.readouterr()
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in printed.out.splitlines()}
    states = {name: found[name]["state"] for name in ("half", "begun", "fast", "broken")}
    assert {name: rows[name] for name in states} == states
    assert len(set(states.values())) == 4
    assert figures(rows["half"]) == []
    assert figures(rows["begun"]) == ["45", f"{load_run('half').train.steps:,}"]
    assert not missing(rows["fast"], "--engine onnx")
    assert "broken/config.toml" in printed.err
    assert max(map(len, printed.out.splitlines())) < 80
    assert main(["models", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("revews", "revews reviews"),
        ("digit", "digit digits"),
        ("movis", "movis movies"),
        ("runs/revews", "runs/revews runs/reviews"),
        ("xyzzy", "xyzzy reviews movies base-en digits shapes stories"),
    ],
)
def test_the_error_of_a_misspelt_run_names_known_runs(
    name: str, facts: str, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs/reviews", "movies"):
        Path(place).mkdir(parents=True)
        shutil.copy(SHIPPED / "shapes" / "config.toml", place)
    assert main(["predict", name, "--text", "x"]) == 2
    assert not missing(capsys.readouterr().err, facts)
    if "/" not in name and name != "xyzzy":
        assert main(["info", name]) == 2
        assert not missing(capsys.readouterr().err, facts)
