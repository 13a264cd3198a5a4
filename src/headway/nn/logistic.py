"""Logistic regression on which features each row has: small, deterministic, without autograd."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Sparse(NamedTuple):
    """Features of rows: their numbers, one row behind another."""

    numbers: Tensor
    starts_N: Tensor
    """Where each row begins in `numbers`."""

    n_features: int

    def scores(self, weight_FC: Tensor, bias_C: Tensor) -> Tensor:
        return F.embedding_bag(self.numbers, weight_FC, self.starts_N, mode="sum") + bias_C


class Fitted(NamedTuple):
    weight_FC: Tensor
    bias_C: Tensor


def fit_logistic(
    rows: Sparse,
    targets_N: Tensor,
    n_classes: int,
    *,
    l2: float = 1.0,
    iterations: int = 60,
    telling: bool = False,
) -> Fitted:
    """Minimises Σ −log p + ½ l2 ‖weights‖². `telling`: a feature may weigh the more, the more its
    counts tell each class from the others (Wang & Manning 2012), so that l2 holds the rest back."""
    n = len(targets_N)
    # Which rows have each feature: the gradient is a sum over these.
    order = rows.numbers.argsort(stable=True)
    ends = torch.cat([rows.starts_N[1:], rows.starts_N.new_tensor([len(rows.numbers)])])
    row_of = torch.repeat_interleave(torch.arange(n), ends - rows.starts_N)[order]
    firsts = torch.searchsorted(rows.numbers[order], torch.arange(rows.n_features))
    right_NC = F.one_hot(targets_N, n_classes).float()

    def summed(values_NC: Tensor) -> Tensor:
        return F.embedding_bag(row_of, values_NC, firsts, mode="sum")

    scale_FC = told_apart(summed(right_NC), right_NC.sum(0)) if telling else None
    weight_FC, bias_C = torch.zeros(rows.n_features, n_classes), torch.zeros(n_classes)
    optimizer = torch.optim.LBFGS(
        [weight_FC.requires_grad_(), bias_C.requires_grad_()],
        max_iter=iterations, history_size=6, line_search_fn="strong_wolfe",
    )  # fmt: skip

    @torch.no_grad()
    def loss() -> float:
        """And its gradient, by hand: in a small part of the time that autograd takes."""
        used_FC = weight_FC if scale_FC is None else weight_FC * scale_FC
        logs_NC = rows.scores(used_FC, bias_C).log_softmax(-1)
        wrong_NC = logs_NC.exp() - right_NC
        sums_FC = summed(wrong_NC) if scale_FC is None else summed(wrong_NC) * scale_FC
        weight_FC.grad = (sums_FC + l2 * weight_FC) / n
        bias_C.grad = wrong_NC.sum(0) / n
        nll = -(logs_NC * right_NC).sum()
        return float((nll + 0.5 * l2 * weight_FC.square().sum()) / n)

    optimizer.step(loss)
    weight_FC, bias_C = weight_FC.detach(), bias_C.detach()
    return Fitted(weight_FC if scale_FC is None else weight_FC * scale_FC, bias_C)


def told_apart(counts_FC: Tensor, n_C: Tensor) -> Tensor:
    """How far the shares of rows with a feature, of each class and of all others, are apart: the
    magnitude of the log of their ratio."""
    others_FC = counts_FC.sum(1, keepdim=True) - counts_FC
    return (((counts_FC + 1) / (n_C + 2)) / ((others_FC + 1) / (n_C.sum() - n_C + 2))).log().abs()
