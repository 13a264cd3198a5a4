"""`complete` on the command line: prompts, examples, labels, fields, and mistakes."""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from headway.cli.main import main
from headway.settings.folder import load_run
from headway.settings.run import RunSettings, load_run_settings, resolved_toml, run_settings
from headway.settings.start import DistilSettings, LoraSettings, StartSettings
from headway.settings.task_rows import spec_of
from headway.specs.task_settings import (
    ClassifySettings,
    CompleteSettings,
    EmbedSettings,
    FillSettings,
    TagSettings,
)
from headway.tasks.causal_lm import CausalLMTask
from headway.tasks.loaded_run import open_run
from headway.tasks.task import InferenceRequest
from tests.facts import figures, missing

WORDS = ["the", "old", "red", "house", "tree", "dog", "cat", "sees", "finds", "never", "here"]
MODEL = ["model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.d_ff=32"]
TRAINING = ["train.steps=40", "train.eval_every=40", "train.average=1", "train.batch_tokens=512",
            "data.valid_size=8", "decode.sample=false", "decode.max_len=6"]  # fmt: skip
Output = pytest.CaptureFixture[str]
Command = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: `plain` of lines, and `fields` of titles and bodies."""
    folder = tmp_path_factory.mktemp("complete")
    chosen = random.Random(0)
    lines = [" ".join(chosen.choices(WORDS, k=chosen.randint(3, 8))) for _ in range(80)]
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    rows = [{"title": line.split()[0], "body": line} for line in lines]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of = {
        "plain": ["text", "data.unit=line", "tokenizer.kind=bytes", "model.max_len=96"],
        "fields": ["rows.jsonl", "data.fields=[title,body]", "tokenizer.kind=words"],
    }
    for name, (text, *words) in of.items():
        words = ["train", "complete", "--text", str(folder / text), "--device", "cpu", *words]
        assert main([*words, *MODEL, *TRAINING, "--out", str(folder / name)]) == 0
    return folder


@pytest.fixture
def predict(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> Command:
    """What `headway predict` prints."""

    def predict(run: str, *words: str, lines: str = "the old\n") -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        code = main(["predict", str(folder / run), "--device", "cpu", *words])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return predict


@pytest.fixture
def error_of(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> Callable[..., str]:
    """The message of a command that fails with code 2, on one line."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, lines: str = "the old\n") -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        words = tuple(word.replace("@", f"{folder}/") for word in words)
        assert main([*words, "--device", "cpu"] if words[0] != "check" else list(words)) == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert "error: " in message
        return message

    return run


# Continuing


def test_every_line_is_continued(predict: Command) -> None:
    out = predict("plain", lines="the old\n\ncat fin")
    first, _, last = out.split("\n")[:3]
    assert out.count("\n") == 3
    assert first.startswith("the old")
    assert last.startswith("cat fin")
    assert len(last) == len("cat fin") + 6  # decode.max_len, of bytes
    assert predict("plain", "--scores").split("\t")[1] == f"{first}\n"


def test_json_has_every_token_with_its_log_probability(predict: Command) -> None:
    found = json.loads(predict("plain", "--json"))
    [output] = found["outputs"]
    assert found["source"] == "the old"
    assert len(output["tokens"]) == 6
    assert sum(output["token_log_probs"]) == pytest.approx(output["log_prob"])
    assert f"the old{output['text']}\n" == predict("plain")


def test_streamed_text_is_the_same(predict: Command) -> None:
    lines = "the old\ncat fin\n"
    assert predict("plain", "--stream", lines=lines) == predict("plain", lines=lines)


def test_several_are_the_best_first(predict: Command) -> None:
    rows = [line.split("\t") for line in predict("plain", "--beam", "4", "--n-best", "3",
                                              "--scores").splitlines()]  # fmt: skip
    values = [float(score) for score, _ in rows]
    assert values == sorted(values, reverse=True)
    assert len({text for _, text in rows}) == 3


def test_a_beam_is_searched_for_by_a_run_that_samples_too(
    predict: Command, folder: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(folder / "plain", tmp_path / "run")
    settings = load_run(run)
    drawn = replace(settings, decode=replace(settings.decode, sample=True, temperature=3.0))
    (run / "config.toml").write_text(resolved_toml(drawn))
    greedy = predict("plain", "--beam", "1")
    assert predict(str(run), "--beam", "1") == greedy != predict(str(run))
    assert predict(str(run), "--beam", "1", "decode.sample=true") == predict(str(run))


def test_a_draft_changes_nothing(predict: Command, folder: Path) -> None:
    lines = "the old\ncat fin\n"
    drafted = predict("plain", "--draft", str(folder / "plain"), lines=lines)
    assert drafted == predict("plain", lines=lines)


# Examples in the prompt


def shots(path: Path, *examples: tuple[str, str], names: tuple[str, str]) -> str:
    rows = [json.dumps(dict(zip(names, example, strict=True))) for example in examples]
    path.write_text("\n".join(rows))
    return str(path)


def test_labels_of_examples_are_chosen_from(predict: Command, tmp_path: Path) -> None:
    of = shots(tmp_path / "shots", ("dog", "up"), ("cat", "down"), names=("text", "label"))
    lines = "dog\ncat\ndog\n"
    chosen = predict("plain", "--shots", of, lines=lines).splitlines()
    assert set(chosen) <= {"up", "down"}
    assert chosen[0] == chosen[2]
    rows = [
        json.loads(row)
        for row in predict("plain", "--shots", of, "--json", lines=lines).splitlines()
    ]
    assert [row["label"] for row in rows] == chosen
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1.0)
    label, share = predict("plain", "--shots", of, "--scores").strip().split("\t")
    assert float(share) >= 0.5
    assert label in ("up", "down")


def test_labels_can_be_named_without_examples(predict: Command) -> None:
    [row] = predict("plain", "--labels", "tree, dog,sees", "--json").splitlines()
    found = json.loads(row)
    assert found["probabilities"].keys() == {"tree", "dog", "sees"}
    assert found["label"] == max(found["log_probs"], key=found["log_probs"].get)


def test_prompts_with_answers_are_continued_up_to_the_end_of_the_line(
    predict: Command, tmp_path: Path
) -> None:
    of = shots(tmp_path / "shots", ("the", "old"), ("red", "cat"), names=("prompt", "answer"))
    [row] = predict("plain", "--shots", of, "--json", lines="dog\n").splitlines()
    found = json.loads(row)
    assert found["source"] == "the old\n\nred cat\n\ndog"
    assert predict("plain", "--shots", of, lines="dog\n") == found["outputs"][0]["text"] + "\n"
    assert predict("plain", "--shots", of, "--stream", lines="dog\n") == predict(
        "plain", "--shots", of, lines="dog\n"
    )


# Fields


def test_a_field_is_written_after_the_known_ones(predict: Command) -> None:
    body = predict("fields", lines='{"title": "dog"}\n{}\n').splitlines()
    assert len(body) == 2
    assert body[0].split(" ")[0] in WORDS  # no blank before it
    [row] = predict("fields", "--json", lines='{"title": "dog"}').splitlines()
    found = json.loads(row)
    assert found["field"] == "body"
    assert found["document"] == {"title": "dog", "body": body[0]}
    assert predict("fields", "--field", "body", lines='{"title": "dog"}') == f"{body[0]}\n"
    title = json.loads(predict("fields", "--field", "title", "--json", lines='{"body": "the dog"}'))
    assert title["document"].keys() == {"title", "body"}
    assert predict("fields", "--scores", lines='{"title": "dog"}').split("\t")[1] == f"{body[0]}\n"


def test_the_mark_of_a_field_ends_it(predict: Command) -> None:
    """A title of the training data is one word."""
    found = json.loads(predict("fields", "--field", "title", "--json", lines='{"body": "the dog"}'))
    [output] = found["outputs"]
    assert output["finished"]
    assert len(output["tokens"]) <= 1


def test_a_field_is_answered_before_the_next_line_is_read(folder: Path) -> None:
    run = load_run(folder / "fields")
    writer = CausalLMTask(spec_of("complete")).predictor(
        InferenceRequest(open_run(folder / "fields", device="cpu"), run, {})
    )
    answered = Event()

    def lines() -> Iterator[str]:
        yield '{"title": "dog"}'
        assert answered.wait(20)
        yield '{"title": "cat"}'

    answers = writer.answers(lines(), live=True)
    assert next(answers).to_dict()["document"]["title"] == "dog"
    answered.set()
    assert next(answers).to_dict()["document"]["title"] == "cat"


@pytest.mark.parametrize(
    ("words", "line", "facts"),
    [
        ([], "no json", "1 JSON char"),
        ([], "[1]", '1 {"title":'),
        ([], '{"title": 3}', '1 {"title":'),
        ([], '{"titel": "dog"}', "1 'titel' title"),
        ([], '{"body": "dog"}', "1 body --field title"),
        (["--field", "bodi"], "{}", "bodi body"),
        (["--labels", "a,b"], "{}", "--labels fields"),
        (["--draft", "@fields"], "{}", "--draft fields"),
    ],
)
def test_a_wrong_document_with_fields_is_an_error(
    error_of: Command, words: list[str], line: str, facts: str
) -> None:
    assert not missing(error_of("predict", "@fields", *words, lines=line), facts)


# Mistakes


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--field", "body"], "--field"),
        (["--to", "x.npy"], "--to complete"),
        (["--nearest", "x"], "--nearest complete"),
        (["--alignments"], "--alignments complete"),
        (["--on-long", "cut"], "--on-long complete"),
        (["--stream", "--beam", "2"], "--stream --beam --n-best 1"),
        (["--stream", "--json"], "--stream --json"),
        (["--stream", "--out", "x"], "--stream --out"),
        (["--labels", "a"], "labels 'a'"),
        (["--labels", "a,b", "--stream"], "--stream label"),
        (["--labels", "a,b", "--draft", "@plain"], "--draft label"),
        (["--shots", "missing"], "missing"),
        (["--draft", "@fields"], "@fields @plain vocabulary"),
        (["--n-best", "2"], "--n-best n_best=2 beam=1 beam=2"),
        (["train.lr=1"], "train.lr=1 decode.*"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(
    error_of: Command, folder: Path, words: list[str], facts: str
) -> None:
    error = error_of("predict", "@plain", *words)
    assert not missing(error, facts.replace("@", f"{folder}/"))


def test_a_prompt_longer_than_the_context_is_named(error_of: Command) -> None:
    assert not missing(error_of("predict", "@plain", lines="dog\n" + "the old " * 20), 2, 96)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["train", "complete", "--out", "x"], "FILES"),
        (["train", "detect", "--text", "@rows.jsonl", "--out", "x"], "detect --from data.fields"),
        (["train", "detect", "--text", "@text", "--from", "@plain", "--out", "x"],
         "detect data.fields"),
        (["train", "distil", "--text", "@text", "--out", "x"], "distil --teacher"),
        (["train", "complete", "--text", "@text", "--teacher", "@plain", "--out", "x"],
         "--teacher distil"),
        (["train", "fill", "--text", "@text", "--from", "@plain", "--out", "x"],
         "fill encoder @plain decoder"),
        (["train", "complete", "--text", "@text", "--out", "x", "--from", "@nothing"], "@nothing"),
        (["train", "complete", "--text", "@text", "--out", "x", "fill.mask=0.3"],
         "[fill] complete"),
        (["train", "complete", "--text", "@text", "--out", "x", "complete.contxt=8"],
         "complete.contxt context"),
        (["train", "complete", "--text", "@text", "--out", "x", "complete.drop_fields=2"],
         "drop_fields=2 0 1"),
        (["train", "complete", "--text", "@text", "--out", "x", "start.freeze=1"],
         "start.freeze --from"),
        (["train", "complete", "--text", "@text", "--out", "x", "lora.rank=-1"], "rank=-1 0"),
        (["train", "complete", "--text", "@text", "--out", "x", "train.metric=bleu"],
         "train.metric bleu complete loss ppl"),
        (["train", "complete", "--text", "@text", "--out", "x", "complete.context=80",
          "model.max_len=64"], "complete.context=80 model.max_len=64"),
        (["train", "compleet", "--text", "@text", "--out", "x"], "compleet complete"),
        (["evaluate", "@plain"], "FILES"),
        (["evaluate", "@plain", "--text", "@text", "--lowercase"], "--lowercase complete"),
        (["evaluate", "@plain", "--text", "@text", "train.lr=1"], "train.lr=1 decode.*"),
        (["check", "detect", "--text", "@rows.jsonl"], "detect data.fields"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(error_of: Command, folder: Path, words: list[str], facts: str) -> None:
    assert not missing(error_of(*words), facts.replace("@", f"{folder}/"))


def test_data_is_checked(folder: Path, capsys: Output) -> None:
    assert main(["check", "complete", "--text", str(folder / "text"), "data.unit=line"]) == 0
    assert "80" in figures(capsys.readouterr().out)
    fields = "data.fields=[title,body]"
    assert main(["check", "complete", "--text", str(folder / "rows.jsonl"), fields, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


# config.toml


def test_a_run_can_be_read_back_and_started_from(folder: Path, tmp_path: Path) -> None:
    settings = load_run(folder / "fields")
    assert settings.data.fields == ("title", "body")
    assert settings.asked["data.fields"] == ["title", "body"]
    words = ["train", "complete", "--text", str(folder / "rows.jsonl"), "--from",
             str(folder / "fields"), "data.fields=[title,body]", "lora.rank=2", "--device", "cpu",
             *TRAINING, "train.steps=1", "complete.drop_fields=0.5"]  # fmt: skip
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    found = load_run(tmp_path / "run")
    assert found.start == StartSettings(run=str(folder / "fields"))
    assert found.lora == LoraSettings(rank=2)
    assert found.complete == CompleteSettings(drop_fields=0.5)
    assert found.model == settings.model


def test_the_predicted_field_of_a_file_is_not_read(
    folder: Path, tmp_path: Path, capsys: Output, predict: Command
) -> None:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()[:3]]
    lines = "".join(json.dumps({"title": row["title"]}) + "\n" for row in rows)
    wanted = predict("fields", "--field", "body", lines=lines)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "id": 1}) + "\n" for row in rows))
    assert main(["predict", str(folder / "fields"), str(path), "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert printed.out == wanted
    assert "'id'" in printed.err


@pytest.mark.parametrize(
    "settings",
    [
        RunSettings(task="complete", complete=CompleteSettings(context=9, drop_fields=1 / 3)),
        RunSettings(task="fill", fill=FillSettings(mask=0.3, whole_words=True, keep=0.0)),
        RunSettings(task="classify", labels=('a "b"', "ü\\", "3"),
                    classify=ClassifySettings(balance=True)),
        RunSettings(task="tag", labels=("O", "B-per"), tag=TagSettings(crf=True, scheme="iob1")),
        RunSettings(task="embed", embed=EmbedSettings(temperature=0.1, normalise=False)),
        RunSettings(task="complete", lora=LoraSettings(rank=4, alpha=1 / 3, targets="attention"),
                    start=StartSettings(run="a b", freeze=-1, layer_decay=0.7)),
        RunSettings(task="fill", distil=DistilSettings(teacher="t", layers=2, cosine=0.0)),
    ],
    ids=lambda settings: settings.task,
)  # fmt: skip
def test_every_section_comes_back(settings: RunSettings, tmp_path: Path) -> None:
    text = resolved_toml(settings)
    assert run_settings(tomllib.loads(text)) == settings
    (tmp_path / "config.toml").write_text(text)
    assert load_run_settings(tmp_path / "config.toml", []) == settings
