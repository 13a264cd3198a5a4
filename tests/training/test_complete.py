"""Language models: no leak between documents, the loss by hand, windows, fields, resuming."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.data.causal_lm import DEFAULT_EPOCH
from headway.data.store import PreparedData
from headway.data.token_store import TokenStore
from headway.errors import ConfigError, DataError, Stopped
from headway.models.build import build_model
from headway.models.decoder import Decoder
from headway.models.folder import model_weights
from headway.nn.layout import Layout
from headway.progress import SILENT
from headway.settings.model import DecoderSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.tasks.causal_lm import CausalLMObjective, CausalLMTask
from headway.tasks.dataset import READ_AT_ONCE, Batch, EpochSeed, EvalPass
from headway.tasks.losses import plain as plain_loss
from headway.tasks.objective import MicroBatch
from headway.training.distributed import Distributed
from headway.training.initial_weights import initialize_weights
from headway.training.optim import build_optimizer
from headway.training.resolve import resolve_run
from headway.training.step import Step
from headway.training.trainer import Trainer
from tests.training.labelled import CPU, resolved, same_after_stops, settings_of, trained

WORDS = ["the", "old", "red", "house", "tree", "dog", "cat", "sees", "finds", "never", "here"]
Made = tuple[RunSettings, PreparedData]


def write_lines(path: Path, n: int = 60) -> str:
    """A document a line; some of them are longer than a model reads."""
    draw = np.random.default_rng(1)
    lines = [" ".join(draw.choice(WORDS, draw.integers(2, 40))) for _ in range(n)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def write_fields(path: Path, n: int = 60) -> str:
    draw = np.random.default_rng(2)
    rows = []
    for _ in range(n):
        word = str(draw.choice(WORDS))
        body = " ".join([word] * draw.integers(1, 8))
        rows.append({"title": f"{word} story", "date": "here", "body": body})
    del rows[3]["date"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def settings_for(text: str, **more: Any) -> RunSettings:
    plain: dict[str, Any] = {
        "tokenizer__kind": "words", "model__max_len": 16, "train__batch_tokens": 128,
        "train__micro_tokens": 40, "model__dropout": 0.0, "decode__max_len": 8,
    }  # fmt: skip
    plain |= (
        {"data__fields": ["title", "date", "body"]} if "json" in text else {"data__unit": "line"}
    )
    return settings_of("complete", text, **(plain | more))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("plain")
    return resolved(
        CausalLMTask(spec_of("complete")), settings_for(write_lines(folder / "text")), folder
    )


@pytest.fixture(scope="module")
def fielded(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("fields")
    return resolved(
        CausalLMTask(spec_of("complete")), settings_for(write_fields(folder / "text.jsonl")), folder
    )


@pytest.fixture(params=["plain", "fielded"])
def made(request: pytest.FixtureRequest) -> Made:
    found: Made = request.getfixturevalue(request.param)
    return found


def task_of(made: Made) -> CausalLMObjective:
    return CausalLMObjective(*made)


def model_of(settings: RunSettings) -> Decoder:
    assert settings.model is not None
    model = build_model(settings.model, seed=3)
    assert isinstance(model, Decoder)
    return model


def parts_of(task: CausalLMObjective, epoch: int = 0, micro: int = 40) -> list[MicroBatch]:
    return [part for step in task.epoch(epoch) for part in task.parts(step, micro)]


def losses(model: Decoder, batch: Batch[Tensor]) -> list[Tensor]:
    """Of every token, a document each."""
    [given] = batch.streams
    logs_NV = model.scores(model(given.values, given.layout)).log_softmax(-1)
    return list(given.layout.split(-logs_NV.gather(1, batch.targets[:, None])[:, 0]))


# The loss


def test_another_document_of_the_batch_changes_no_bit_of_mine(plain: Made) -> None:
    settings, prepared = plain
    task, model = task_of(plain), model_of(settings).eval()
    part = max(parts_of(task, micro=128), key=lambda part: len(part.rows.rows))
    documents = task.planned(0)[0].example_index[part.rows.rows]
    changed = np.array(prepared.train["text"].tokens)
    store = prepared.train["text"]
    for other in set(documents[1:].tolist()) - {documents[0]}:
        changed[store.offsets[other] : store.offsets[other + 1]] = prepared.tokenizer.encode("tree")
    train = prepared.train.with_stores({"text": TokenStore(changed, store.lengths)})
    task_after = CausalLMObjective(settings, replace(prepared, train=train))
    before, after = (t.batch(part, CPU, None) for t in (task, task_after))
    assert not torch.equal(before.streams[0].values, after.streams[0].values)
    with torch.no_grad():
        ours, theirs = losses(model, before), losses(model, after)
    assert len(documents) > 3
    for document, one, other in zip(documents, ours, theirs, strict=True):
        assert torch.equal(one, other) == (document == documents[0])


def test_the_loss_is_that_of_each_window_by_itself(made: Made) -> None:
    """A window is the tokens of a document from its start on, predicted one after another."""
    task, model = task_of(made), model_of(made[0])
    items = task.train_dataset.for_epoch(EpochSeed(made[0].train.seed, 0))
    for part in parts_of(task)[:4]:
        by_hand, n = torch.zeros(()), 0
        for row in part.rows.rows:
            inputs, labels = items.tokens(np.array([row]))
            x_ND = model(torch.from_numpy(inputs), Layout.of([len(inputs)]))
            logs_NV = model.scores(x_ND)
            target = torch.from_numpy(labels)
            by_hand = by_hand + torch.nn.functional.cross_entropy(logs_NV, target, reduction="sum")
            n += len(labels)
        batch = task.batch(part, CPU, None)
        found = plain_loss(task)(model, batch)
        assert part.n_targets == n == len(batch.targets)
        torch.testing.assert_close(found.sum, by_hand, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.nll, by_hand.detach(), rtol=1e-5, atol=1e-5)


def test_the_fixed_form_costs_the_same(made: Made) -> None:
    task, model = task_of(made), model_of(made[0])
    fixed, shapes = task.fixed(40), set()
    for epoch in range(3):
        for part in parts_of(task, epoch):
            plain, padded = task.batch(part, CPU, None), task.batch(part, CPU, fixed)
            shapes.add((len(padded.targets), padded.streams[0].layout.n_sequences))
            assert padded.weights_R.sum() == part.n_targets
            torch.testing.assert_close(
                plain_loss(task)(model, padded).sum,
                plain_loss(task)(model, plain).sum,
                rtol=1e-5,
                atol=1e-5,
            )
    assert len(shapes) == 1


def gradient(made: Made, micro: int) -> Tensor:
    """Of one step, in fp64 so that only a mistake can make a difference."""
    task, model = task_of(made), model_of(made[0]).double()
    parts = task.parts(task.epoch(1)[0], micro)
    total = sum(part.n_targets for part in parts)
    for part in parts:
        (plain_loss(task)(model, task.batch(part, CPU, None)).sum / total).backward()
    assert (len(parts) > 1) == (micro < 128)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_how_a_step_is_cut_does_not_change_its_gradient(made: Made) -> None:
    whole, cut = gradient(made, 128), gradient(made, 20)
    assert (whole - cut).norm() <= 1e-6 * whole.norm()


def test_an_epoch_predicts_every_token_once(plain: Made) -> None:
    _, prepared = plain
    task = task_of(plain)
    store, eos = prepared.train["text"], prepared.tokenizer.eos
    wanted = sorted([*store.tokens.tolist(), *[eos] * len(store)])
    for epoch in (0, 1):
        batches = [task.batch(part, CPU, None) for part in parts_of(task, epoch)]
        assert sorted(t for batch in batches for t in batch.targets.tolist()) == wanted
        assert max(n for batch in batches for n in batch.streams[0].layout.known_lengths()) == 16


# Validation


def test_validation_is_the_sum_over_windows(made: Made) -> None:
    settings, prepared = made
    task, model = task_of(made), model_of(settings).eval()
    nll, n, source = 0.0, 0, task.valid_dataset.source
    with torch.no_grad():
        for number, length in enumerate(source.lengths(DEFAULT_EPOCH).tolist()):
            for start in range(0, length, 16):
                size = min(16, length - start)
                inputs, labels = source.read(
                    DEFAULT_EPOCH, np.array([number]), np.array([start]), np.array([size])
                )
                logs_NV = model.scores(model(torch.from_numpy(inputs), Layout.of([size])))
                target = torch.from_numpy(labels)
                nll += float(torch.nn.functional.cross_entropy(logs_NV, target, reduction="sum"))
                n += size
        scores = task.evaluate(EvalPass(model, CPU))
    values = scores
    assert values["loss"] == pytest.approx(nll / n, rel=1e-5)
    assert values["ppl"] == pytest.approx(math.exp(nll / n), rel=1e-5)
    if settings.data.fields:
        assert "bits_per_byte" not in values
    else:
        n_bytes = sum(len(example["text"].encode()) for example in prepared.valid_examples)
        assert values["bits_per_byte"] == pytest.approx(nll / math.log(2) / n_bytes, rel=1e-5)
    assert len(scores.samples) == 3
    first = scores.samples[0]["source"]
    shown = prepared.valid_examples[0]
    assert " ".join(
        shown[name] for name in settings.data.fields or ["text"] if name in shown
    ).startswith(first)
    assert scores.samples[0].keys() == {"source", "target", "output"}


def test_validation_is_the_same_in_batches_of_any_size(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for size in (8192, 20):
        monkeypatch.setitem(READ_AT_ONCE, "cpu", size)
        with torch.no_grad():
            task, model = task_of(made), model_of(made[0]).eval()
            found.append(task.evaluate(EvalPass(model, CPU, full=False))["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_an_evaluation_can_be_cancelled(plain: Made) -> None:
    with pytest.raises(Stopped), torch.no_grad():
        task_of(plain).evaluate(
            EvalPass(model_of(plain[0]).eval(), CPU, full=False, should_stop=lambda: True)
        )


def test_a_context_may_be_shorter_than_a_sample(tmp_path: Path) -> None:
    settings = settings_for(write_lines(tmp_path / "text"), model__max_len=8)
    settings, prepared = resolved(CausalLMTask(spec_of("complete")), settings, tmp_path)
    task = CausalLMObjective(settings, prepared)
    with torch.no_grad():
        task.evaluate(EvalPass(model_of(settings).eval(), CPU, full=False))


def test_examples_can_be_shown(plain: Made) -> None:
    task = task_of(plain)
    [part, *_] = parts_of(task)
    shown = task.show(part)
    assert len(shown) == len(part.rows.rows)
    assert all(set(one["text"].split()) <= set(WORDS) for one in shown)


# Learning


def test_a_little_text_is_learned_by_heart(tmp_path: Path) -> None:
    lines = ["the old dog never sees the red house", "a cat finds one small tree here"] * 30
    (tmp_path / "text").write_text("".join(f"{line} {i % 3}\n" for i, line in enumerate(lines)))
    text = str(tmp_path / "text")
    settings = settings_for(text, train__steps=60, data__valid_text=[text])
    settings, prepared = resolved(CausalLMTask(spec_of("complete")), settings, tmp_path)
    task, model = CausalLMObjective(settings, prepared), model_of(settings)
    step = Step(
        model, plain_loss(task), build_optimizer(model, settings.train, device="cpu"), Distributed()
    )
    for epoch in range(10):
        for examples in task.epoch(epoch):
            parts = task.parts(examples, 128)
            for part in parts:
                step.add(task.batch(part, CPU, None), sum(part.n_targets for part in parts))
            step.finish(1e-2)
    with torch.no_grad():
        scores = task.evaluate(EvalPass(model.eval(), CPU))
    assert scores["loss"] < 0.35  # log 2 for the first word and log 3 for the last, of nine or so


@pytest.mark.parametrize("kind", ["plain", "fields"])
def test_a_run_that_is_stopped_and_taken_up_again_ends_the_same(tmp_path: Path, kind: str) -> None:
    more = {"train__steps": 14, "train__eval_every": 5, "train__save_every": 2}
    if kind == "plain":
        text = write_lines(tmp_path / "text")
    else:
        text = write_fields(tmp_path / "text.jsonl")
    settings = settings_for(text, **more, model__dropout=0.2, train__lr=1e-3)
    settings, prepared = resolved(CausalLMTask(spec_of("complete")), settings, tmp_path)
    assert same_after_stops(settings, prepared, tmp_path)
    written = [
        {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.*"))
         if path.is_file()}
        for folder in (tmp_path / "whole/checkpoints", tmp_path / "parts/checkpoints")
    ]  # fmt: skip
    assert written[0]
    assert written[0] == written[1]


# Settings


@pytest.mark.parametrize("fields", [False, True])
def test_what_is_left_open_is_chosen(tmp_path: Path, fields: bool) -> None:
    text = (write_fields if fields else write_lines)(tmp_path / ("t.jsonl" if fields else "t"))
    plain = RunSettings(task="complete", data=settings_for(text).data)
    prepared = CausalLMTask(spec_of("complete")).prepare(plain, tmp_path, SILENT)
    found = resolve_run(plain, prepared, CPU)
    assert isinstance(found.model, DecoderSettings)
    longest = int(
        CausalLMObjective(found, prepared).train_dataset.source.lengths(DEFAULT_EPOCH).max()
    )
    assert found.model.max_len == longest
    assert (found.model.positions, found.model.dropout) == ("rotary", 0.2)
    assert (found.train.metric, found.train.optimizer) == ("loss", "muon")
    assert found.decode.sample
    assert f"{prepared.train.n:,} " in CausalLMTask(spec_of("complete")).describe(prepared)
    assert found.train.steps == 100
    if fields:
        marks = [prepared.tokenizer.special(f"</{name}>") for name in ("title", "date", "body")]
        assert None not in marks


def test_impossible_settings_are_an_error(tmp_path: Path, plain: Made) -> None:
    text = write_lines(tmp_path / "text")
    for more, found in (
        ({"train__metric": "bleu"}, r"train\.metric='bleu'.*bits_per_byte"),
        ({"model__family": "encoder"}, r"(?=.*\bcomplete\b)(?=.*\bdecoder\b)(?=.*\bencoder\b)"),
        ({"model__vocab_size": 7}, r"model\.vocab_size.*tokenizer\.vocab_size"),
    ):
        with pytest.raises(ConfigError, match=found):
            resolve_run(settings_for(text, **more), plain[1], CPU)
    settings = resolve_run(settings_for(text, complete__context=40), plain[1], CPU)
    with pytest.raises(ConfigError, match=r"complete\.context=40\b.*model\.max_len=16\b"):
        CausalLMTask(spec_of("complete")).objective(settings, plain[1])
    with pytest.raises(ConfigError, match=r"context=1\b.*\b2\b"):
        settings_for(text, complete__context=1)


# Word vectors


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    draw = np.random.default_rng(0)
    rows = [f"{word} {' '.join(f'{x:.4f}' for x in draw.normal(0, 7, 32))}" for word in WORDS[:6]]
    (tmp_path / "vectors.txt").write_text("\n".join([*rows, f"unheard {'0.5 ' * 32}"]) + "\n")
    return str(tmp_path / "vectors.txt")


@pytest.mark.parametrize("tuned", [False, True])
def test_word_vectors_start_the_model_and_stay_where_they_are_frozen(
    tmp_path: Path, vectors: str, tuned: bool
) -> None:
    settings = settings_for(
        write_lines(tmp_path / "text"), model__embeddings=vectors, train__steps=3,
        model__tune_embeddings=tuned,
    )  # fmt: skip
    settings, prepared = resolved(CausalLMTask(spec_of("complete")), settings, tmp_path)
    found: list[str] = []
    fresh = Trainer(settings, prepared, Distributed(), found.append).model
    n = prepared.tokenizer.vocab_size
    [line] = found
    assert vectors in line
    assert re.findall(r"\d+%?", line.replace(vectors, "")) == ["6", f"{6 / n:.0%}"]
    weight_VD = fresh.front.tokens.weight.detach().clone()  # type: ignore[union-attr]
    ids = [prepared.tokenizer.encode(word)[0] for word in WORDS[:6]]
    read_WD = torch.tensor(
        [
            [float(x) for x in line.split()[1:]]
            for line in Path(vectors).read_text().splitlines()[:6]
        ]
    )
    assert settings.model is not None
    usual = model_weights(build_model(settings.model, seed=settings.train.seed))
    std = float(usual["front.tokens.weight"].std())
    torch.testing.assert_close(weight_VD[ids], read_WD * (std / read_WD.std(correction=0)))
    weights = model_weights(trained(settings, prepared, tmp_path / "run").model)
    kept = torch.equal(weights["front.tokens.weight"], weight_VD)
    assert kept != tuned


def test_word_vectors_of_another_width_are_refused(tmp_path: Path, vectors: str) -> None:
    settings = settings_for(
        write_lines(tmp_path / "text"), model__embeddings=vectors, model__d_model=16
    )
    settings, prepared = resolved(CausalLMTask(spec_of("complete")), settings, tmp_path)
    with pytest.raises(DataError, match=r"model\.d_model=16\b.*model\.d_model=32\b"):
        initialize_weights(model_of(settings), settings, prepared, lambda text: None)
