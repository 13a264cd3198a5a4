"""`model.body=ngram` through the commands: counted, resumed, evaluated, predicted, refused."""

from __future__ import annotations

import json
import re
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


def test_its_score_equals_the_baseline_of_another_model(
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
    assert "n-grams" not in ours["baselines"]
    for name in ("loss", "ppl", "bits_per_byte"):
        assert ours[name] == pytest.approx(others["baselines"]["n-grams"][name], rel=1e-5)


@pytest.mark.parametrize(
    "how", [["decode.sample=false"], ["decode.seed=3"], ["--beam", "3"], ["--scores"]]
)
def test_it_continues_a_text(how: list[str], counted: Path, tmp_path: Path, capsys: Output) -> None:
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


def test_a_plan_without_steps_shows_none(counted: Path, tmp_path: Path, capsys: Output) -> None:
    capsys.readouterr()
    words = ("model.body=ngram", "model.order=2", "--dry-run")
    assert train(tmp_path / "run", str(counted / "text"), *words) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"^steps = [1-9]", printed, re.MULTILINE)
    assert "tokens/s" not in printed
    assert re.search(r"^order = 2 .*model\.order=2$", printed, re.MULTILINE)


def test_info_prints_the_number_of_n_grams(counted: Path, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["info", str(counted / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_grams"] > 100
    assert main(["info", str(counted / "run")]) == 0
    assert re.search(r"\bngram\b.*\b7\b", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.steps=9"], r"train\.steps=9\b.*model\.body=ngram"),
        (["train.lr=0.1"], r"train\.lr=0\.1\b.*model\.body=ngram"),
        (["--budget", "60s"], r"--budget 60s\b.*model\.body=ngram"),
        (["model.n_layers=2"], r"\bn_layers\b.*\bbody='ngram'"),
        (["model.order=0"], r"\border=0\b.*\b1\b"),
    ],
)
def test_options_without_effect_are_an_error(
    words: list[str], said: str, counted: Path, tmp_path: Path, capsys: Output
) -> None:
    assert train(tmp_path / "run", str(counted / "text"), "model.body=ngram", *words) == 2
    assert re.search(said, capsys.readouterr().err.splitlines()[-1])


def test_another_run_does_not_begin_with_it(counted: Path, tmp_path: Path, capsys: Output) -> None:
    words = ["train", "complete", str(counted / "text"), "--from", str(counted / "run")]
    assert main([*words, "--out", str(tmp_path / "run"), "data.unit=line"]) == 2
    assert re.search(r"--from\b.*model\.body=ngram", capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["look", "--text", "the old"], "n-gram"),
        (["export", "--to", "onnx"], "ngram"),
    ],
)
def test_there_is_nothing_to_look_into_or_to_export(
    command: list[str], said: str, counted: Path, tmp_path: Path, capsys: Output
) -> None:
    name, *more = command
    assert main([name, str(counted / "run"), *more, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_too_little_text_for_n_grams_gets_advice_without_more_steps(
    tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "text").write_text("ab\n")
    assert train(tmp_path / "run", str(tmp_path / "text"), "model.body=ngram") == 0
    [end] = read_history(tmp_path / "run").end
    assert "token frequencies" in end["advice"]
    assert "train.steps" not in end["advice"]
    assert end["advice"] in capsys.readouterr().err
