"""`headway evaluate`: what it prints is what the parts give; mistakes are errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import headway
from headway.cli.evaluate import FLAGS, evaluate
from headway.cli.flags import add_command
from headway.cli.main import main
from headway.decode.writer import Writer
from headway.errors import Edge, UserError, called_by
from headway.metrics.translation import bleu, chrf, compare_bleu, tokenised_bleu
from headway.models.build import build_model
from headway.models.folder import save_model
from headway.settings.data import TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import Seq2SeqSettings
from headway.settings.run import RunSettings, resolved_toml
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.seq2seq_answers import writer_of
from headway.tokens.trainer import train_vocabularies
from tests.facts import figures, naming

from ..inside.ngram_runs import ngram_run

SOURCES = ["ein Hund läuft", "zwei Katzen", "", "der Mann liest ein Buch."]
TARGETS = ["A dog runs", "two cats", "", "the man reads a book."]

Command = Callable[..., str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    app = typer.Typer()
    add_command(app, evaluate, FLAGS)

    def run(*words: object) -> str:
        capsys.readouterr()
        with called_by(Edge.COMMAND_LINE):
            app([str(word) for word in words], standalone_mode=False)
        return capsys.readouterr().out

    return run


def made_run(folder: Path, seed: int) -> Path:
    settings = TokenizerSettings(kind="characters")
    vocab = train_vocabularies(SOURCES * 3, TARGETS * 3, settings, 12)
    model = Seq2SeqSettings(
        vocab_size=vocab.target.vocab_size, d_model=16, n_heads=2, d_ff=16, n_layers=1, max_len=64
    )
    folder.mkdir()
    save_model(folder, build_model(model, seed=seed), model)
    decode = DecodeSettings(beam=2, extra_len=5)
    run = RunSettings(task="translate", tokenizer=settings, model=model, decode=decode)
    (folder / "config.toml").write_text(resolved_toml(run), encoding="utf-8")
    vocab.save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A run, its sources and its references."""
    paths = made_run(tmp_path / "run", 1), tmp_path / "t.de", tmp_path / "t.en"
    for path, lines in zip(paths[1:], (SOURCES, TARGETS), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def test_it_prints_what_the_translator_and_the_metrics_give(
    command: Command, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    run, source, target = files
    out = tmp_path / "out.txt"
    facts = json.loads(command(run, "--source", source, "--target", target, "--json", "--out", out))
    translator = writer_of(open_run(run, device="cpu"))
    outputs = [found.text for found in translator.write(SOURCES)]
    assert out.read_text(encoding="utf-8").split("\n") == [*outputs, ""]
    scores = list(translator.score(zip(SOURCES, TARGETS, strict=True)))
    loss = -sum(s.log_prob for s in scores) / sum(s.n_tokens for s in scores)
    assert facts["n"] == 4
    assert facts["loss"] == pytest.approx(loss, rel=1e-5)
    assert facts["ppl"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert facts["bleu"] == bleu(outputs, TARGETS).value
    assert facts["chrf"] == chrf(outputs, TARGETS).value
    assert "tok:13a" in facts["signatures"]["bleu"]
    assert facts["tokens_per_s"] > 0


def test_progress_of_scoring_is_shown(
    command: Command,
    files: tuple[Path, Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    slow: Any,
) -> None:
    monkeypatch.setattr("headway.cli.evaluate.Progress", lambda: slow)
    run, source, target = files
    command(run, "--source", source, "--target", target)
    done = [line.partition(" 4/4 ") for line in slow.stream.getvalue().splitlines()]
    assert len({stage for stage, found, _ in done if found}) == 2  # the loss and the translations


def test_settings_and_the_beam_reach_the_search(
    command: Command, files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source, target = files
    seen = []

    def spy(opened: LoadedRun, settings: DecodeSettings) -> Writer:
        seen.append(settings)
        return writer_of(opened, settings)

    monkeypatch.setattr("headway.tasks.translate.writer_of", spy)
    command(run, "--source", source, "--target", target, "--beam", 3, "decode.max_len=4")
    assert seen == [DecodeSettings(beam=3, max_len=4, extra_len=5)]


def test_a_file_of_outputs_is_scored_without_a_model(
    command: Command, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, _, target = files
    outputs = ["a Dog ran", "two cats", "", "the man reads a book."]
    path = tmp_path / "hyp.txt"
    path.write_text("\n".join(outputs) + "\n", encoding="utf-8")
    words = ["--hypotheses", path, "--target", target, "--lowercase", "--tokenised", "en"]
    text = command(*words)
    assert f"{bleu(outputs, TARGETS, lowercase=True).value:.2f}" in text
    assert f"{chrf(outputs, TARGETS, lowercase=True).value:.2f}" in text
    tokenised = tokenised_bleu(outputs, TARGETS, "en")
    assert f"{tokenised.value:.2f}" in text
    assert "tok:moses-en" in text
    assert "case:lc" in text
    assert "95 %" in text
    assert "75.00" in text
    assert json.loads(command(*words, "--json")).get("loss") is None


def test_two_systems_are_compared_on_the_same_sentences(
    command: Command, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    run, source, target = files
    good = tmp_path / "good.txt"
    good.write_text("\n".join(TARGETS) + "\n", encoding="utf-8")
    words = ["--source", source, "--target", target, "--against", run, "--json"]
    facts = json.loads(command("--hypotheses", good, *words))
    outputs = [found.text for found in writer_of(open_run(run, device="cpu")).write(SOURCES)]
    wanted = compare_bleu(TARGETS, outputs, TARGETS)
    assert facts["comparison"]["p_value"] == wanted.p_value
    assert facts["comparison"]["difference"]["value"] == wanted.difference.value > 0
    again = command("--hypotheses", good, "--target", target, "--against", good)
    assert "1.000" in figures(again)


def test_pairs_may_be_in_one_file(
    command: Command, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    run, source, target = files
    table = tmp_path / "t.tsv"
    both = zip(SOURCES, TARGETS, strict=True)
    kept = [pair for pair in both if pair[0]]
    table.write_text("".join(f"{a}\t{b}\n" for a, b in kept), encoding="utf-8")
    facts = json.loads(command(run, "--pairs", table, "--json"))
    assert facts["n"] == 3
    words = ("--source", source, "--target", target, "--json")
    assert facts["loss"] != json.loads(command(run, *words))["loss"]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], "--hypotheses"),
        (["RUN"], "FILES --source --target"),
        (["RUN", "--target", "TARGET"], "--source"),
        (["RUN", "--source", "SOURCE"], "data.target --pairs"),
        (["RUN", "train.lr=1", "--pairs", "x"], "train.lr=1 decode.*"),
        (["RUN", "file.txt", "--pairs", "x"], "--pairs file.txt"),
        (["--hypotheses", "SHORT", "--target", "TARGET"], "/short.txt 1 4"),
        (["--hypotheses", "TARGET", "--target", "EMPTY"], "empty"),
        (["--hypotheses", "TARGET", "--target", "TARGET", "--tokenize", "13b"], "13b 13a"),
        (["--hypotheses", "TARGET", "--target", "TARGET", "--tokenised", "xx"], "'xx' en de fr"),
        (["--hypotheses", "TARGET", "--target", "TARGET", "--out", "/dev/null/x"], "/dev/null/x"),
        (["nowhere", "--source", "SOURCE", "--target", "TARGET"], "nowhere tatoeba-de-en"),
    ],
)
def test_a_mistake_is_an_error(
    command: Command,
    files: tuple[Path, Path, Path],
    tmp_path: Path,
    words: list[str],
    facts: str,
) -> None:
    (tmp_path / "short.txt").write_text("one\n")
    (tmp_path / "empty.txt").write_text("")
    names = dict(zip(("RUN", "SOURCE", "TARGET"), files, strict=True))
    names |= {"SHORT": tmp_path / "short.txt", "EMPTY": tmp_path / "empty.txt"}
    with pytest.raises(UserError, match=naming(facts)):
        command(*(names.get(word, word) for word in words))


@pytest.mark.parametrize("option", ["--label", "--text"])
def test_a_column_that_the_test_set_lacks_is_an_error(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ngram_run(tmp_path / "run", "classify")
    with (run / "config.toml").open("a") as file:  # as every trained run has
        file.write('"train.seed" = 1\n')
    labels = headway.load(run).labels
    rows = f"text\tsentiment\nba de go\t{labels[0]}\nfi ko\t{labels[1]}\n"
    (tmp_path / "test.tsv").write_text(rows)
    words = ["evaluate", str(run), str(tmp_path / "test.tsv")]
    assert main([*words, option, "nosuch"]) == 2
    assert "nosuch" in capsys.readouterr().err
    assert main(words) == 0
    with pytest.raises(UserError):
        headway.load(run).evaluate(str(tmp_path / "test.tsv"), **{option[2:]: "nosuch"})
