"""`headway check`: the report on stdout, and code 2 exactly when training is impossible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.main import main
from tests.data.conftest import sentences
from tests.facts import figures, missing


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    source, target = zip(*sentences(), strict=True)
    paths = {"source": tmp_path / "a.de", "target": tmp_path / "a.en"}
    paths["source"].write_text("\n".join(source) + "\n", encoding="utf-8")
    paths["target"].write_text("\n".join(target) + "\n", encoding="utf-8")
    return {name: str(path) for name, path in paths.items()}


def words(files: dict[str, str], *more: str) -> list[str]:
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    return ["check", "translate", *options, *more]


def test_good_data_is_described(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(files, "tokenizer.vocab_size=400", "data.valid_size=20")) == 0
    shown = capsys.readouterr()
    first, source, target, pairs, vocabulary, lengths = shown.out.splitlines()[:6]
    assert not missing(first, "a.de a.en 400")
    assert source.split()[:3] == ["source", "→", "source"]
    assert target.split()[:3] == ["target", "→", "target"]
    assert figures(pairs) == ["400"]
    assert figures(vocabulary).count("400") == 2  # of the source and of the target
    assert figures(lengths)[-2:] == ["0", "1,024"]
    assert shown.out not in shown.err


def test_json_is_for_programs(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files["source"]).write_text("\n" * 10 + "Ja, natürlich.\n" * 390)
    assert main(words(files, "--json", "data.valid_size=2")) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["n_pairs"] == 400
    assert report["impossible"]
    assert {finding["name"] for finding in report["findings"]} >= {"empty", "no-split"}


def test_unequal_files_are_reported_with_code_2(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(files["target"]).open("a") as file:
        file.write("One more.\n")
    assert main(words(files)) == 2
    out = capsys.readouterr().out
    assert "error: " in out
    assert not missing(out, "/a.de 400 /a.en 401")


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        (["check", "summarise", "--pairs", "x"], "summarise classify"),
        (["check", __file__], f"{__file__} translate classify"),
        (["check", "translate"], "FILES --source --target"),
        (["check", "translate", "--pairs", "none.tsv"], "none.tsv"),
        (["check", "translate", "--pairs", "x", "data.max_le=3"], "data.max_le max_len"),
        (["check", "translate", "--source", "x"], "data.target --pairs"),
        (["check", "translate", "--pairs", "x", "--encoding", "utf-9"], "x"),
    ],
)
def test_mistakes_are_one_line_on_stderr(
    more: list[str], facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(more) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert not missing(shown.err, facts)
    assert shown.err.count("\n") == 1


def test_labels_that_look_missing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "a.csv"
    rows = [
        f"text {i} is {'good' if i % 2 else 'bad'},{'pos' if i % 2 else 'neg'}" for i in range(90)
    ]
    clean = "\n".join(["text,label", *rows]) + "\n"
    data.write_text(clean)
    assert main(["check", "classify", str(data), "data.on_bad_row=skip"]) == 0
    assert "data.on_bad_row" not in capsys.readouterr().out
    data.write_text(f"{clean}no label,NaN\nno label either,NaN\n")
    assert main(["check", "classify", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "'NaN'" in shown
    assert "data.on_bad_row=skip" in shown
