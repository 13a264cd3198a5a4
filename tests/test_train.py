"""`headway.train`: from data in memory to a run, in a process that continues afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway.cli.main import main
from headway.errors import ConfigError, DataError, FolderError, Stopped, UserError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings, load_run_settings
from headway.settings.train import TrainSettings
from headway.training.run_folder import RunFolder
from headway.web.pack import unpack
from tests.facts import figures, missing, naming

from .training.labelled import SHORT, TINY, entries, sentiments

TEXTS = [{"review": text, "stars": label, "id": i} for i, (text, label) in enumerate(sentiments())]
SETTINGS: dict[str, Any] = {
    **TINY, **SHORT, "data.valid_size": 12, "tokenizer.kind": "words", "train.steps": 6,
    "train.eval_every": 3, "train.warmup": 2, "train.threads": 1,
}  # fmt: skip


def teach(out: Path, data: object = TEXTS, **more: Any) -> Path:
    settings = SETTINGS | more.pop("settings", {})
    given = {"text": "review", "label": "stars", "device": "cpu", "quiet": True} | more
    return headway.train("classify", data, out=out, settings=settings, **given).folder


def report_of(out: Path) -> dict[str, Any]:
    """The sections of its report."""
    found: dict[str, Any] = unpack((out / "report.html").read_text())["looks"][0]["sections"]
    return found


def resumed(out: Path) -> list[int]:
    """The steps from which the run was resumed."""
    events = [row for row in entries(out) if row["kind"] == "event"]
    return [row["step"] for row in events if figures(row["text"]) == [str(row["step"])]]


def state() -> tuple[Any, ...]:
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    names = sorted(thread.name for thread in threading.enumerate())
    return handlers, names, torch.get_num_threads(), torch.get_rng_state().tolist()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """What training does not compute with here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
def test_a_table_in_memory_becomes_a_run_and_leaves_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(7)
    before = state()
    with torch.no_grad():
        out = teach(tmp_path / "run")
    assert state() == before
    assert capsys.readouterr() == ("", "")
    kept = load_run_settings(out / "config.toml", [])
    assert kept.labels == ("neg", "pos", "so")
    assert (kept.data.text_field, kept.data.label_field) == ("review", "stars")
    assert kept.asked.origin("train.steps").text == "train(settings=…)"
    assert (out / "model.safetensors").exists()
    assert (out / "report.html").exists()
    assert [e["step"] for e in entries(out) if e["kind"] == "valid"] == [3, 6]
    # Again: it is done, with the same weights.
    weights = (out / "model.safetensors").read_bytes()
    assert teach(out) == out
    assert (out / "model.safetensors").read_bytes() == weights
    with pytest.raises(FolderError, match=naming(out, "train.lr 0.5")):
        teach(out, settings={"train.lr": 0.5})
    with pytest.raises(FolderError, match=naming(out, "restart=True")):
        teach(out, TEXTS[:-1])
    assert teach(out, TEXTS[:-1], restart=True) == out
    assert len((out / "given" / "rows.jsonl").read_text().splitlines()) == len(TEXTS) - 1


def test_a_stop_is_saved_and_the_same_call_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.training.loop import Loop

    whole = Loop._one_step

    def interrupted(loop: Any, feed: Any) -> Any:
        if loop.state.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(loop, feed)

    straight = teach(tmp_path / "straight")
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_one_step", interrupted)
        facts = naming("SIGINT headway.train(…", f"out='{tmp_path}/run')")
        with pytest.raises(Stopped, match=facts) as caught:
            teach(tmp_path / "run")
    assert caught.value.saved
    out = teach(tmp_path / "run")
    assert resumed(out) == [5]
    assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def test_another_thread_can_train(tmp_path: Path) -> None:
    found: list[object] = []

    def work() -> None:
        found.append(teach(tmp_path / "run", valid=TEXTS[:9], settings={"train.steps": 2}))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [tmp_path / "run"]
    assert len((tmp_path / "run" / "given" / "valid.jsonl").read_text().splitlines()) == 9


@pytest.mark.parametrize(
    ("given", "error", "facts"),
    [
        ({"text": "reviews"}, ConfigError, 'text="reviews" review'),
        ({"settings": {"train.lrr": 1.0}}, ConfigError, "train.lrr lr"),
        ({"settings": {"data.text_field": "id"}}, ConfigError, "data.text_field"),
        ({"preset": "bert-bas"}, ConfigError, "bert-bas bert-base"),
        ({"label": "id"}, DataError, "120 classify.answer=number"),
        ({"data": None}, DataError, "review"),
        ({"data": None, "label": None, "text": "nowhere.tsv"}, UserError, "nowhere.tsv"),
        ({"data": None, "label": None, "text": None, "valid": TEXTS}, ConfigError, "valid="),
        ({"start": "nowhere"}, UserError, "nowhere"),
        ({"budget": "soon"}, ConfigError, 'budget="soon" 90s'),
        ({"budget": "9s"}, ConfigError, 'train.steps=6 budget="9s"'),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], facts: str
) -> None:
    with pytest.raises(error, match=naming(facts)):
        teach(tmp_path / "run", **({"data": TEXTS} | given))


def test_settings_from_python_are_kept_whatever_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway import api

    forms = (
        {"train.lr": 1e-3, "train.clip": 2.0},
        {"train": {"lr": 1e-3, "clip": 2.0}},
        RunSettings(task="classify", train=TrainSettings(lr=1e-3, clip=2.0)),
    )
    for form in forms:
        assert dict(api._settings(form)) == {"train.lr": 1e-3, "train.clip": 2.0}


def test_data_in_memory_is_checked_as_files_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"review": r["review"], "stars": r["stars"]}) for r in TEXTS]
    (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    found = {"text": "review", "label": "stars"}
    settings = {"data.valid_size": 12, "tokenizer.kind": "words"}
    report = headway.check("classify", TEXTS, settings=settings, **found)
    assert report.ok
    assert report.columns == {"review": "text", "stars": "label", "id": ""}
    files = headway.check("classify", tmp_path / "a.jsonl", settings=settings, **found)
    assert files.fingerprint == report.fingerprint != ""
    words = ["data.text_field=review", "data.label_field=stars", "data.valid_size=12"]
    path = str(tmp_path / "a.jsonl")
    assert main(["check", "classify", "--text", path, "tokenizer.kind=words", *words]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[-5:] == report.lines()[-5:]
    assert figures(report.tables[0]) == ["120"]
    assert not missing(shown.out.splitlines()[0], "a.jsonl JSON 120")
    assert shown.out.splitlines()[1:3] == report.tables[1:3]
    review, stars, unused = (line.split() for line in report.tables[1:])
    assert review[:3] == ["review", "→", "text"]
    assert stars[:3] == ["stars", "→", "label"]
    assert figures(report.tables[2]) == ["3", "40", "40", "40"]
    assert (unused[0], "→" in unused) == ("id", False)
    assert "<td>review</td><td>text</td>" in report._repr_html_()
    assert re.search(r"<td>id</td><td>(?!text<|label<)", report._repr_html_())


def test_empty_cells_and_too_few_rows_are_findings() -> None:
    rows = [
        {"text": None, "label": "a"},
        *({"text": f"w{i}", "label": "ab"[i % 2]} for i in range(40)),
    ]
    report = headway.check("classify", rows)
    assert [(one.level, one.count) for one in report.findings if one.name == "empty"] == [
        ("warning", 1)
    ]
    report = headway.check("classify", rows[:2])
    assert not report.ok
    assert not report.fingerprint
    assert "error: " in str(report)


def test_a_callback_gets_every_row_and_may_end_the_training(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []

    def hear(row: Any) -> object:
        heard.append(dict(row))
        return "enough" if row["kind"] == "valid" and row["step"] == 3 else None

    out = teach(tmp_path / "run", on=hear, settings={"train.steps": 500, "train.eval_every": 3})
    assert heard == entries(out)
    assert [row["kind"] for row in heard if row["kind"] != "train"] == ["valid", "event", "end"]
    assert heard[-2]["text"].endswith(": enough")
    assert figures(heard[-1]["kept"]) == ["step-3"]
    report = report_of(out)
    assert report["log"]["events"][-1][1] == heard[-2]["text"]
    # It has ended: the same call does not resume it.
    weights = (out / "model.safetensors").read_bytes()
    heard.clear()
    teach(out, on=hear, settings={"train.steps": 500, "train.eval_every": 3})
    assert {row["step"] for row in heard} == {3}
    assert (out / "model.safetensors").read_bytes() == weights


def test_an_end_between_evaluations_keeps_the_best_so_far(tmp_path: Path) -> None:
    def hear(row: Any) -> bool:
        return bool(row["kind"] == "train" and row["step"] == 5)

    out = teach(tmp_path / "run", on=hear)
    end = entries(out)[-1]
    assert (end["kind"], end["step"], figures(end["kept"])) == ("end", 5, ["step-3"])
    alone = teach(tmp_path / "alone", on=hear, settings={"train.eval_every": 6})
    assert figures(entries(alone)[-1]["kept"]) == []  # the last step: none was evaluated


def test_an_error_of_the_callback_is_raised_after_saving(tmp_path: Path) -> None:
    mine = ValueError("mine")

    def hear(row: Any) -> None:
        if row["kind"] == "train" and row["step"] == 4:
            raise mine

    with pytest.raises(ValueError, match="mine") as caught:
        teach(tmp_path / "run", on=hear)
    assert caught.value is mine
    straight, out = teach(tmp_path / "straight"), teach(tmp_path / "run")
    assert resumed(out) == [4]
    assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()

    def late(row: Any) -> None:
        if row["kind"] == "end":
            raise mine

    with pytest.raises(ValueError, match="mine"):
        teach(tmp_path / "late", on=late)
    assert (tmp_path / "late" / "report.html").exists()


def test_the_report_exists_during_training_and_after_an_error(tmp_path: Path) -> None:
    out, found = tmp_path / "run", []

    def status() -> str:
        return str(report_of(out)["summary"]["status"])

    def hear(row: Any) -> None:
        if row["kind"] == "train" and row["step"] == 3:
            found.append(status())
        if row["kind"] == "train" and row["step"] == 4:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        teach(out, on=hear, settings={"train.eval_every": 2})
    assert figures(found[0])[0] == "2"
    assert figures(status())[0] == "4"
    card = dict(report_of(out)["summary"]["card"])
    assert card["parameters"]
    assert [value for value in card.values() if "108" in figures(str(value))]  # training texts


def test_a_custom_metric_chooses_the_weights(tmp_path: Path) -> None:
    """By the loss the last of three evaluations is the best; by this one the first is."""
    seen: list[tuple[list[str], list[str]]] = []

    def early(answers: Any, truth: Any) -> float:
        seen.append((list(answers), list(truth)))
        return -float(len(seen))

    def late(answers: Any, truth: Any) -> float:
        return float(len(seen))

    settings = {"train.eval_every": 2, "train.average": 1, "train.metric": "early"}
    given = {"early": early, "late": (late, "lower")}
    out = teach(tmp_path / "run", settings=settings, metrics=given)
    rows = entries(out)
    valid = [row for row in rows if row["kind"] == "valid"]
    assert [row["early"] for row in valid] == [-1.0, -2.0, -3.0]
    assert [row["late"] for row in valid] == [1.0, 2.0, 3.0]
    assert [row["best"] for row in valid] == [True, False, False]
    assert min(valid, key=lambda row: row["loss"])["step"] == 6
    assert figures(rows[-1]["kept"]) == ["step-2"]
    assert {"early", "late", "accuracy"} <= rows[-1]["scores"][rows[-1]["kept"]].keys()
    assert headway.load(out).scores == rows[-1]["scores"][rows[-1]["kept"]]
    assert "early " in headway.load(out)._repr_html_()
    assert all(set(answers) | set(truth) <= {"neg", "pos", "so"} for answers, truth in seen)
    assert len(seen[0][0]) == len(seen[0][1]) == 12
    report = report_of(out)
    assert "early ↑" in [one["name"] for one in report["summary"]["tiles"]]
    assert any("late" in one["title"].split() for one in report["curves"]["charts"])
    kept = load_run_settings(out / "config.toml", [])
    assert kept.asked["metrics.late"] == "lower"
    assert kept.train.metric == "accuracy"  # the metric of a run without these functions
    with pytest.raises(FolderError, match=r"metrics=\{'late': …\}"):
        teach(out, settings=settings, metrics={"early": early})
    assert teach(out, settings=settings, metrics=given) == out
    # The other way round, where less is better.
    seen.clear()
    more = settings | {"train.metric": "late"}
    other = teach(tmp_path / "lower", settings=more, metrics=given)
    valid = [row for row in entries(other) if row["kind"] == "valid"]
    assert [row["best"] for row in valid] == [True, False, False]


def test_a_metric_that_fails_loses_no_step(tmp_path: Path) -> None:
    from headway.tasks.custom_metrics import MetricFailed

    def broken(answers: Any, truth: Any) -> float:
        raise ZeroDivisionError("no answers")

    with pytest.raises(MetricFailed, match=naming("metrics['mine'] ZeroDivisionError answers")):
        teach(tmp_path / "run", metrics={"mine": broken})
    assert (tmp_path / "run" / "checkpoints" / "step-3").exists()
    out = teach(tmp_path / "run", metrics={"mine": lambda answers, truth: 1.0})
    assert resumed(out) == [3]


@pytest.mark.parametrize(
    ("task", "metrics", "facts"),
    [
        ("classify", {"accuracy": max}, "'accuracy' classify"),
        ("classify", {"best": max}, "'best' classify"),
        ("classify", {"a b": max}, "`'a b'`"),
        ("classify", {"mine": 5}, "'mine' 5 lower"),
        ("classify", {"mine": (max, "higher")}, "'mine' 'higher' lower"),
        ("complete", {"mine": max}, "metrics= complete"),
        ("embed", {"mine": max}, "metrics= embed"),
    ],
)
def test_a_wrong_metric_is_an_error(
    tmp_path: Path, task: str, metrics: dict[str, Any], facts: str
) -> None:
    with pytest.raises(ConfigError, match=naming(facts)):
        headway.train(task, [{"text": "a", "label": "b"}], out=tmp_path / "run", metrics=metrics)


def test_the_error_of_an_unknown_metric_shows_the_argument(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("metrics={'polite':")):
        teach(tmp_path / "run", settings={"train.metric": "polite"})


def test_images_in_memory_are_trained_on_and_found_again(tmp_path: Path) -> None:
    noise_NYX = np.random.default_rng(3).integers(0, 90, (36, 8, 8)).astype(np.uint8)
    noise_NYX[::2, :, :4] += 120
    sides = ["left", "right"] * 18
    settings = {
        **TINY, **SHORT, "data.valid_size": 6, "train.steps": 2, "model.image.patch": 4,
        "train.threads": 1,
    }  # fmt: skip

    def again(out: Path) -> None:
        data = {"image": noise_NYX, "label": sides}
        headway.train("classify", data, out=out, settings=settings, device="cpu", quiet=True)

    again(tmp_path / "run")
    kept = load_run_settings(tmp_path / "run" / "config.toml", [])
    assert kept.labels == ("left", "right")
    # A run that was moved is the same run.
    (tmp_path / "run").rename(tmp_path / "moved")
    again(tmp_path / "moved")
    assert resumed(tmp_path / "moved") == [2]


def test_validation_data_is_called_as_the_training_data_is(tmp_path: Path) -> None:
    """A file without names for its columns, and a table with some of its own."""
    from headway.data.named_data import bind_data

    lines = "".join(f"{row['review']}\t{row['stars']}\n" for row in TEXTS)
    (tmp_path / "a.tsv").write_text(lines)
    rows = bind_data("classify", tmp_path / "a.tsv")
    valid = rows.match_columns(bind_data("classify", TEXTS, {"text": "review", "label": "stars"}))
    valid.write(tmp_path, "valid")
    first = json.loads((tmp_path / "valid.jsonl").read_text().splitlines()[0])
    assert first == {"text": TEXTS[0]["review"], "label": TEXTS[0]["stars"]}
    with pytest.raises(ConfigError, match=naming("text media")):
        bind_data("fill", tmp_path / "a.tsv").match_columns(bind_data("fill", [{"image": b"x"}]))


def test_a_restart_keeps_the_data_in_the_run_folder(tmp_path: Path) -> None:
    out = teach(tmp_path / "run", settings={"train.steps": 1})
    kept = load_run_settings(out / "config.toml", [])
    given = DataSettings(text=(str(out / "given" / "rows.jsonl"),))
    RunFolder(out).check(replace(kept, data=given), restart=True)
    assert [path.name for path in out.iterdir()] == ["given"]
    RunFolder(out).check(replace(kept, data=DataSettings(text=("other.tsv",))), restart=True)
    assert list(out.iterdir()) == []


def test_what_was_trained_answers_and_is_scored_on_data_in_memory(tmp_path: Path) -> None:
    settings = SETTINGS | {"train.steps": 30, "train.eval_every": 30}
    found = {"text": "review", "label": "stars"}
    run = headway.train(
        "classify",
        TEXTS,
        out=tmp_path / "run",
        settings=settings,
        device="cpu",
        quiet=True,
        **found,
    )
    assert run.labels == ("neg", "pos", "so")
    scores = run.evaluate(TEXTS)  # its columns are those of the training
    answers = run([row["review"] for row in TEXTS]).labels
    assert scores.answers == answers
    assert scores.truth == [row["stars"] for row in TEXTS]
    right = sum(a == t for a, t in zip(scores.answers, scores.truth, strict=True))
    assert scores["accuracy"] == pytest.approx(100 * right / len(TEXTS))
    assert scores["accuracy"] > 60
    assert set(scores.baselines) == {"majority class", "bag of words"}
    renamed = [{"said": row["review"], "stars": row["stars"]} for row in TEXTS]
    assert run.evaluate(renamed, text="said")["accuracy"] == scores["accuracy"]


def test_documents_with_fields_are_checked_by_their_names() -> None:
    rows = [{"title": f"t {i}", "body": f"some body {i}", "label": "ab"[i % 2]} for i in range(40)]
    report = headway.check("detect", rows, fields=["title", "body"])
    assert report.ok
    assert report.columns == {"title": "title", "body": "body", "label": "label"}


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"out": None}, "out=None"),
        ({"out": ""}, "out=''"),
        ({"on": 3}, "on=3"),
        ({"metrics": 3}, "metrics="),
        ({"settings": [1]}, "settings=[1]"),
    ],
)
def test_arguments_of_a_wrong_type_are_an_error_at_once(
    given: dict[str, Any], facts: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=naming(facts)):
        headway.train("classify", TEXTS, **{"out": tmp_path / "run", **given})
    assert not list(tmp_path.iterdir())


def test_a_missing_column_is_named_as_in_the_call(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("review\tstars\n" + "good film\tup\nbad film\tdown\n" * 9, encoding="utf-8")
    for call in (headway.check, partial(headway.train, out=tmp_path / "run", quiet=True)):
        with pytest.raises(UserError, match=naming('text="revew" /a.tsv review')):
            call("classify", file, text="revew", label="stars")
        with pytest.raises(UserError, match=naming("data.text_field='revew' /a.tsv")):
            call("classify", file, settings={"data": {"text_field": "revew"}})
        with pytest.raises(UserError, match=naming("data.text_field='revew' /a.tsv")):
            call("classify", text=file, settings={"data.text_field": "revew"})
    with pytest.raises(UserError, match=naming('source="revew" /a.tsv review')):
        headway.load("tatoeba-de-en").evaluate(file, source="revew")


def test_several_gpus_as_an_argument_name_the_command_that_uses_them(tmp_path: Path) -> None:
    rows = [{"text": "good", "label": "a"}, {"text": "bad", "label": "b"}]
    with pytest.raises(UserError, match="torchrun"):
        headway.train("classify", rows, out=tmp_path / "run", gpus=2)
