"""Distillation: the student's start, the terms of its loss, what it learns, what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data.store import PreparedData
from headway.errors import ConfigError
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.models.parts.output_heads import ModelInput
from headway.nn.layout import Layout
from headway.nn.loss import LabelSmoothing
from headway.nn.stack import stacks
from headway.progress import SILENT
from headway.settings.facts import ParentRun
from headway.settings.folder import CONFIG, TOKENIZER
from headway.settings.kept_heads import KeptHeads
from headway.settings.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    Seq2SeqSettings,
    StackSettings,
)
from headway.settings.overrides import Overrides
from headway.settings.run import RunSettings, resolved_toml
from headway.settings.start import DistilSettings
from headway.settings.train import TrainSettings
from headway.specs.tasks import SPECS
from headway.storage import replace_text
from headway.tasks import distil, losses
from headway.tasks.causal_lm import CausalLMObjective
from headway.tasks.dataset import Batch, EvalPass
from headway.tasks.distil import (
    compare,
    comparison_line,
    load_teacher,
    start_student,
    student_model,
)
from headway.tasks.label import ClassifyObjective
from headway.tasks.label_kinds import SingleLabel
from headway.tasks.losses import distil as distil_loss
from headway.tasks.losses import pick_layers, soft_loss
from headway.tasks.mask import MaskedLMObjective, MaskedLMTask, MaskedTokenHead
from headway.tasks.masked_text import MaskedTextDataset
from headway.tasks.objective import Objective
from headway.tasks.parent_run import parent_of
from headway.tasks.preprocess.preprocessor import MaskTargets
from headway.tasks.readout import OneClass
from headway.tasks.scores import Scores
from headway.training.distributed import Distributed
from headway.training.optim import build_optimizer
from headway.training.step import Step
from tests.models.variants import SIZES, tiny
from tests.training.test_fill import CPU, settings_of, trained

SHAPES: dict[str, dict[str, Any]] = {
    "fill": {"heads": ("words",), "n_segments": 0},
    "complete": {},
    "classify": {"heads": ("classes",), "n_labels": 3, "n_segments": 0},
}
FAMILY: dict[str, type[Any]] = {
    "fill": EncoderSettings, "complete": DecoderSettings, "classify": EncoderSettings,
}  # fmt: skip


def saved(folder: Path, model: ModelSettings, task: str, made: nn.Module | None = None) -> Path:
    made = made or build_model(model, seed=4)
    save_weights(folder, model_weights(made))
    replace_text(folder / CONFIG, resolved_toml(RunSettings(task=task, model=model)))
    return folder


def run_settings(task: str, teacher: Path, **more: Any) -> RunSettings:
    return RunSettings(task=task, distil=DistilSettings(teacher=str(teacher)), **more)


def test_a_student_starts_from_every_other_layer() -> None:
    assert pick_layers(6, 12) == [0, 2, 4, 6, 8, 10]
    assert pick_layers(2, 4) == [0, 2]
    assert pick_layers(3, 4) == [0, 1, 2]
    assert pick_layers(1, 4) == [0]
    assert pick_layers(4, 4) == [0, 1, 2, 3]


def origin(settings: RunSettings) -> ParentRun:
    found = parent_of(settings)
    assert found is not None
    return found


@pytest.mark.parametrize("family", [EncoderSettings, DecoderSettings, Seq2SeqSettings])
def test_it_has_the_teachers_shape_front_and_heads(tmp_path: Path, family: type[Any]) -> None:
    task = {EncoderSettings: "fill", DecoderSettings: "complete"}.get(family, "translate")
    shape = family(**(SIZES | {"n_layers": 4}))
    teacher = build_model(shape, seed=4)
    folder = saved(tmp_path / "teacher", shape, task, teacher)
    settings = run_settings(task, folder, asked=Overrides({"model.dropout": 0.2}))
    model = student_model(origin(settings), settings)
    assert replace(model, n_layers=4, dropout=0.0, **(
        {"decoder": StackSettings()} if family is Seq2SeqSettings else {})) == shape  # fmt: skip
    assert (model.n_layers, model.dropout) == (2, 0.2)
    student, found = build_model(model, seed=9), []
    start_student(student, settings, found.append)
    theirs = teacher.state_dict()
    for name, tensor in student.state_dict().items():
        old = name
        for number in (1, 0):
            old = old.replace(f"blocks.{number}.", f"blocks.{2 * number}.")
        assert torch.equal(tensor, theirs[old]), name
    assert all(re.search(r"\b1, 3\b.*\b4\b", line) for line in found)


def test_the_student_of_a_pruned_teacher_has_the_heads_of_its_layers(tmp_path: Path) -> None:
    kept = KeptHeads(encoder=((0,), (1,), (2, 3), (3,)), cross=((0, 1), (2,), (1, 2, 3), (0,)))
    shape = Seq2SeqSettings(**(SIZES | {"n_layers": 4}), kept_heads=kept)
    settings = run_settings("translate", saved(tmp_path / "teacher", shape, "translate"))
    model = student_model(origin(settings), settings)
    assert model.kept_heads == KeptHeads(encoder=((0,), (2, 3)), cross=((0, 1), (1, 2, 3)))
    start_student(build_model(model), settings, lambda line: None)


REFUSED: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("fill", "complete", {}, [r"\bfill\b", r"\bcomplete\b"]),
    ("fill", "fill", {"asked": Overrides({"model.n_heads": 2})}, [r"\bn_heads=4\b.* 2\b"]),
    ("fill", "fill", {"layers": 3}, [r"distil\.layers=3\b.* 2\b"]),
]


@pytest.mark.parametrize(("task", "wanted", "more", "said"), REFUSED)
def test_a_teacher_that_does_not_fit_is_an_error(
    tmp_path: Path, task: str, wanted: str, more: dict[str, Any], said: list[str]
) -> None:
    shape = EncoderSettings(**SIZES)
    folder = saved(tmp_path / "teacher", shape, task)
    more = dict(more)
    distil_ = DistilSettings(teacher=str(folder), layers=more.pop("layers", None))
    settings = RunSettings(task=wanted, distil=distil_, **more)
    with pytest.raises(ConfigError) as error:
        student_model(origin(settings), settings)
    for pattern in said:
        assert re.search(pattern, str(error.value)), pattern


def batch_of(task: str) -> Any:
    tokens_N, layout = torch.arange(1, 11), Layout.of([4, 6])
    if task == "fill":
        rows_R = torch.tensor([2, 5, 7])
        weights_R = torch.tensor([1.0, 1.0, 0.0])  # the last is a dummy
        gone = MaskTargets(tokens_N[rows_R], torch.ones(10))
        return Batch((ModelInput(tokens_N, layout),), gone, weights_R, rows_R)
    if task == "complete":
        weights_N = torch.ones(10)
        weights_N[-2:] = 0.0
        return Batch((ModelInput(tokens_N, layout),), tokens_N + 1, weights_N)
    return Batch((ModelInput(tokens_N, layout),), torch.tensor([2, 0]), torch.ones(2))


def task_like(task: str) -> Objective[Any]:
    """One without data: it knows how to read and what that costs."""
    kind = {
        "fill": MaskedLMObjective,
        "complete": CausalLMObjective,
        "classify": ClassifyObjective,
    }[task]
    made: Any = object.__new__(kind)
    made.smoothing = LabelSmoothing(1.0, 0.0)
    if task == "classify":
        made.label_type, made.readout = SingleLabel(tuple("abc"), made.smoothing), OneClass()
        made.augment = lambda model, batch: replace(
            batch, targets=made.label_type.targets(batch.targets)
        )
    if task == "fill":
        made.head = MaskedTokenHead(object.__new__(MaskedTextDataset))
        made.train_dataset = made.head.dataset
    return made  # type: ignore[return-value]


def terms(task: str, student: Any, teacher: Any, batch: Any, temperature: float) -> list[Tensor]:
    """Soft, hard and cosine, a row at a time, as they are defined."""
    [given] = batch.streams
    seen = [model(given.values, given.layout) for model in (student, teacher)]
    if task == "classify":
        both = zip((student, teacher), seen, strict=True)
        states = rows = [m.pooled(x, given.layout) for m, x in both]
        scores = [m.heads["classes"](x) for m, x in zip((student, teacher), rows, strict=True)]
        labels, weights, real = batch.targets, batch.weights_R, batch.weights_R
    elif task == "fill":
        states, rows = seen, [x[batch.rows_R] for x in seen]
        scores = [m.scores(x) for m, x in zip((student, teacher), rows, strict=True)]
        labels, weights, real = batch.targets.targets, batch.weights_R, batch.targets.real_N
    else:
        states = rows = seen
        scores = [m.scores(x) for m, x in zip((student, teacher), rows, strict=True)]
        labels, weights, real = batch.targets, batch.weights_R, batch.weights_R
    soft, hard, cosine = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for s_V, t_V, label, weight in zip(*scores, labels, weights, strict=True):
        p_V, q_V = (t_V / temperature).softmax(0), (s_V / temperature).softmax(0)
        soft = soft + weight * temperature**2 * (p_V * (p_V / q_V).log()).sum()
        hard = hard - weight * s_V.log_softmax(0)[label]
    for s_D, t_D, weight in zip(*states, real, strict=True):
        cosine = cosine + weight * (1 - s_D @ t_D / s_D.norm() / t_D.norm())
    return [soft, hard, cosine / real.sum() * weights.sum()]


@pytest.mark.parametrize("task", SHAPES)
@pytest.mark.parametrize("chunked", [False, True])
def test_the_loss_is_the_sum_of_three_terms(
    task: str, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunked:
        monkeypatch.setattr(losses, "CHUNK_BYTES", {"cpu": 4 * 41 * 2})
    family = {EncoderSettings: "encoder", DecoderSettings: "decoder"}[FAMILY[task]]
    student, teacher = (tiny(family, n_layers=n, **SHAPES[task]) for n in (2, 4))
    batch = batch_of(task)
    soft, hard, cosine = terms(task, student, teacher, batch, 3.0)
    for weights, expected in (
        ((1.0, 0.0, 0.0), soft),
        ((0.0, 1.0, 0.0), hard),
        ((0.0, 0.0, 1.0), cosine),
        ((5.0, 2.0, 1.0), 5 * soft + 2 * hard + cosine),
    ):
        names = dict(zip(("soft", "hard", "cosine"), weights, strict=True))
        settings = DistilSettings(temperature=3.0, **names)
        found = distil_loss(task_like(task), teacher, settings)(student, batch)
        torch.testing.assert_close(found.sum, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.nll, hard, rtol=1e-4, atol=1e-4, check_stride=False)
    gradient = torch.autograd.grad(expected, student.front.tokens.weight)[0]
    student.zero_grad()
    found.sum.backward()
    torch.testing.assert_close(student.front.tokens.weight.grad, gradient, rtol=1e-3, atol=1e-4)
    assert all(weight.grad is None for weight in teacher.parameters())


def given_to(model: nn.Module, task: str, batch: Any) -> list[Tensor]:
    """What each layer reads, seen from outside."""
    found: list[Tensor] = []
    [(_, stack)] = stacks(model)
    hooks = [
        block.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        for block in stack.blocks
    ]
    task_like(task).read(model, batch)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("task", SHAPES)
def test_each_layer_is_to_be_given_what_the_one_it_started_from_is_given(task: str) -> None:
    family = {EncoderSettings: "encoder", DecoderSettings: "decoder"}[FAMILY[task]]
    student, teacher = (tiny(family, n_layers=n, **SHAPES[task]) for n in (2, 4))
    batch = batch_of(task)
    read = task_like(task).read(student, batch)
    mine, its = (given_to(model, task, batch) for model in (student, teacher))
    real_N = torch.ones(len(mine[0])) if read.real_N is None else read.real_N
    apart = [
        ((1 - F.cosine_similarity(mine[a], its[b])) * real_N).sum() / real_N.sum()
        for a, b in ((0, 0), (1, 2))
    ]
    n_targets = len(read.x_RD) if read.weights_R is None else float(read.weights_R.sum())
    settings = DistilSettings(soft=0, hard=0, cosine=0, between=3.0)
    found = distil_loss(task_like(task), teacher, settings)(student, batch)
    expected = 3 * (apart[0] + apart[1]) / 2 * n_targets
    torch.testing.assert_close(found.sum, expected, rtol=1e-4, atol=1e-4)
    gradient = torch.autograd.grad(expected, student.front.tokens.weight)[0]
    found.sum.backward()
    torch.testing.assert_close(student.front.tokens.weight.grad, gradient, rtol=1e-3, atol=1e-4)
    assert all(weight.grad is None for weight in teacher.parameters())


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, RunSettings]:
    """A teacher of four layers that knows its sentences, and the settings of its student."""
    folder = tmp_path_factory.mktemp("school")
    settings = settings_of(folder)
    prepared = MaskedLMTask(SPECS["fill"]).prepare(settings, folder / "data", SILENT)
    shape = EncoderSettings(
        vocab_size=prepared.tokenizer.vocab_size, d_model=32, n_layers=4, n_heads=2, d_ff=64,
        max_len=24, dropout=0.0, attention_dropout=0.0, n_segments=0, heads=("words",),
        init="small", block_layout="pre", positions="rotary",
    )  # fmt: skip
    teacher = build_model(shape, seed=1)
    trained(MaskedLMObjective(replace(settings, model=shape), prepared), teacher, 5)  # type: ignore[arg-type]
    run = saved(folder / "teacher", shape, "fill", teacher)
    prepared.save_tokenizer(run / TOKENIZER)
    wanted = replace(settings, distil=DistilSettings(teacher=str(run)))
    return prepared, replace(wanted, model=student_model(origin(wanted), wanted))


def disagreement(task: Objective[Any], teacher: nn.Module, student: nn.Module) -> float:
    part = task.parts(task.epoch(90)[0], 500)[0]
    batch = task.batch(part, CPU, None)
    with torch.no_grad():
        apart = soft_loss(task.read(student, batch), task.read(teacher, batch), 1.0)
    return float(apart) / part.n_targets


def test_half_the_layers_come_to_agree_with_the_teacher(
    school: tuple[PreparedData, RunSettings],
) -> None:
    prepared, settings = school
    task: Any = MaskedLMObjective(settings, prepared)
    teacher = load_teacher(settings, CPU)
    assert settings.model is not None
    student = build_model(settings.model, seed=2)
    start_student(student, settings, lambda text: None)
    before = disagreement(task, teacher, student)
    weights = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    optimizer = build_optimizer(student, TrainSettings(optimizer="adamw"), device="cpu")
    step = Step(student, distil_loss(task, teacher, settings.distil), optimizer, Distributed())
    for epoch in range(3):
        for examples in task.epoch(epoch):
            parts = task.parts(examples, 60)
            for part in parts:
                step.add(task.batch(part, CPU, None), sum(part.n_targets for part in parts))
            step.finish(3e-3)
    assert disagreement(task, teacher, student) < 0.5 * before
    assert not teacher.training
    for name, tensor in teacher.state_dict().items():
        assert torch.equal(tensor, weights[name])


def test_both_are_compared_in_size_speed_and_score(
    school: tuple[PreparedData, RunSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distil, "TIMED_S", 0.1)
    prepared, settings = school
    task: Any = MaskedLMObjective(settings, prepared)
    assert settings.model is not None
    student = build_model(settings.model)
    facts = compare(load_teacher(settings, CPU), EvalPass(student, CPU), task)
    one, other = facts["teacher"], facts["student"]
    assert other["parameters"] == sum(weight.numel() for weight in student.parameters())
    assert facts["smaller"] == pytest.approx(1 - other["parameters"] / one["parameters"])
    assert facts["faster"] == pytest.approx(other["batches_per_s"] / one["batches_per_s"])
    assert one["scores"]["loss"] < other["scores"]["loss"]
    assert facts["kept"] == pytest.approx(one["scores"]["loss"] / other["scores"]["loss"])
    line = comparison_line(facts)
    assert f"{other['parameters']:,}" in line
    assert f"{one['parameters']:,}" in line
    assert f"{facts['faster']:.2f}" in line
    asked = []

    def evaluate(self: MaskedLMObjective, one: EvalPass) -> Scores:
        asked.append((one.full, one.max_examples))
        return Scores(values={"loss": 1.0})

    monkeypatch.setattr(MaskedLMObjective, "evaluate", evaluate)
    compare(student, EvalPass(student, CPU, full=False, max_examples=7), task)
    assert asked == [(False, 7)] * 2  # where time is short, no more than it is planned for


def test_probabilities_of_both_use_the_same_temperature() -> None:
    """Equal scores cost nothing at any temperature."""
    teacher = tiny("encoder", n_layers=2, **SHAPES["fill"])
    for temperature in (1.0, 4.0):
        settings = DistilSettings(temperature=temperature, hard=0.0)
        loss_of = distil_loss(task_like("fill"), teacher, settings)
        found = loss_of(teacher, batch_of("fill")).sum
        assert float(found.detach()) == pytest.approx(0, abs=1e-4)


def test_other_labels_than_the_teachers_are_an_error(tmp_path: Path) -> None:
    shape = EncoderSettings(**SIZES, heads=("classes",), n_labels=2)
    folder = saved(tmp_path / "teacher", shape, "classify")
    labels = RunSettings(task="classify", model=shape, labels=("bad", "good"))
    replace_text(folder / CONFIG, resolved_toml(labels))
    settings = run_settings("classify", folder, model=shape, labels=("no", "yes"))
    with pytest.raises(ConfigError, match=r"(?=.*\bbad, good\b)(?=.*\bno, yes\b)"):
        load_teacher(settings, CPU)
    load_teacher(replace(settings, labels=("bad", "good")), CPU)


def test_embeddings_may_be_narrower_and_point_where_the_teachers_do(tmp_path: Path) -> None:
    shape = EncoderSettings(**(SIZES | {"n_layers": 4}), heads=(), embedding_norm=True)
    teacher = build_model(shape, seed=4)
    with torch.no_grad():
        # Few directions hold nearly all that tells its words apart.
        front = teacher.front
        for table in (front.tokens, front.positions.table, front.segments):
            table.weight[:, 8:] *= 0.01
        front.norm.weight.uniform_(0.5, 1.5)
        front.norm.bias.normal_()
    folder = saved(tmp_path / "teacher", shape, "embed", teacher)
    settings = run_settings("embed", folder, asked=Overrides({"model.d_embedding": 8}))
    model = student_model(origin(settings), settings)
    student, found = build_model(model, seed=9), []
    start_student(student, settings, found.append)
    assert student.front.tokens.weight.shape[1] == 8
    assert re.search(r"\b8\b", found[-1])
    tokens_N, layout = torch.arange(24), Layout.of([24])
    with torch.no_grad():
        theirs, own = (one.eval().front(tokens_N, layout) for one in (teacher, student))
        strange = build_model(model, seed=9).eval().front(tokens_N, layout)
    like, unlike = (nn.functional.cosine_similarity(x, theirs, dim=-1) for x in (own, strange))
    assert float(like.mean()) > 0.9
    assert float(unlike.mean()) < 0.5
    wide = run_settings("embed", folder, asked=Overrides({"model.d_embedding": 99}))
    with pytest.raises(ConfigError, match=r"d_embedding=99\b.*d_model=32\b"):
        student_model(origin(wide), wide)
