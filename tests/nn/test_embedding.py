"""Rows of an embedding matrix are those of `F.embedding`, with its gradients, tied or not."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from headway.nn import embedding
from headway.nn.embedding import look_up
from headway.nn.loss import LabelSmoothing, vocabulary_loss

N_WORDS, WIDTH = 11, 4
SOURCE, TARGET, LABELS = (torch.tensor(x) for x in ([1, 5, 5, 0], [2, 5, 10], [3, 3, 9]))
SMOOTHING = LabelSmoothing.of(0.1, N_WORDS)
Look = Callable[[Tensor, Tensor], Tensor]


def matrix() -> nn.Parameter:
    return nn.Parameter(torch.randn(N_WORDS, WIDTH, dtype=torch.float64))


def plain(weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    return F.embedding(tokens_N, weight_VD)


def tied_loss(weight_VD: Tensor, look: Look) -> Tensor:
    """Source and target embedding and word scores of one matrix."""
    x_ND = look(weight_VD, TARGET).tanh() + look(weight_VD, SOURCE).square().sum()
    return vocabulary_loss(x_ND, weight_VD, None, LABELS, SMOOTHING).sum


def two_losses(weight_VD: Tensor, look: Look) -> Tensor:
    ones_ND = torch.ones(3, WIDTH, dtype=torch.float64)
    further = vocabulary_loss(ones_ND, weight_VD, None, LABELS, SMOOTHING).sum
    return tied_loss(weight_VD, look) + 2 * tied_loss(weight_VD, look) + further


def used_elsewhere(weight_VD: Tensor, look: Look) -> Tensor:
    return weight_VD.square().sum() + tied_loss(weight_VD, look) + weight_VD[3].exp().sum()


def untied(weight_VD: Tensor, look: Look) -> Tensor:
    return look(weight_VD, TARGET).exp().sum() + look(weight_VD, SOURCE).square().sum()


def plain_scores(weight_VD: Tensor, look: Look) -> Tensor:
    return F.cross_entropy(F.linear(look(weight_VD, TARGET), weight_VD), LABELS)


class Watch(TorchDispatchMode):
    """Notes each matrix of zeros that a backward pass makes for looked-up rows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "embedding_dense_backward" in str(func):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "loss", [tied_loss, two_losses, used_elsewhere, untied, plain_scores], ids=lambda f: f.__name__
)
def test_the_gradient_is_that_of_plain_embeddings(
    loss: Callable[[Tensor, Look], Tensor],
) -> None:
    ours, theirs = (weight := matrix()), copy.deepcopy(weight)
    for _ in range(2):  # gradients of two batches add up
        loss(ours, look_up).backward()
        loss(theirs, plain).backward()
        assert ours.grad is not None
        assert not ours.grad.is_sparse
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.0, atol=1e-12)
    (found,) = torch.autograd.grad(loss(ours, look_up), [ours])
    (wanted,) = torch.autograd.grad(loss(theirs, plain), [theirs])
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-12)


def test_a_tied_matrix_needs_no_matrix_of_zeros() -> None:
    with Watch() as watch:
        tied_loss(matrix(), look_up).backward()
    assert not watch.seen
    with Watch() as watch:
        untied(matrix(), look_up).backward()
    assert len(watch.seen) == 2


def test_a_failed_backward_pass_leaves_no_state() -> None:
    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("hook")

    ours, theirs = (weight := matrix()), copy.deepcopy(weight)
    rows_ND = look_up(ours, SOURCE)
    rows_ND.register_hook(fail)
    x_ND = look_up(ours, TARGET) + rows_ND.sum()
    loss = vocabulary_loss(x_ND, ours, None, LABELS, SMOOTHING).sum
    with pytest.raises(RuntimeError, match="hook"):
        loss.backward()
    ours.grad = None
    untied(ours, look_up).backward()
    untied(theirs, plain).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.0, atol=1e-12)


def test_a_matrix_that_does_not_learn_is_only_read() -> None:
    frozen = matrix().requires_grad_(False)
    assert not look_up(frozen, SOURCE).requires_grad
    with torch.no_grad():
        assert torch.equal(look_up(matrix_ := matrix(), SOURCE), matrix_[SOURCE])


def test_a_matrix_that_is_gone_is_forgotten() -> None:
    gc.collect()
    before = len(embedding._deferred)
    weight = matrix()
    tied_loss(weight, look_up).backward()
    assert len(embedding._deferred) == before + 1
    del weight
    gc.collect()
    assert len(embedding._deferred) == before


def test_where_torch_does_not_tell_the_backward_pass_rows_are_looked_up_as_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedding, "CAN_DEFER", False)
    ours, theirs = (weight := matrix()), copy.deepcopy(weight)
    with Watch() as watch:
        tied_loss(ours, look_up).backward()
    tied_loss(theirs, plain).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.0, atol=1e-12)
    assert len(watch.seen) == 2
