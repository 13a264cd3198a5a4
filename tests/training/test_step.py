from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headway.data.batches import FixedShapes, StepPlan, fixed_shapes
from headway.models.build import build_model
from headway.models.parts.front import set_compute_dtype
from headway.nn.loss import LabelSmoothing
from headway.nn.stack import stacks
from headway.settings.model import Seq2SeqSettings
from headway.settings.presets import preset
from headway.settings.train import TrainSettings
from headway.tasks.objective import TaskLoss
from headway.tasks.seq2seq_dataset import Seq2SeqDataset
from headway.training.distributed import Distributed
from headway.training.optim import build_optimizer
from headway.training.step import Step
from tests.tasks.written import pair_items

SMOOTHING = LabelSmoothing.of(0.1, 100)
N_PAIRS = 60


@pytest.fixture
def corpus() -> tuple[Seq2SeqDataset, StepPlan]:
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 12, (2, N_PAIRS))
    tokens = (np.split(draw.integers(3, 100, n.sum()), np.cumsum(n)[:-1]) for n in lengths)
    items = pair_items(*tokens)
    plan = StepPlan(
        source_lengths=lengths[0] + 1,
        target_lengths=lengths[1] + 1,
        source_tokens=10_000,
        target_tokens=10_000,
        seed=1,
    )
    return items, plan


def loss_of(model: Any, batch: Any) -> TaskLoss:
    source, target = batch.streams
    x_ND = model(source.values, source.layout, target.values, target.layout)
    return TaskLoss(*model.head.loss(x_ND, batch.targets.targets_N, SMOOTHING, batch.weights_R))


def made(
    device: torch.device,
    dropout: float = 0.0,
    loss: Callable[..., TaskLoss] = loss_of,
    half: bool = False,
    model: dict[str, Any] | None = None,
    **kw: Any,
) -> Step:
    shape = replace(preset("transformer-test"), dropout=dropout, d_model=64)
    if model is not None:
        shape = Seq2SeqSettings(vocab_size=shape.vocab_size, n_layers=2, dropout=dropout, **model)
    built = build_model(shape, device=device).train()
    if kw.get("recorded") or half:
        set_compute_dtype(
            built, torch.bfloat16
        )  # what kernels can do that read lengths on the device
    settings = TrainSettings(optimizer="adam")
    capturable = bool(kw.get("recorded"))
    optimizer = build_optimizer(built, settings, device=device, capturable=capturable)
    return Step(built, loss, optimizer, Distributed(device=device), **kw)


def gradient(step: Step) -> torch.Tensor:
    found = step.sums or [w.grad for w in step.weights if w.grad is not None]
    return torch.cat([g.flatten() for g in found])


def added(
    step: Step,
    corpus: tuple[Seq2SeqDataset, StepPlan],
    tokens: int,
    fixed: FixedShapes | None = None,
) -> int:
    """Add a whole epoch in parts of so many tokens; returns the number of parts."""
    items, plan = corpus
    rows = np.arange(N_PAIRS)
    parts = plan.cut(rows, tokens, tokens)
    for part in parts:
        batch = items.batch(part, step.ranks.device, fixed)
        step.add(batch, plan.n_targets(rows))
    return len(parts)


def test_the_gradient_does_not_depend_on_how_a_step_is_cut(
    corpus: tuple[Seq2SeqDataset, StepPlan], device: torch.device
) -> None:
    found, numbers = [], []
    for tokens in (10_000, 240, 60, 14):
        step = made(device)
        numbers.append(added(step, corpus, tokens))
        found.append(gradient(step).double())
    assert numbers[0] == 1
    assert numbers[-1] > 20
    for other in found[1:]:
        # A GPU adds up in another order for every shape.
        bound = 1e-6 if device.type == "cpu" else 2e-6
        assert (other - found[0]).norm() <= bound * found[0].norm()


def test_the_fixed_form_gives_the_same_gradient(
    corpus: tuple[Seq2SeqDataset, StepPlan], device: torch.device
) -> None:
    plain, fixed = made(device), made(device)
    added(plain, corpus, 60)
    added(fixed, corpus, 60, fixed_shapes(corpus[1], 60, 60, longest=13))
    assert (gradient(plain) - gradient(fixed)).norm() <= 2e-6 * gradient(plain).norm()


def test_logged_numbers_are_means_over_the_targets(
    corpus: tuple[Seq2SeqDataset, StepPlan], device: torch.device
) -> None:
    step = made(device)
    items, plan = corpus
    rows = np.arange(N_PAIRS)
    whole = items.batch(rows, device)
    with torch.no_grad():
        loss, nll = (x / plan.n_targets(rows) for x in loss_of(step.model, whole))
    added(step, corpus, 60)
    norm = gradient(step).norm()
    step.finish(1e-3)
    logged = torch.tensor([loss, nll, norm], dtype=torch.float64)
    torch.testing.assert_close(step.logged.cpu(), logged, rtol=1e-5, atol=0.0)


def weights(step: Step) -> torch.Tensor:
    return torch.cat([w.detach().flatten() for w in step.weights])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_step_that_is_not_a_number_changes_nothing_and_is_counted(
    corpus: tuple[Seq2SeqDataset, StepPlan], device: torch.device, poison: float
) -> None:
    bad = False

    def loss(model: nn.Module, batch: Any) -> TaskLoss:
        found = loss_of(model, batch)
        return TaskLoss(found.sum * poison, found.nll) if bad else found

    step = made(device, loss=loss)
    added(step, corpus, 10_000)
    step.finish(1e-3)
    before, moments = weights(step), step.optimizer.state[step.weights[0]]["exp_avg"].clone()
    bad = True
    for _ in range(3):
        added(step, corpus, 60)
        step.finish(1e-3)
    assert torch.equal(before, weights(step))
    assert torch.equal(moments, step.optimizer.state[step.weights[0]]["exp_avg"])
    assert step.bad.tolist() == [3, 3]
    bad = False
    added(step, corpus, 60)
    step.finish(1e-3)
    assert step.bad.tolist() == [0, 3]
    assert not torch.equal(before, weights(step))


def test_clipping_bounds_the_gradient_and_only_that(
    corpus: tuple[Seq2SeqDataset, StepPlan], device: torch.device
) -> None:
    def first_moment(clip: float) -> torch.Tensor:
        step = made(device, clip=clip)
        added(step, corpus, 10_000)
        step.finish(1e-3)
        return torch.cat([step.optimizer.state[w]["exp_avg"].flatten() for w in step.weights])

    free = first_moment(0.0) / 0.1
    assert free.norm() > 0.5
    clipped = first_moment(0.25) / 0.1
    assert clipped.norm().item() == pytest.approx(0.25, rel=1e-4)
    torch.testing.assert_close(clipped / clipped.norm(), free / free.norm(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(first_moment(1e6) / 0.1, free)


@pytest.mark.gpu
@pytest.mark.parametrize("n_parts", [1, 3])
def test_a_recorded_step_follows_the_plain_one(
    corpus: tuple[Seq2SeqDataset, StepPlan], n_parts: int
) -> None:
    device = torch.device("cuda")
    tokens = {1: 10_000, 3: 150}[n_parts]
    fixed = fixed_shapes(corpus[1], tokens, tokens, longest=13)
    plain, recorded = made(device, half=True), made(device, recorded=True)
    for number in range(5):
        for step in (plain, recorded):
            added(step, corpus, tokens, fixed)
            step.finish(1e-3 * (number + 1))
    torch.testing.assert_close(weights(recorded), weights(plain), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(recorded.logged, plain.logged, rtol=1e-4, atol=1e-6)


BODIES = [
    {"body": body, "source_attention": memory, "d_model": width}
    for width in (64, 136, 312)
    for body, memory in (
        ("convolution", "dot"), ("convolution", "additive"), ("lstm", "dot"), ("lstm", "last"),
        ("gru", "additive"),
    )
]  # fmt: skip


@pytest.mark.parametrize("model", BODIES, ids=lambda model: "-".join(map(str, model.values())))
def test_other_bodies_give_the_same_gradient_in_the_fixed_form(
    corpus: tuple[Seq2SeqDataset, StepPlan], model: dict[str, Any]
) -> None:
    device = torch.device("cpu")
    plain, fixed = made(device, model=model), made(device, model=model)
    added(plain, corpus, 150)
    added(fixed, corpus, 150, fixed_shapes(corpus[1], 150, 150, longest=13))
    torch.testing.assert_close(gradient(fixed), gradient(plain), rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of weights that cuDNN copies, and of torch's compiler
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("model", BODIES, ids=lambda model: "-".join(map(str, model.values())))
def test_recorded_steps_of_other_bodies_follow_plain_ones(
    corpus: tuple[Seq2SeqDataset, StepPlan], model: dict[str, Any], compiled: bool
) -> None:
    device = torch.device("cuda")
    fixed = fixed_shapes(corpus[1], 150, 150, longest=13)
    plain = made(device, half=True, model=model)
    recorded = made(device, recorded=True, model=model)
    if compiled:
        for _, stack in stacks(recorded.model):
            stack.compile_blocks()
    for _ in range(5):
        for step in (plain, recorded):
            added(step, corpus, 150, fixed)
            step.finish(1e-4)
    torch.testing.assert_close(recorded.logged, plain.logged, rtol=2e-2, atol=1e-3)


@pytest.mark.gpu
def test_a_recorded_step_skips_what_is_not_a_number(
    corpus: tuple[Seq2SeqDataset, StepPlan],
) -> None:
    device = torch.device("cuda")
    step = made(device, recorded=True)
    fixed = fixed_shapes(corpus[1], 150, 150, longest=13)
    added(step, corpus, 150, fixed)
    step.finish(1e-3)
    before = weights(step)
    for total in step.sums[:1]:
        total.fill_(float("nan"))
    step.finish(1e-3)
    assert torch.equal(before, weights(step))
    assert step.bad.tolist() == [1, 1]
    added(step, corpus, 150, fixed)
    step.finish(1e-3)
    assert not torch.equal(before, weights(step))
    assert step.bad.tolist() == [0, 1]
