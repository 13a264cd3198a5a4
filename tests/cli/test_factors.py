"""`headway factors`: a table on stdout, two files in a folder, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from headway.cli.factors import FLAGS, factors
from headway.cli.flags import add_command
from headway.errors import ConfigError, DataError, FolderError, UserError
from headway.inside.measure.features.dictionary import FeatureDictionary
from tests.facts import figures, missing, naming

from ..inside.test_features import LINES
from ..interop.padded_runs import tiny_run

app = typer.Typer()
add_command(app, factors, FLAGS)
SMALL = ["n=12", "k=3", "steps=10", "browse=300"]


def run(*words: str) -> None:
    app([*words], standalone_mode=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tiny_run(tmp_path / "run", "complete", n_layers=2)
    (tmp_path / "corpus.txt").write_text("\n".join(LINES))
    return tmp_path


def test_it_writes_factors_and_prints_how_good_they_are(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(str(place / "run"), "--text", str(place / "corpus.txt"), "--method", "topk", *SMALL)
    printed = capsys.readouterr()
    found = FeatureDictionary.load(place / "run" / "factors")
    assert found.n == 12
    shares = [f"{found.figures[name]:.1%}" for name in ("explained", "dead", "recovered")]
    layers = [f"{layer[name]:.3f}" for layer in found.figures["layers"]
              for name in ("explained", "loss", "rebuilt", "mean", "zero")]  # fmt: skip
    assert not missing(printed.out, *shares, *layers)
    assert len(found.most_effective(10)) == 10
    assert figures(printed.err)[:2] == [str(found.figures["corpus_tokens"]), "89"]
    assert not missing(printed.out, "headway look --factors", place / "run" / "factors")


def test_a_folder_is_overwritten_only_with_restart(place: Path) -> None:
    words = [str(place / "run"), "--text", str(place / "corpus.txt"), "--method", "topk", *SMALL]
    out = place / "there"
    out.mkdir()
    (out / "note.txt").write_text("mine")
    with pytest.raises(FolderError, match="--restart"):
        run(*words, "--out", str(out))
    run(*words, "--out", str(out), "--restart")
    assert (out / "factors.json").is_file()
    with pytest.raises(FolderError, match=naming("/corpus.txt")):
        run(*words, "--out", str(place / "corpus.txt"))


@pytest.mark.parametrize(
    ("text", "words", "kind", "facts"),
    [
        ("", [], DataError, "/bad.txt"),
        ("ba de\n" * 10, [], DataError, "/bad.txt 512 30 4,096 10"),
        ("ba\tB-x\nde\tO\n", [], DataError, "/bad.txt `cut -f1`"),
        ("ba de\n", ["m=5"], ConfigError, "m method browse"),
        ("ba de\n", ["corpus.txt"], UserError, "--text corpus.txt"),
        ("ba de\n", ["--method", "pca"], ConfigError, "method pca topk"),
        ("ba de\n", ["method=topk"], UserError, "--method topk"),
        ("ba de\n", ["n=many"], ConfigError, "n many"),
    ],
)
def test_mistakes_are_errors(
    place: Path, text: str, words: list[str], kind: type[UserError], facts: str
) -> None:
    (place / "bad.txt").write_text(text)
    with pytest.raises(kind, match=naming(facts)):
        run(str(place / "run"), "--text", str(place / "bad.txt"), *words)
    assert not (place / "run" / "factors").exists()
