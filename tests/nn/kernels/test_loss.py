"""The loss kernel against its twin in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.loss import LabelSmoothing


@pytest.fixture(params=[None, 16], ids=["one block", "many blocks"])
def block(
    request: pytest.FixtureRequest, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long row is read in several blocks."""
    from headway.nn.kernels import loss

    if request.param is not None:
        monkeypatch.setattr(loss, "BLOCK", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("n_words", [2, 16, 37])
@pytest.mark.parametrize(
    "smoothing",
    [LabelSmoothing(1.0, 0.0), LabelSmoothing.of(0.1, 37), LabelSmoothing(0.4, 0.2)],
)
def test_loss_likelihood_and_gradient_equal_cross_entropy(
    n_words: int, smoothing: LabelSmoothing, kernel_device: torch.device
) -> None:
    from headway.nn.kernels.loss import fused_loss_and_gradient_

    scores_NV = (torch.randn(5, n_words, device=kernel_device) * 4).requires_grad_()
    targets_N = torch.randint(n_words, (5,), device=kernel_device)
    targets_N[0], targets_N[1] = 0, n_words - 1
    weights_N = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0], device=kernel_device)
    wanted_NV = torch.full_like(scores_NV, smoothing.wrong)
    wanted_NV[torch.arange(5), targets_N] = smoothing.right
    # Against `wanted` as it stands, which need not sum to one.
    loss_N = -(wanted_NV * scores_NV.log_softmax(-1)).sum(-1) * weights_N
    nll_N = F.cross_entropy(scores_NV, targets_N, reduction="none") * weights_N
    gradient_NV = (scores_NV.softmax(-1) - wanted_NV) * weights_N[:, None]

    found_NV = scores_NV.detach().clone()
    found = fused_loss_and_gradient_(found_NV, targets_N, weights_N, *smoothing)
    for mine, wanted in zip((*found, found_NV), (loss_N, nll_N, gradient_NV), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("block")
def test_large_scores_do_not_overflow(kernel_device: torch.device) -> None:
    from headway.nn.kernels.loss import fused_loss_and_gradient_

    scores_NV = torch.linspace(-2e4, 2e4, 40, device=kernel_device).repeat(2, 1)
    targets_N = torch.tensor([39, 0], device=kernel_device)
    ones_N = torch.ones(2, device=kernel_device)
    loss_N, nll_N = fused_loss_and_gradient_(scores_NV, targets_N, ones_N, 1.0, 0.0)
    assert loss_N.tolist() == nll_N.tolist() == [0.0, 4e4]
    assert scores_NV.isfinite().all()


def test_rows_may_be_strided(kernel_device: torch.device) -> None:
    from headway.nn.kernels.loss import fused_loss_and_gradient_

    def run(scores_NV: Tensor) -> Tensor:
        targets_N = torch.tensor([1, 2, 0], device=kernel_device)
        weights_N = torch.ones(3, device=kernel_device)
        fused_loss_and_gradient_(scores_NV, targets_N, weights_N, 0.9, 0.01)
        return scores_NV

    wide_NV = torch.randn(3, 20, device=kernel_device)
    behind = wide_NV[:, 11:].clone()
    alone = run(wide_NV[:, :11].clone())
    assert torch.equal(run(wide_NV[:, :11]), alone)
    assert torch.equal(wide_NV[:, 11:], behind)


def test_targets_and_weights_may_be_strided(kernel_device: torch.device) -> None:
    from headway.nn.kernels.loss import fused_loss_and_gradient_

    scores_NV = torch.randn(3, 7, device=kernel_device)
    targets_N = torch.arange(6, device=kernel_device)
    weights_N = torch.arange(6.0, device=kernel_device)
    found, wanted = (
        fused_loss_and_gradient_(scores_NV.clone(), targets, weights, 0.9, 0.01)
        for targets, weights in (
            (targets_N[::2], weights_N[::2]),
            (targets_N[::2].clone(), weights_N[::2].clone()),
        )
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.gpu
def test_in_bf16_over_a_large_vocabulary_it_is_near_fp32() -> None:
    from headway.nn.kernels.loss import fused_loss_and_gradient_

    for n_words in (8_000, 37_000):
        scores_NV = (torch.randn(64, n_words, device="cuda") * 3).bfloat16()
        targets_N = torch.randint(n_words, (64,), device="cuda")
        smoothing = LabelSmoothing.of(0.1, n_words, "torch")
        wide_NV = scores_NV.double().requires_grad_()
        wanted = F.cross_entropy(wide_NV, targets_N, reduction="none", label_smoothing=0.1)
        (gradient_NV,) = torch.autograd.grad(wanted.sum(), wide_NV)
        ones_N = torch.ones(64, device="cuda")
        loss_N, _ = fused_loss_and_gradient_(scores_NV, targets_N, ones_N, *smoothing)
        torch.testing.assert_close(loss_N.double(), wanted, rtol=1e-5, atol=1e-4)
        error = (scores_NV.double() - gradient_NV).norm() / gradient_NV.norm()
        assert error <= 0.01
