"""Sentence vectors: the loss against sums written out by hand, learning, retrieval, answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data.store import Columns, PreparedData
from headway.data.token_store import TokenStore
from headway.errors import ConfigError, DataError, Stopped, UserError
from headway.metrics.retrieval import bag_retrieval, retrieval, text_keys
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.nn.layout import Layout
from headway.progress import SILENT
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.folder import CONFIG, TOKENIZER
from headway.settings.model import DecoderSettings, EncoderSettings, ModelSettings
from headway.settings.overrides import Overrides
from headway.settings.run import RunSettings, resolved_toml
from headway.settings.start import DistilSettings
from headway.settings.train import TrainSettings
from headway.specs.task_settings import EmbedSettings
from headway.specs.tasks import SPECS
from headway.storage import replace_text
from headway.tasks.contrast import (
    ContrastiveObjective,
    ContrastiveTargets,
    ContrastiveTask,
    PairSide,
    contrastive,
    vectors_of,
)
from headway.tasks.dataset import Batch, EvalPass
from headway.tasks.loaded_run import open_run
from headway.tasks.losses import distil as distil_loss
from headway.tasks.losses import plain as plain_loss
from headway.tasks.objective import MicroBatch
from headway.tasks.preprocess.text import TextPreprocessor
from headway.tasks.task import InferenceRequest
from headway.tasks.text_pairs import word_halves
from headway.training.distributed import Distributed
from headway.training.optim import build_optimizer
from headway.training.resolve import resolve_run
from headway.training.step import Step

CPU = torch.device("cpu")
EMBED = ContrastiveTask(SPECS["embed"])
COLOURS = ["red", "green", "blue", "black", "white", "yellow"]
THINGS = ["house", "boat", "car", "tree", "stone"]
NAMES = {"house": "building", "boat": "ship", "car": "vehicle", "tree": "plant", "stone": "rock"}
PAIRS = [
    (f"i saw a {colour} {thing} {place}", f"there was a {NAMES[thing]} , {colour} , {place}")
    for colour in COLOURS
    for thing in THINGS
    for place in ("here", "there", "at home")
]


def settings_of(folder: Path, *, pairs: bool = True, **more: Any) -> RunSettings:
    folder.mkdir(exist_ok=True)
    path = folder / ("pairs.tsv" if pairs else "texts.txt")
    lines = [f"{a}\t{b}" if pairs else a for a, b in PAIRS]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"pairs" if pairs else "text": (str(path),)}
    train = TrainSettings(batch_tokens=250, micro_tokens=250, label_smoothing=0.0)
    values: dict[str, Any] = {
        "tokenizer": TokenizerSettings(kind="words"),
        "train": train,
        "data": DataSettings(**files, valid_size=20),  # type: ignore[arg-type]
    }
    return RunSettings(task="embed", **(values | more))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("pairs")
    return EMBED.prepare(settings_of(folder), folder / "run", SILENT)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("texts")
    return EMBED.prepare(settings_of(folder, pairs=False), folder / "run", SILENT)


def shape(prepared: PreparedData, family: type[Any] = EncoderSettings, **more: Any) -> Any:
    values: dict[str, Any] = {
        "vocab_size": prepared.tokenizer.vocab_size, "d_model": 32, "n_layers": 2, "n_heads": 2,
        "d_ff": 64, "max_len": 24, "dropout": 0.0, "attention_dropout": 0.0,
        "heads": (), "pooling": "mean", "block_layout": "pre", "positions": "rotary",
        "init": "small",
    }  # fmt: skip
    values |= {"n_segments": 0} if family is EncoderSettings else {}
    return family(**(values | more))


def task_of(
    prepared: PreparedData, folder: Path, model: ModelSettings | None = None, **more: Any
) -> ContrastiveObjective:
    settings = settings_of(folder, model=model or shape(prepared), **more)
    return ContrastiveObjective(settings, prepared)


def texts_in(batch: Batch[ContrastiveTargets]) -> list[Tensor]:
    [given] = batch.streams
    return list(given.layout.split(given.values))


def first_part(task: ContrastiveObjective) -> MicroBatch:
    [part] = task.parts(task.epoch(0)[0], 50)
    return part


def vector(model: Any, tokens: Sequence[int]) -> Tensor:
    layout = Layout.of([len(tokens)])
    return F.normalize(model.pooled(model(torch.tensor(tokens), layout), layout)[0], dim=0)


@pytest.mark.parametrize("family", [EncoderSettings, DecoderSettings])
def test_the_loss_makes_every_text_choose_its_partner(
    prepared: PreparedData, tmp_path: Path, family: type[Any]
) -> None:
    task = task_of(prepared, tmp_path, shape(prepared, family))
    model = build_model(shape(prepared, family), seed=1).eval()
    part = first_part(task)
    tokenizer, rows = prepared.tokenizer, part.rows.rows
    assert prepared.train["other"] is not None
    a, b = (
        [vector(model, [tokenizer.bos, *side[row].tolist(), tokenizer.eos]) for row in rows]
        for side in (prepared.train["text"], prepared.train["other"])
    )
    by_hand = torch.zeros(())
    for i in range(len(rows)):
        like_a = torch.stack([a[i] @ other for other in b]) / 0.05
        like_b = torch.stack([other @ b[i] for other in a]) / 0.05
        by_hand = by_hand - (like_a.log_softmax(0)[i] + like_b.log_softmax(0)[i]) / 2
    assert part.n_targets == len(rows) > 5
    found = plain_loss(task)(model, task.batch(part, CPU, None))
    torch.testing.assert_close(found.sum, by_hand, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pairs", [True, False])
def test_the_fixed_form_costs_the_same(
    prepared: PreparedData, alone: PreparedData, tmp_path: Path, pairs: bool
) -> None:
    data = prepared if pairs else alone
    task, model = task_of(data, tmp_path), build_model(shape(data), seed=1)
    fixed = task.fixed(250)
    shapes, gradients = set(), []
    for step in task.epoch(0):
        [part] = task.parts(step, 250)
        for form in (None, fixed):
            model.zero_grad()
            batch = task.batch(part, CPU, form)
            loss = plain_loss(task)(model, batch).sum
            loss.backward()
            gradients.append((loss.detach(), model.front.tokens.weight.grad.clone()))
        [given] = batch.streams
        shapes.add((len(given.values), given.layout.n_sequences))
        for one, other in zip(*gradients[-2:], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len(shapes) == 1


def test_copies_of_a_partner_are_not_negatives() -> None:
    like_BB = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    apart_BB = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    found = contrastive(like_BB, apart_BB, torch.ones(3))
    two = torch.tensor([1.0, 0.0]).log_softmax(0)[0]
    three = torch.tensor([0.0, 0.0, 1.0]).log_softmax(0)[2]
    torch.testing.assert_close(found, -(2 * two + three))


def test_pairs_that_share_a_text_are_found(tmp_path: Path, prepared: PreparedData) -> None:
    task = task_of(prepared, tmp_path)
    part = first_part(task)
    twice = part.rows._replace(rows=np.array([3, 5, 3, 8]))
    batch = task.batch(MicroBatch(twice, 4), CPU, None)
    expected = ~torch.eye(4, dtype=torch.bool)
    expected[0, 2] = expected[2, 0] = False
    assert torch.equal(batch.targets.negatives_BB, expected)


def trained(task: ContrastiveObjective, model: nn.Module, epochs: int) -> None:
    optimizer = build_optimizer(model, TrainSettings(optimizer="muon"), device="cpu")
    step = Step(model, plain_loss(task), optimizer, Distributed())
    torch.manual_seed(0)
    for epoch in range(epochs):
        for examples in task.epoch(epoch):
            [part] = task.parts(examples, 250)
            step.add(task.batch(part, CPU, None), part.n_targets)
            step.finish(4e-3 * (1 - epoch / epochs))


@pytest.fixture(scope="module")
def model(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    made = build_model(shape(prepared), seed=1)
    trained(task_of(prepared, tmp_path_factory.mktemp("task")), made, 12)
    return made.eval()


def test_trained_on_pairs_it_finds_new_partners(
    prepared: PreparedData, tmp_path: Path, model: nn.Module
) -> None:
    task = task_of(prepared, tmp_path)
    with torch.no_grad():
        untrained = task.evaluate(EvalPass(build_model(shape(prepared)).eval(), CPU, False))
        scores = task.evaluate(EvalPass(model, CPU))
    assert scores["accuracy"] > max(80, untrained["accuracy"])
    assert scores["accuracy"] <= scores["mrr"] <= 100
    assert scores["loss"] < untrained["loss"]
    assert set(scores.baselines["bag of words"]) == {"accuracy", "mrr"}
    assert scores.baselines["bag of words"]["accuracy"] < 100
    with torch.no_grad():  # among few it is easier, for whoever looks
        alone = task.evaluate(EvalPass(model, CPU, max_examples=1))
    assert alone["accuracy"] == alone.baselines["bag of words"]["accuracy"] == 100
    with pytest.raises(Stopped):
        task.evaluate(EvalPass(model, CPU, full=False, should_stop=lambda: True))


def test_texts_alone_are_pairs_with_themselves(alone: PreparedData, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, pairs=False, model=shape(alone, dropout=0.1))
    task = ContrastiveObjective(settings, alone)
    batch = task.batch(first_part(task), CPU, None)
    texts = texts_in(batch)
    for one, other in zip(texts[0::2], texts[1::2], strict=True):
        assert torch.equal(one, other)
    made = build_model(shape(alone, dropout=0.1), seed=1)
    with torch.no_grad():
        before = float(plain_loss(task)(made.train(), batch).sum)
    assert before > 1.0  # the two readings differ
    trained(task, made, 6)
    with torch.no_grad():
        assert float(plain_loss(task)(made, batch).sum) < 0.5 * before
        assert task.evaluate(EvalPass(made.eval(), CPU, full=False))["mrr"] > 0


def test_each_reading_lacks_other_words_where_that_is_wanted(
    alone: PreparedData, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, pairs=False, model=shape(alone))
    task = ContrastiveObjective(replace(settings, embed=EmbedSettings(drop_words=0.4)), alone)
    part, left, all_words = first_part(task), 0, 0
    batch, again = task.batch(part, CPU, None), task.batch(part, CPU, None)
    texts = [text.tolist() for text in texts_in(batch)]
    assert texts == [text.tolist() for text in texts_in(again)]
    for row, one, other in zip(part.rows.rows, texts[0::2], texts[1::2], strict=True):
        whole = alone.train["text"][row].tolist()
        for text in (one, other):
            assert (text[0], text[-1]) == (alone.tokenizer.bos, alone.tokenizer.eos)
            words = iter(whole)
            assert all(token in words for token in text[1:-1])  # in their order
            assert len(text) > 2
            left += len(text) - 2
            all_words += len(whole)
    assert texts[0::2] != texts[1::2]
    assert left / all_words == pytest.approx(0.6, abs=0.1)
    [later] = task.parts(part.rows._replace(epoch=1), 50)
    assert [text.tolist() for text in texts_in(task.batch(later, CPU, None))] != texts


def test_every_other_word_looks_for_the_words_between(alone: PreparedData) -> None:
    one, other = word_halves(alone.valid, alone.tokenizer)
    decode = alone.tokenizer.decode
    for number in range(alone.valid.n):
        words = decode(alone.valid["text"][number].tolist()).split()
        for half, side in enumerate((one, other)):
            assert decode(side["text"][number].tolist()).split() == words[half::2]


def test_texts_too_long_to_read_at_once_are_the_mean_of_their_windows(
    prepared: PreparedData, model: nn.Module, tmp_path: Path
) -> None:
    tokens = list(range(5, 5 + 30))
    tokenizer = prepared.tokenizer
    tokens = [t % tokenizer.vocab_size for t in tokens]
    intake = TextPreprocessor(tokenizer, 12)
    columns = Columns({"text": TokenStore.of([np.array(tokens), np.array(tokens[:4])])})
    cuts, settings = intake.input_dataset(columns), settings_of(tmp_path, model=shape(prepared))
    found = vectors_of(EvalPass(model, CPU), settings, intake, PairSide(columns, cuts))
    _, starts, sizes = cuts.reader.windows
    assert len(starts) > 3
    parts = [
        vector(model, [tokenizer.bos, *tokens[start : start + size], tokenizer.eos])
        for start, size in zip(starts[:-1], sizes[:-1], strict=True)
    ]
    mean = F.normalize(torch.stack(parts).mean(0), dim=0).detach()
    np.testing.assert_allclose(found[0], mean, atol=1e-5)
    assert np.linalg.norm(found, axis=1) == pytest.approx([1.0, 1.0])


def test_in_training_a_long_text_is_read_by_one_of_its_windows(
    prepared: PreparedData, tmp_path: Path
) -> None:
    task = task_of(prepared, tmp_path, shape(prepared, max_len=6))
    seen = set()
    for epoch in range(4):
        for step in task.epoch(epoch):
            if 7 in step.rows:
                place = 2 * step.rows.tolist().index(7)
                batch = task.batch(task.parts(step, 250)[0], CPU, None)
                assert batch.streams[0].layout.longest <= 6
                seen.add(tuple(texts_in(batch)[place].tolist()))
    assert len(seen) > 1


def test_retrieval_counts_ranks() -> None:
    b = np.eye(3, dtype=np.float32)
    a = np.array([[1, 0, 0], [0, 1, 0], [0, 5, 3]], np.float32)
    found = retrieval(a, b, np.arange(3))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.mrr == pytest.approx((1 + 1 + 1 / 2) / 3)
    same = a[:1].repeat(2, 0), b[:1].repeat(2, 0)
    assert retrieval(*same, np.array([4, 4])).accuracy == pytest.approx(1.0)  # a copy is no rival
    tie = retrieval(*same, np.array([4, 5]))  # and of two others each comes first half the time
    assert (tie.accuracy, tie.mrr) == pytest.approx((1 / 2, 1 / 1.5))


def test_the_same_text_has_the_same_key() -> None:
    keys = text_keys(TokenStore.of([[1, 2], [3], [1, 2], [], [1], []]))
    assert keys.tolist() == [0, 1, 0, 2, 3, 2]


def test_the_bag_of_words_is_tf_idf_by_cosine() -> None:
    draw = np.random.default_rng(0)
    sides = [[draw.integers(0, 9, draw.integers(1, 6)).tolist() for _ in range(40)] for _ in "ab"]
    a, b = (np.array([np.bincount(text, minlength=9) for text in side]) for side in sides)
    idf = np.log((1 + 40) / (1 + (b > 0).sum(0))) + 1
    one, other = ((x * idf) / np.linalg.norm(x * idf, axis=1, keepdims=True) for x in (a, b))
    like = one @ other.T
    own = np.diag(like)[:, None]
    keys = text_keys(TokenStore.of(sides[1]))
    rivals = keys[:, None] != keys
    nearer = ((like > own + 1e-6) & rivals).sum(1)
    equal = ((np.abs(like - own) <= 1e-6) & rivals).sum(1)
    found = bag_retrieval(TokenStore.of(sides[0]), TokenStore.of(sides[1]), 9)
    assert equal.max() > 0
    assert found.accuracy == pytest.approx(((nearer == 0) / (1 + equal)).mean())
    assert found.mrr == pytest.approx((1 / (1 + nearer + equal / 2)).mean(), rel=1e-3)


@pytest.fixture
def run(tmp_path: Path, prepared: PreparedData, model: nn.Module) -> tuple[Path, RunSettings]:
    folder = tmp_path / "run"
    settings = settings_of(tmp_path, model=shape(prepared))
    save_weights(folder, model_weights(model))
    prepared.save_tokenizer(folder / TOKENIZER)
    replace_text(folder / CONFIG, resolved_toml(settings))
    return folder, settings


def test_lines_become_vectors(run: tuple[Path, RunSettings], model: nn.Module) -> None:
    made = EMBED.predictor(InferenceRequest(open_run(run[0], device="cpu"), run[1]))
    lines = ["i saw a red house here", "", "there was a ship , blue , there"]
    answers = list(made.answers(lines))
    assert len(answers) == 3
    for answer, line in zip(answers, lines, strict=True):
        assert json.loads(answer.lines()) == answer.to_dict()["vector"]
        assert answer.to_dict()["source"] == line
        assert np.linalg.norm(answer.to_dict()["vector"]) == pytest.approx(1.0, abs=1e-4)


def test_vectors_go_into_a_file(run: tuple[Path, RunSettings], tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    lines = [f"{a}" for a, _ in PAIRS[:7]]
    made = EMBED.predictor(
        InferenceRequest(open_run(run[0], device="cpu"), run[1], {"to": str(path)})
    )
    assert list(made.answers(lines)) == []
    printed = EMBED.predictor(InferenceRequest(open_run(run[0], device="cpu"), run[1])).answers(
        lines
    )
    expected = np.array([answer.to_dict()["vector"] for answer in printed], np.float32)
    found = np.load(path, allow_pickle=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert str(path) in made.summary()
    assert re.findall(r"\d+", made.summary().replace(str(path), "")) == ["7"]
    bad = EMBED.predictor(
        InferenceRequest(
            open_run(run[0], device="cpu"), run[1], {"to": str(tmp_path / "no" / "v.npy")}
        )
    )
    with pytest.raises(UserError, match=r"no/v\.npy"):
        list(bad.answers(lines))


def test_the_nearest_lines_of_a_file_are_found(
    run: tuple[Path, RunSettings], tmp_path: Path
) -> None:
    path = tmp_path / "known.txt"
    path.write_text("".join(f"{b}\n" for _, b in PAIRS) + "\n", encoding="utf-8")
    made = EMBED.predictor(
        InferenceRequest(open_run(run[0], device="cpu"), run[1], {"nearest": str(path), "top": 3})
    )
    answers = list(made.answers([a for a, _ in PAIRS[:20]]))
    right = 0
    for answer, (_, partner) in zip(answers, PAIRS[:20], strict=True):
        cosines = [one["cosine"] for one in answer.to_dict()["nearest"]]
        assert len(cosines) == 3
        assert cosines == sorted(cosines, reverse=True)
        assert (
            answer.lines().split("\n")[0]
            == f"{cosines[0]:.4f}\t{answer.to_dict()['nearest'][0]['text']}"
        )
        right += answer.to_dict()["nearest"][0]["text"] == partner
    assert right >= 15


def test_contradicting_options_are_an_error(run: tuple[Path, RunSettings], tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    for options, found in (
        ({"to": "a", "nearest": "b"}, r"to=.*nearest="),
        ({"top": 3}, r"top=.*nearest="),
        ({"nearest": "b", "top": 0}, r"top=0\b.*\b1\b"),
    ):
        with pytest.raises(UserError, match=found):
            EMBED.predictor(InferenceRequest(open_run(run[0], device="cpu"), run[1], options))
    with pytest.raises(DataError, match="/empty"):
        EMBED.predictor(
            InferenceRequest(
                open_run(run[0], device="cpu"), run[1], {"nearest": str(tmp_path / "empty")}
            )
        )


def test_the_evaluation_reports_a_baseline(run: tuple[Path, RunSettings]) -> None:
    files = run[1].data
    found = EMBED.evaluation(InferenceRequest(open_run(run[0], device="cpu"), run[1]), files)
    assert [row[0] for row in found.rows] == [
        "texts", "accuracy", "MRR", "loss", "bag of words",
    ]  # fmt: skip
    assert found.facts["n"] == len(PAIRS)
    assert found.facts["accuracy"] > found.facts["baselines"]["bag of words"]["accuracy"]


def test_impossible_settings_are_an_error(
    prepared: PreparedData, alone: PreparedData, tmp_path: Path
) -> None:
    asked = Overrides({"model.dropout": 0.0, "train.steps": 5, "embed.drop_words": 0.0})
    settings = settings_of(tmp_path, pairs=False, asked=asked, train=TrainSettings(steps=5))
    with pytest.raises(ConfigError, match=r"model\.dropout=0\b.*embed\.drop_words="):
        resolve_run(settings, alone, CPU)
    settings = settings_of(tmp_path, embed=EmbedSettings(drop_words=0.2), train=TrainSettings())
    with pytest.raises(ConfigError, match=r"embed\.drop_words\b.*\bpairs\b"):
        resolve_run(settings, prepared, CPU)
    found = resolve_run(settings_of(tmp_path, pairs=False, train=TrainSettings()), alone, CPU)
    assert found.embed.drop_words == 0.3
    asked = Overrides({"train.micro_tokens": 100, "train.batch_tokens": 500})
    train = TrainSettings(steps=5, micro_tokens=100, batch_tokens=500)
    with pytest.raises(ConfigError, match=r"train\.micro_tokens=100\b.*train\.batch_tokens=500\b"):
        resolve_run(settings_of(tmp_path, asked=asked, train=train), prepared, CPU)
    found = resolve_run(settings_of(tmp_path, train=TrainSettings()), prepared, CPU)
    assert found.train.batch_tokens == found.train.micro_tokens
    assert found.embed == EmbedSettings()


def test_without_a_loss_of_its_own_a_student_reads_each_text_once(
    alone: PreparedData, tmp_path: Path
) -> None:
    """And is compared with its teacher in every token, not only in its vectors."""
    model = shape(alone)
    settings = replace(settings_of(tmp_path, pairs=False), model=model)
    lesson = DistilSettings(teacher="x", hard=0.0, soft=0.0, cosine=1.0)
    twice, once = (
        ContrastiveObjective(replace(settings, distil=replace(lesson, hard=hard)), alone)  # type: ignore[arg-type]
        for hard in (1.0, 0.0)
    )
    rows = np.arange(5)
    read, again = once.train_dataset.batch(rows, CPU), twice.train_dataset.batch(rows, CPU)
    assert [t.tolist() for t in texts_in(read)] == [t.tolist() for t in texts_in(again)[::2]]
    assert 2 * int(once.train_dataset.lengths.sum()) == int(twice.train_dataset.lengths.sum())
    student, teacher = (build_model(model, seed=n).eval() for n in (1, 2))
    found = distil_loss(once, teacher, lesson)(student, read).sum
    [stream] = read.streams
    with torch.no_grad():
        x_ND, y_ND = (one.states(stream).x_ND for one in (student, teacher))
    expected = (1 - F.cosine_similarity(x_ND, y_ND, dim=-1)).mean() * len(rows)
    torch.testing.assert_close(found.detach(), expected)
    fixed = once.fixed(250)
    filled = once.train_dataset.batch(rows, CPU, fixed)
    in_form = distil_loss(once, teacher, lesson)(student, filled).sum
    torch.testing.assert_close(in_form.detach(), expected)
