"""The page that follows one row from its file to the answer is true."""

from __future__ import annotations

import re
import shlex
import struct
from pathlib import Path

import pytest

import headway
from headway.cli.main import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "built" / "life-of-an-example.md").read_text("utf-8")
FOLLOWED = "Ruft Tom an!"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    return tmp_path / "sentences.csv"


def test_the_row_takes_the_stages_of_the_page(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table.read_text("utf-8").splitlines()[9] == f"{FOLLOWED},German"
    report = headway.check("classify", table)
    assert report.labels == {"English": (500, 0), "German": (500, 0)}
    assert [(one.name, one.count) for one in report.findings] == [("duplicates", 3)]
    main(["check", "classify", str(table), "--steps"])
    stages = capsys.readouterr().out
    raw, *_ = re.findall(r"^raw .*$", stages, re.MULTILINE)
    assert "sentences.csv:10 " in raw
    assert FOLLOWED in raw
    (item,) = re.findall(r"^item .*: (.*)$", stages, re.MULTILINE)
    assert item.split() == ["<s>", "▁R", "uf", "t", "▁Tom", "▁an", "!", "</s>"]


def test_the_commands_of_the_page_run(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
             for line in block.splitlines()]  # fmt: skip
    printed = {}
    for line in lines:
        program, verb, *words = shlex.split(line)
        assert (program, main([verb, *words])) == ("headway", 0)
        printed[verb] = capsys.readouterr().out
    assert list(printed) == ["check", "train", "predict", "look"]
    assert printed["predict"] == "German\n"
    assert (table.parent / "look.html").is_file()
    run = headway.load("runs/language")
    scores = run.evaluate()
    assert scores["accuracy"] >= scores.baselines["bag of words"]["accuracy"] > 90


def test_modules_and_images_of_the_page_exist() -> None:
    modules = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE)
    known = [ROOT / "src" / "headway", ROOT]
    assert len(modules) > 10
    assert not [name for name in modules if not any((top / name).exists() for top in known)]
    images = re.findall(r'<img src="\.\./images/(life-\d-\w+\.png)" width="(\d+)"', PAGE)
    assert [name[5] for name, _ in images] == list("12345678")
    for name, width in images:  # drawn with two pixels for each of the page
        header = (ROOT / "docs" / "images" / name).read_bytes()[:24]
        assert struct.unpack(">I", header[16:20])[0] // 2 == int(width)
