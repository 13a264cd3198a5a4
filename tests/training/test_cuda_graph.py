"""A recorded step: what may change between replays, and that it computes what it was."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import PostNorm
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout, loss_weights
from headway.nn.loss import LabelSmoothing, vocabulary_loss
from headway.nn.norms import LayerNorm
from headway.nn.stack import Stack
from headway.training.cuda_graph import WARM_UPS, GraphedStep, copy_into


@dataclass
class Batch:
    tokens_N: Tensor
    targets_N: Tensor
    layout: Layout
    weights_N: Tensor
    name: str = "train"
    notes: list[str] = field(default_factory=list, compare=False)


N_ROWS, N_WORDS, WIDTH = 64, 20, 32


def batch(lengths: list[int], device: torch.device | str = "cpu") -> Batch:
    return Batch(
        tokens_N=torch.randint(N_WORDS, (N_ROWS,)).to(device),
        targets_N=torch.randint(N_WORDS, (N_ROWS,)).to(device),
        layout=Layout.fixed(lengths, n_rows=N_ROWS, n_sequences=12, longest=16, device=device),
        weights_N=loss_weights(lengths, N_ROWS, device),
    )


def test_every_tensor_is_copied_in_place_also_inside() -> None:
    old, new = batch([3, 10]), batch([16, 5, 7])
    addresses = old.tokens_N.data_ptr(), old.layout.starts_B.data_ptr()
    copy_into(old, new)
    assert (old.tokens_N.data_ptr(), old.layout.starts_B.data_ptr()) == addresses
    for name in ("tokens_N", "targets_N", "weights_N"):
        assert torch.equal(getattr(old, name), getattr(new, name)), name
    for name in ("starts_B", "lengths_B", "positions_N", "bounds"):
        assert torch.equal(getattr(old.layout, name), getattr(new.layout, name)), name


def test_fields_that_are_not_tensors_must_match_the_recording() -> None:
    old, new = batch([3]), batch([5])
    with pytest.raises(ValueError, match=r"name='train'.*'valid'"):
        copy_into(old, replace(new, name="valid"))
    longer = Layout.fixed([5], n_rows=N_ROWS, n_sequences=12, longest=20)
    with pytest.raises(ValueError, match=r"longest=16\b.*\b20\b"):
        copy_into(old, replace(new, layout=longer))
    known = Layout.of([16, 16, 16, 16])
    with pytest.raises((ValueError, RuntimeError)):
        copy_into(old, replace(new, layout=known))
    copy_into(old, replace(new, notes=["seen"]))  # what is not compared may differ


def test_a_tensor_of_another_shape_is_an_error() -> None:
    old, new = batch([3]), batch([5])
    with pytest.raises(ValueError, match="weights_N"):
        copy_into(old, replace(new, weights_N=torch.ones(1)))


@pytest.fixture
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording without a GPU: the step runs once more, and a replay does nothing."""
    monkeypatch.setattr(torch.cuda, "Stream", MagicMock)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", MagicMock)
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)


@pytest.mark.usefixtures("_pretended")
def test_it_warms_up_records_and_gives_the_recorded_tensor() -> None:
    calls: list[Batch] = []

    def step(batch: Batch) -> Tensor:
        calls.append(batch)
        return torch.tensor(float(len(calls)))

    example, other = batch([3]), batch([5, 6])
    graphed = GraphedStep(step, example)
    assert len(calls) == WARM_UPS + 1
    assert all(called is example for called in calls)
    assert graphed(other).item() == WARM_UPS + 1
    assert torch.equal(example.tokens_N, other.tokens_N)
    assert len(calls) == WARM_UPS + 1


@pytest.mark.usefixtures("_pretended")
def test_what_was_recorded_lives_as_long_as_the_recording() -> None:
    def recorded() -> tuple[GraphedStep[Batch], weakref.ref[nn.Module]]:
        model = nn.Embedding(N_WORDS, WIDTH)
        return GraphedStep(lambda batch: model(batch.tokens_N).sum(), batch([3])), weakref.ref(
            model
        )

    graphed, model = recorded()
    gc.collect()
    assert model() is not None
    del graphed
    gc.collect()
    assert model() is None


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_WORDS, WIDTH)
        blocks = [
            PostNorm(
                Attention(WIDTH, 2, scope=AttentionSpec(causal=True)),
                FeedForward(WIDTH, 64, "relu"),
                lambda: LayerNorm(WIDTH),
            )
            for _ in range(2)
        ]
        self.stack = Stack(blocks)

    def loss(self, batch: Batch) -> Tensor:
        x_ND = self.tokens(batch.tokens_N).bfloat16()
        x_ND = self.stack(x_ND, batch.layout)
        smoothing = LabelSmoothing.of(0.1, N_WORDS)
        arguments = self.tokens.weight, None, batch.targets_N, smoothing, batch.weights_N
        return vocabulary_loss(x_ND, *arguments).sum / batch.weights_N.sum()


def step_of(model: Tiny) -> Callable[[Batch], Tensor]:
    """A whole training step; nothing but the step itself holds its optimiser."""
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)

    def step(batch: Batch) -> Tensor:
        loss = model.loss(batch)
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def gpu_batches() -> list[Batch]:
    return [batch(lengths, "cuda") for lengths in ([3, 10], [16, 5, 7], [1], [2, 15, 16, 16])]


@pytest.mark.gpu
def test_replays_give_the_losses_and_weights_of_plain_steps() -> None:
    torch.manual_seed(0)
    batches = gpu_batches()
    plain = Tiny().to("cuda")
    start = plain.tokens.weight.detach().clone()
    recorded = copy.deepcopy(plain)
    plain_step = step_of(plain)
    for _ in range(WARM_UPS):  # which are steps too
        plain_step(batches[0])
    graphed = GraphedStep(step_of(recorded), copy.deepcopy(batches[0]))
    for number in (1, 2, 3, 0, 1):
        wanted = plain_step(batches[number]).item()
        assert graphed(batches[number]).item() == pytest.approx(wanted, rel=1e-3)
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-4)
    assert not torch.allclose(recorded.tokens.weight, start, atol=1e-3)


@pytest.mark.gpu
def test_two_recordings_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    batches = gpu_batches()
    models = [Tiny().to("cuda") for _ in range(2)]
    plain_steps = [step_of(copy.deepcopy(model)) for model in models]
    for step in plain_steps:
        for _ in range(WARM_UPS):
            step(batches[0])
    recordings = [GraphedStep(step_of(model), copy.deepcopy(batches[0])) for model in models]
    for number in (1, 2, 3):
        for step, graphed in zip(plain_steps, recordings, strict=True):
            wanted = step(batches[number]).item()
            assert graphed(batches[number]).item() == pytest.approx(wanted, rel=1e-3)
