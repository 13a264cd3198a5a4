"""Tagging: its loss by hand, with and without a CRF, its windows, answers and scores."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headway.data.store import Columns, PreparedData
from headway.data.text_words import WordRule
from headway.data.token_store import TokenStore
from headway.errors import ConfigError, DataError, Stopped
from headway.metrics.spans import span_scores
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.nn.crf import log_likelihood
from headway.nn.layout import Layout
from headway.settings.defaults import propose
from headway.settings.facts import DatasetStats, DeviceInfo, ParentRun
from headway.settings.folder import load_run
from headway.settings.model import EncoderSettings, family_of
from headway.settings.run import RunSettings, load_run_settings, resolved_toml
from headway.settings.task_rows import spec_of
from headway.tasks.causal_lm import CausalLMTask
from headway.tasks.dataset import EvalPass
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.losses import plain as plain_loss
from headway.tasks.objective import EpochItems, MicroBatch
from headway.tasks.tag_answers import TaggingPredictor, sentence_of
from headway.tasks.tags import TaggingObjective, TaggingTask, as_bio
from headway.tasks.task import InferenceRequest
from headway.training.initial_weights import initialize_weights
from headway.training.run import Training
from tests.training.labelled import (
    CPU,
    entries,
    people,
    resolved,
    same_after_stops,
    settings_of,
    trained,
    write_conll,
)

Made = tuple[RunSettings, PreparedData]


def prepared_in(folder: Path, **changes: Any) -> Made:
    text = write_conll(folder / "train.conll", people())
    return resolved(
        TaggingTask(spec_of("tag")), settings_of("tag", text, model__dropout=0.0, **changes), folder
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return prepared_in(tmp_path_factory.mktemp("tag"))


@pytest.fixture(scope="module")
def made_crf(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return prepared_in(tmp_path_factory.mktemp("crf"), tag__crf=True)


def model_of(settings: RunSettings) -> nn.Module:
    assert settings.model is not None
    model = build_model(settings.model, seed=3).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("transitions"):
                weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def tagger_with(model: Any, prepared: PreparedData, settings: Any) -> TaggingPredictor:
    opened = LoadedRun.of(Path("none"), settings, model, prepared.vocab)
    return TaggingPredictor.of(InferenceRequest(opened, settings))


def scores_of(model: Any, prepared: PreparedData, row: int, split: str = "train") -> Tensor:
    """Of the words of one sentence, nothing else, at their first pieces."""
    texts, tokenizer = getattr(prepared, split), prepared.tokenizer
    tokens = [tokenizer.bos, *texts["text"][row].tolist(), tokenizer.eos]
    stream = torch.tensor(tokens), Layout.of([len(tokens)])
    share, sizes = float(model.ngrams.share), texts["pieces"][row].astype(np.int64)
    scores_NC = torch.lerp(model.tags(model(*stream)), model.ngrams(*stream), share)
    return scores_NC[1 + np.cumsum(sizes) - sizes]


@pytest.mark.parametrize("fixed", [False, True], ids=["flat", "with dummies"])
def test_the_loss_is_the_sum_over_the_words(made: Made, fixed: bool) -> None:
    settings, prepared = made
    settings = replace(settings, train=replace(settings.train, label_smoothing=0.2))
    task, model = TaggingObjective(settings, prepared), model_of(settings)
    rows = np.arange(2, 9)
    part = MicroBatch(EpochItems(0, rows), task.train_dataset.n_targets(rows))
    found = plain_loss(task)(model, task.batch(part, CPU, task.fixed(200) if fixed else None))
    loss, nll, count = torch.zeros(()), torch.zeros(()), 0
    tags = prepared.train["tags"]
    assert tags is not None
    for row in rows:
        logs_WC = scores_of(model, prepared, int(row)).log_softmax(-1)
        for logs_C, tag in zip(logs_WC, tags[int(row)].tolist(), strict=True):
            aim_C = torch.full_like(logs_C, 0.2 / (len(logs_C) - 1))
            aim_C[tag] = 0.8
            loss, nll, count = loss - (aim_C * logs_C).sum(), nll - logs_C[tag], count + 1
    assert part.n_targets == count
    torch.testing.assert_close(found.sum, loss, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.nll, nll, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("fixed", [False, True], ids=["flat", "with dummies"])
def test_the_loss_of_a_crf_is_that_of_whole_sentences(made_crf: Made, fixed: bool) -> None:
    settings, prepared = made_crf
    task, model = TaggingObjective(settings, prepared), model_of(settings)
    rows = np.arange(2, 9)
    batch = task.batch(MicroBatch(EpochItems(0, rows), 1), CPU, task.fixed(200) if fixed else None)
    found = plain_loss(task)(model, batch)
    learned_PC = model.head_named("tags").transitions  # type: ignore[operator]
    tags = prepared.train["tags"]
    assert tags is not None
    total = torch.zeros(())
    for row in rows:
        labels = torch.tensor(tags[int(row)].tolist())
        scores_WC = scores_of(model, prepared, int(row))
        total = (
            total - log_likelihood(scores_WC, labels, learned_PC, Layout.of([len(labels)])).sum()
        )
    torch.testing.assert_close(found.sum, total, rtol=1e-5, atol=0.0)
    found.sum.backward()
    assert learned_PC.grad.abs().max() > 0


def test_steps_count_words_and_hold_every_sentence(made: Made) -> None:
    settings, prepared = made
    task = TaggingObjective(settings, prepared)
    steps = task.epoch(0)
    assert sorted(np.concatenate([step.rows for step in steps]).tolist()) == list(
        range(prepared.train.n)
    )
    for step in steps:
        parts = task.parts(step, 60)
        assert sum(p.n_targets for p in parts) == int(
            prepared.train["pieces"].lengths[step.rows].sum()
        )  # type: ignore[union-attr]
    shown = task.show(task.parts(steps[0], 60)[0])[0]
    words = [[w for w, _ in s] for s in people()]
    assert shown["text"].split() in words
    assert "B-per" in shown["tags"]


@pytest.mark.parametrize("crf", [False, True])
def test_scores_are_those_of_each_sentence_alone(made: Made, made_crf: Made, crf: bool) -> None:
    settings, prepared = made_crf if crf else made
    task, model = TaggingObjective(settings, prepared), model_of(settings)
    with torch.no_grad():
        scores = task.evaluate(EvalPass(model, CPU))
        tagger = tagger_with(model, prepared, settings)
        sentences = [example["words"] for example in prepared.valid_examples]
        guesses = [tagger.tags([words])[0] for words in sentences]
    truths = [example["tags"] for example in prepared.valid_examples]
    assert scores["f1"] == pytest.approx(100 * span_scores(truths, guesses)[0].f1)
    assert {one["label"] for one in scores.figures["classes"]} == {"per", "loc"}
    assert scores.baselines["most frequent tag"]["f1"] > 50
    assert scores["loss"] > 0
    found = task.evaluate(EvalPass(model, CPU, calibrate=True)).temperature
    assert (found is None) == crf  # only whole sequences have probabilities there
    assert found is None or found.examples == sum(map(len, truths))
    assert ("calibration" in scores.figures) == (not crf)
    with pytest.raises(Stopped):
        task.evaluate(EvalPass(model, CPU, full=False, should_stop=lambda: True))


def test_a_look_on_the_way_reads_the_first_sentences_only(made_crf: Made) -> None:
    settings, prepared = made_crf
    model = model_of(settings)
    quick = TaggingObjective(settings, prepared, quick_size=5).evaluate(EvalPass(model, CPU, False))
    first = replace(prepared, valid=_first(prepared.valid, 5))
    whole = TaggingObjective(settings, first).evaluate(EvalPass(model, CPU))
    assert dict(quick) == pytest.approx(dict(whole))


def _first(texts: Columns, n: int) -> Columns:
    def cut(store: TokenStore) -> TokenStore:
        return TokenStore(store.tokens[: store.offsets[n]], store.lengths[:n])

    return Columns({name: cut(texts.tokens(name)) for name in texts})


def is_bio(tags: list[str]) -> bool:
    before = ["O", *tags]
    return all(
        b[0] != "I" or (a[0] in "BI" and a[2:] == b[2:]) for a, b in zip(before, tags, strict=False)
    )


@pytest.mark.parametrize("crf", [False, True])
def test_no_impossible_sequence_of_tags_comes_out(made: Made, made_crf: Made, crf: bool) -> None:
    """An untrained model says anything; its raw answers are not all possible."""
    settings, prepared = made_crf if crf else made
    model = model_of(settings)
    with torch.no_grad():
        model.head_named("tags").linear.weight.mul_(50)  # type: ignore[operator]
        sentences = [[w for w, _ in s] for s in people()]
        tagger = tagger_with(model, prepared, settings)
        best = tagger.tags(sentences)
        raw = [
            [settings.labels[i] for i in scores_of(model, prepared, row).argmax(1).tolist()]
            for row in range(20)
        ]
    assert not all(map(is_bio, raw))
    assert all(map(is_bio, best))
    assert [len(tags) for tags in best] == [len(words) for words in sentences]


# Windows


def test_words_of_long_sentences_get_the_scores_of_their_window(made: Made) -> None:
    settings, prepared = made
    assert settings.model is not None
    narrow = replace(settings, model=replace(settings.model, max_len=16))
    model = model_of(settings)
    tagger = tagger_with(model, prepared, narrow)
    words = [w for sentence in people(8) for w, _ in sentence]
    short = ["Ada", "went"]
    found = tagger.tags([words, [], short])
    assert [len(tags) for tags in found] == [len(words), 0, 2]
    assert found[2] == tagger.tags([short])[0]
    assert is_bio(found[0])
    assert re.search(r"\b1\b.*\bwindows\b", tagger.summary().partition("; ")[2])
    strict = replace(narrow, data=replace(narrow.data, on_long="error"))
    with pytest.raises(DataError, match=r"\b1\b.*\b60\b.*\b16\b.*data\.on_long=split"):
        tagger_with(model, prepared, strict).tags([words])


def test_long_sentences_are_trained_in_windows_or_are_an_error(tmp_path: Path) -> None:
    some = people(60)
    long = [[pair for one in some[i : i + 6] for pair in one] for i in range(12)]
    text = write_conll(tmp_path / "t.conll", [*some, *long])
    settings, prepared = resolved(
        TaggingTask(spec_of("tag")), settings_of("tag", text, model__max_len=24), tmp_path
    )
    task = TaggingObjective(settings, prepared)
    assert len(task.train_dataset.lengths) > prepared.train.n
    rows = np.arange(len(task.train_dataset.lengths))
    batch = task.batch(MicroBatch(EpochItems(0, rows), 1), CPU, None)
    tags = prepared.train["tags"]
    assert tags is not None
    assert batch.targets.labels_W.tolist() == tags.tokens.tolist()
    wanted = settings_of("tag", text, data__on_long="error", model__max_len=24)
    with pytest.raises(DataError, match=r"\b24\b.*data\.on_long=split.*model\.max_len"):
        resolved(TaggingTask(spec_of("tag")), wanted, tmp_path / "other")


# Answers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSettings]:
    """A trained tagger with a CRF."""
    folder = tmp_path_factory.mktemp("run")
    text = write_conll(folder / "train.conll", people())
    settings = settings_of(
        "tag", text, train__steps=60, train__eval_every=20, train__lr=8e-3, tag__crf=True,
        model__dropout=0.0,
    )  # fmt: skip
    out = folder / "run"
    assert Training(settings=settings, out=out, device="cpu").train() == []
    assert max(e["f1"] for e in entries(out) if e["kind"] == "valid") > 95
    return out, load_run(out)


def tagger_of(run: tuple[Path, RunSettings]) -> Any:
    return TaggingTask(spec_of("tag")).predictor(
        InferenceRequest(open_run(run[0], device="cpu"), run[1])
    )


def test_sentences_are_answered_line_by_line(run: tuple[Path, RunSettings]) -> None:
    lines = [
        "the mister Ada Turing in Rome",
        "",
        "slowly",
        '{"words": ["mister", "Kurt", "Hopper"]}',
    ]
    answers = list(tagger_of(run).answers(lines))
    assert answers[0].text == "the mister Ada/B-per Turing/I-per in Rome/B-loc"
    assert answers[0].to_dict()["spans"][0] == {
        "type": "per", "first": 2, "last": 3, "text": "Ada Turing", "start": 11, "end": 21,
    }  # fmt: skip
    assert [a.text for a in answers[1:3]] == ["", "slowly"]
    assert answers[3].to_dict()["words"] == ["mister", "Kurt", "Hopper"]
    assert len(answers) == 4


def test_columns_are_answered_with_columns(run: tuple[Path, RunSettings]) -> None:
    words = ["the", "mister", "Ada", "Turing", "in", "Rome", "", "slowly"]
    answers = list(tagger_of(run).answers(f"{word}\tx\tO" if word else "" for word in words))
    tags = ["O", "O", "B-per", "I-per", "O", "B-loc", "", "O"]
    expected = [f"{w}\t{t}" if w else "" for w, t in zip(words, tags, strict=True)]
    assert [a.lines() for a in answers] == expected
    assert answers[2].to_dict() == {"word": "Ada", "tag": "B-per"}


def test_a_broken_list_of_words_is_named() -> None:
    assert sentence_of("{ a b }", "line 1", WordRule(frozenset())).words == ["{", "a", "b", "}"]
    with pytest.raises(DataError, match=r"line 7\b.*\bwords\b"):
        sentence_of('{"words": "no list"}', "line 7", WordRule())


def test_evaluation_of_files(run: tuple[Path, RunSettings], tmp_path: Path) -> None:
    out, settings = run
    test = write_conll(tmp_path / "test.conll", people(20))
    files = replace(settings.data, text=(test,))
    found = TaggingTask(spec_of("tag")).evaluation(
        InferenceRequest(open_run(out, device="cpu"), settings), files
    )
    rows = {name.strip(): (value, remark) for name, value, remark in found.rows}
    assert float(rows["F1"][0].split()[0]) > 95
    assert set(rows) >= {"per", "loc", "most frequent tag", "precision", "recall", "accuracy"}
    assert found.facts["baselines"]["most frequent tag"]["f1"] < found.facts["f1"]
    json.dumps(found.facts)
    strange = write_conll(tmp_path / "odd.conll", [*people(20), [("Gold", "B-metal")]])
    found = TaggingTask(spec_of("tag")).evaluation(
        InferenceRequest(open_run(out, device="cpu"), settings), replace(files, text=(strange,))
    )
    assert found.facts["unknown_tags"] == {"words": 1, "tags": ["B-metal"]}
    copy = tmp_path / "copy"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns("data", "checkpoints"))
    rows = {
        r[0]: r[1:]
        for r in TaggingTask(spec_of("tag"))
        .evaluation(InferenceRequest(open_run(copy, device="cpu"), settings), files)
        .rows
    }
    assert rows["most frequent tag"][0] == "–"


def test_broken_columns_are_named_with_their_line(
    run: tuple[Path, RunSettings], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.conll"
    bad.write_text("a\tO\nalone\nb\tO\n")
    files = replace(run[1].data, text=(str(bad),))
    with pytest.raises(DataError, match=r"bad\.conll, line 2"):
        TaggingTask(spec_of("tag")).evaluation(
            InferenceRequest(open_run(run[0], device="cpu"), run[1]), files
        )


def test_plain_tags_are_scored_by_accuracy(tmp_path: Path) -> None:
    sentences = [[(w, {"O": "X"}.get(t, t[2:].upper())) for w, t in s] for s in people()]
    text = write_conll(tmp_path / "pos.conll", sentences)
    settings, prepared = resolved(TaggingTask(spec_of("tag")), settings_of("tag", text), tmp_path)
    task, model = TaggingObjective(settings, prepared), model_of(settings)
    assert task.metric.name == "accuracy"
    with torch.no_grad():
        scores = task.evaluate(EvalPass(model, CPU))
    assert set(scores) == {"loss", "accuracy"}
    assert {one["label"] for one in scores.figures["classes"]} >= {"X", "PER", "LOC"}
    tagger = tagger_with(model, prepared, settings)
    [answer] = tagger.answers(["Ada went"])
    assert all("/" in word for word in answer.text.split())
    assert "spans" not in answer.to_dict()


def test_settings_without_effect_are_an_error(tmp_path: Path) -> None:
    text = write_conll(tmp_path / "train.conll", people())
    changes = {"train__label_smoothing": 0.1, "tag__crf": True}
    with pytest.raises(ConfigError, match=r"train\.label_smoothing\b.*tag\.crf=true"):
        resolved(TaggingTask(spec_of("tag")), settings_of("tag", text, **changes), tmp_path)


def test_bioes_comes_out_as_bio() -> None:
    assert as_bio(["B-x", "I-x", "E-x", "S-y", "O"]) == ["B-x", "I-x", "I-x", "B-y", "O"]
    assert as_bio(["NOUN", "SYM"]) == ["NOUN", "SYM"]


@pytest.mark.parametrize("crf", [False, True])
def test_a_run_that_is_stopped_and_taken_up_again_ends_the_same(tmp_path: Path, crf: bool) -> None:
    text = write_conll(tmp_path / "train.conll", people())
    settings = settings_of(
        "tag", text, train__steps=12, train__eval_every=5, model__dropout=0.2, tag__crf=crf
    )
    settings, prepared = resolved(TaggingTask(spec_of("tag")), settings, tmp_path)
    assert same_after_stops(settings, prepared, tmp_path)


def test_models_together_answer_as_one_that_is_both(run: tuple[Path, RunSettings]) -> None:
    opened = (open_run(*[run[0]] * n, device="cpu") for n in (1, 2))
    one, two = (
        TaggingTask(spec_of("tag")).predictor(InferenceRequest(runs, run[1])) for runs in opened
    )
    lines = ["the mister Ada Turing in Rome", "slowly"]
    assert [a.text for a in one.answers(lines)] == [a.text for a in two.answers(lines)]


def test_from_an_encoder_steps_are_small_and_much_text_has_less_dropout() -> None:
    """Of as many tokens more and smaller steps learn more; from nothing they stay as large."""
    encoder = EncoderSettings(
        vocab_size=50, d_model=32, n_layers=1, n_heads=2, d_ff=64, dropout=0.0
    )
    begun = ParentRun(name="encoder", task="embed", model=encoder)
    settings = load_run_settings(None, [], {"task": "tag"})

    def proposed(n_tokens: int, begun: ParentRun | None) -> tuple[int, float | None]:
        facts = DatasetStats(
            n=9, n_tokens=n_tokens, longest=9, labels=("O", "B-X", "I-X"), parent=begun
        )
        found = propose(spec_of("tag"), settings, facts, DeviceInfo()).settings
        kept = found["model.dropout"].value if begun else None
        return found["train.batch_tokens"].value, kept  # type: ignore[return-value]

    assert proposed(50_000, begun) == (1024, 0.2)
    assert proposed(400_000, begun) == (1024, 0.1)
    assert proposed(400_000, None) == (4096, None)


def test_a_model_that_continues_text_becomes_a_tagger(tmp_path: Path) -> None:
    """`--from` a run of the task complete: its body goes on, and what it has read tells the tag."""
    lines = "".join(" ".join(word for word, _ in sentence) + "\n" for sentence in people())
    (tmp_path / "text").write_text(lines, encoding="utf-8")
    before = settings_of(
        "complete", str(tmp_path / "text"), data__unit="line", tokenizer__kind="words"
    )
    written, words = resolved(CausalLMTask(spec_of("complete")), before, tmp_path / "complete")
    model = build_model(written.model, seed=5)
    folder = tmp_path / "complete"
    (folder / "config.toml").write_text(resolved_toml(written), encoding="utf-8")
    words.save_tokenizer(folder / "tokenizer.json")
    save_weights(folder, model_weights(model))
    text = write_conll(tmp_path / "train.conll", people())
    given = {"task": "tag", "data.text": [text], "data.valid_size": 12, "start.run": str(folder)}
    given |= {"train.steps": 60, "train.batch_tokens": 256, "train.lr": 5e-3, "model.dropout": 0.0}
    settings, prepared = resolved(
        TaggingTask(spec_of("tag")), load_run_settings(None, [], given), tmp_path
    )
    assert (family_of(settings.model), settings.model.heads) == ("decoder", ("tags",))
    fresh = build_model(settings.model, seed=6)
    initialize_weights(fresh, settings, prepared, lambda text: None)
    ours, theirs = model_weights(fresh), model_weights(model)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
    assert any("blocks" in name for name in ours.keys() & theirs.keys())
    worker = trained(settings, prepared, tmp_path / "steps")
    with torch.no_grad():
        scores = worker.objective.evaluate(EvalPass(worker.model, CPU))
    assert scores["f1"] > 90
