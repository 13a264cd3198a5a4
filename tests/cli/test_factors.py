"""`headway factors`: a table on stdout, two files in a folder, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from headway.cli.factors import FLAGS, factors
from headway.cli.flags import declare
from headway.errors import ConfigError, DataError, FolderError, UserError
from headway.inside.measure.factors.dictionary import Factors

from ..inside.test_factors import LINES
from ..interop.padded_runs import tiny_run

app = typer.Typer()
declare(app, factors, FLAGS)
SMALL = ["n=12", "k=3", "steps=10", "browse=300"]


def run(*words: str) -> None:
    app([*words], standalone_mode=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tiny_run(tmp_path / "run", "complete", n_layers=2)
    (tmp_path / "corpus.txt").write_text("\n".join(LINES))
    return tmp_path


def test_it_writes_factors_and_says_how_good_they_are(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(str(place / "run"), "--text", str(place / "corpus.txt"), "--method", "topk", *SMALL)
    said = capsys.readouterr()
    found = Factors.load(place / "run" / "factors")
    assert found.n == 12
    assert f"{found.figures['explained']:.1%}" in said.out
    for name in ("explained variance", "dead factors", "loss recovered", "layer 2", "embedding"):
        assert name in said.out
    assert len(found.telling(10)) == 10
    assert "tokens in 89 texts" in said.err
    assert "headway look" in said.out


def test_what_is_there_is_not_overwritten_unless_asked(place: Path) -> None:
    words = [str(place / "run"), "--text", str(place / "corpus.txt"), "--method", "topk", *SMALL]
    out = place / "there"
    out.mkdir()
    (out / "note.txt").write_text("mine")
    with pytest.raises(FolderError, match="--restart"):
        run(*words, "--out", str(out))
    run(*words, "--out", str(out), "--restart")
    assert (out / "factors.json").is_file()
    with pytest.raises(FolderError, match="is a file"):
        run(*words, "--out", str(place / "corpus.txt"))


@pytest.mark.parametrize(
    ("text", "words", "kind", "said"),
    [
        ("", [], DataError, "holds no text"),
        ("ba de\n" * 10, [], DataError, "too small for 512 factors: tokens 30"),
        ("ba\tB-x\nde\tO\n", [], DataError, "a tab in every line"),
        ("ba de\n", ["m=5"], ConfigError, "unknown setting 'm'"),
        ("ba de\n", ["corpus.txt"], UserError, "do not go together"),
        ("ba de\n", ["--method", "pca"], ConfigError, "method"),
        ("ba de\n", ["method=topk"], UserError, "--method"),
        ("ba de\n", ["n=many"], ConfigError, "whole number"),
    ],
)
def test_mistakes_are_explained(
    place: Path, text: str, words: list[str], kind: type[UserError], said: str
) -> None:
    (place / "bad.txt").write_text(text)
    with pytest.raises(kind, match=said):
        run(str(place / "run"), "--text", str(place / "bad.txt"), *words)
    assert not (place / "run" / "factors").exists()
