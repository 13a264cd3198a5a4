"""`model.body=ngram` through the commands: counted, resumed, evaluated, predicted, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.settings.folder import load_run
from headway.tasks.history import read_history
from tests.training.test_complete import write_fields, write_lines

Output = pytest.CaptureFixture[str]
SMALL = ["tokenizer.kind=words", "data.valid_size=8", "model.max_len=16", "--device", "cpu"]
SHAPE = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=16"]


def train(out: Path, text: str, *words: str) -> int:
    given = ["train", "complete", text, "--out", str(out), "data.unit=line", *SMALL, *words]
    return main(given)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    assert train(folder / "run", write_lines(folder / "text"), "model.body=ngram") == 0
    return folder


def test_it_is_counted_without_a_step(counted: Path, capsys: Output) -> None:
    settings = load_run(counted / "run")
    assert settings.train.steps == 0
    assert settings.model.order == 7  # of so few words
    history = read_history(counted / "run")
    [end] = history.end
    assert list(end["baselines"]) == ["token frequencies"]  # it is the other one itself
    assert not list((counted / "run").glob("checkpoints/*"))


def test_the_same_command_again_gives_the_same_bytes(counted: Path) -> None:
    before = (counted / "run" / "model.safetensors").read_bytes()
    assert train(counted / "run", str(counted / "text"), "model.body=ngram") == 0
    assert (counted / "run" / "model.safetensors").read_bytes() == before


def test_what_it_scores_is_the_baseline_of_another_model(
    counted: Path, tmp_path: Path, capsys: Output
) -> None:
    assert train(tmp_path / "run", str(counted / "text"), *SHAPE, "train.steps=2") == 0
    found = []
    for run in (counted / "run", tmp_path / "run"):
        capsys.readouterr()
        words = ["evaluate", str(run), str(counted / "text"), "--device", "cpu", "--json"]
        assert main(words) == 0
        found.append(json.loads(capsys.readouterr().out))
    ours, others = found
    assert "ngram_loss" not in ours
    for name in ("loss", "ppl", "bits_per_byte"):
        assert ours[name] == pytest.approx(others[f"ngram_{name}"], rel=1e-5)


@pytest.mark.parametrize(
    "how", [["decode.sample=false"], ["decode.seed=3"], ["--beam", "3"], ["--scores"]]
)
def test_it_goes_on_with_a_text(
    how: list[str], counted: Path, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "prompts").write_text("the old\nnever\n\n")
    capsys.readouterr()
    words = ["predict", str(counted / "run"), str(tmp_path / "prompts"), "decode.max_len=5", *how]
    assert main([*words, "--device", "cpu"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_documents_with_fields(tmp_path: Path, capsys: Output) -> None:
    text = write_fields(tmp_path / "text.jsonl")
    words = ["train", "complete", "--text", text, "--out", str(tmp_path / "run"), *SMALL]
    assert main([*words, "data.fields=[title,date,body]", "model.body=ngram", "model.order=3"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--text", text, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["body_given_loss"] < found["body_alone_loss"]


def test_a_plan_says_that_there_are_no_steps(counted: Path, tmp_path: Path, capsys: Output) -> None:
    capsys.readouterr()
    words = ("model.body=ngram", "model.order=2", "--dry-run")
    assert train(tmp_path / "run", str(counted / "text"), *words) == 0
    printed = capsys.readouterr().out
    assert "counted, in one pass" in printed
    assert "order = 2  # asked: model.order=2" in printed


def test_info_tells_how_many_n_grams(counted: Path, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["info", str(counted / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_grams"] > 100
    assert main(["info", str(counted / "run")]) == 0
    assert "of up to 7 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.steps=9"], "train.steps=9 has no effect with model.body=ngram"),
        (["train.lr=0.1"], "train.lr=0.1 has no effect"),
        (["--budget", "60s"], "--budget 60s has no effect"),
        (["model.n_layers=2"], "n_layers has no effect with body='ngram'"),
        (["model.order=0"], "order=0 must be at least 1"),
    ],
)
def test_what_has_no_effect_is_refused(
    words: list[str], said: str, counted: Path, tmp_path: Path, capsys: Output
) -> None:
    assert train(tmp_path / "run", str(counted / "text"), "model.body=ngram", *words) == 2
    assert said in capsys.readouterr().err


def test_another_run_does_not_begin_with_it(counted: Path, tmp_path: Path, capsys: Output) -> None:
    words = ["train", "complete", str(counted / "text"), "--from", str(counted / "run")]
    assert main([*words, "--out", str(tmp_path / "run"), "data.unit=line"]) == 2
    assert "counted anew" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["look", "--text", "the old"], "counts n-grams"),
        (["export", "--to", "onnx"], "has the body ngram"),
    ],
)
def test_there_is_nothing_to_look_into_or_to_export(
    command: list[str], said: str, counted: Path, tmp_path: Path, capsys: Output
) -> None:
    name, *more = command
    assert main([name, str(counted / "run"), *more, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_too_little_text_for_n_grams_is_said_and_not_with_more_steps(
    tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "text").write_text("ab\n")
    assert train(tmp_path / "run", str(tmp_path / "text"), "model.body=ngram") == 0
    said = capsys.readouterr().err
    assert "a baseline is better than this model" in said
    assert "What helps: more text. See" in said
