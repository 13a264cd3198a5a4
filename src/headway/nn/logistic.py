"""Linear models of which features each row has: small, deterministic, without autograd."""

from __future__ import annotations

from typing import Literal, NamedTuple

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


Link = Literal["one", "several", "number"]
"""What scores mean: one class of many (softmax), labels that are each right or not (sigmoid), or
numbers."""


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
    """`fit_linear` of one class of many."""
    right_NC = F.one_hot(targets_N, n_classes).float()
    return fit_linear(rows, right_NC, "one", l2=l2, iterations=iterations, telling=telling)


def fit_linear(
    rows: Sparse,
    right_NC: Tensor,
    link: Link,
    *,
    l2: float = 1.0,
    iterations: int = 60,
    telling: bool = False,
) -> Fitted:
    """Minimises Σ loss + ½ l2 ‖weights‖². The loss is −log p, or half the square of the distance of
    numbers (ridge regression). `right_NC`: ones and zeros, or numbers.

    `telling`: a feature may weigh the more, the more its counts tell each class from the others
    (Wang & Manning 2012), so that l2 holds the rest back."""
    n, n_classes = right_NC.shape
    # Which rows have each feature: the gradient is a sum over these.
    order = rows.numbers.argsort(stable=True)
    ends = torch.cat([rows.starts_N[1:], rows.starts_N.new_tensor([len(rows.numbers)])])
    row_of = torch.repeat_interleave(torch.arange(n), ends - rows.starts_N)[order]
    firsts = torch.searchsorted(rows.numbers[order], torch.arange(rows.n_features))

    def summed(values_NC: Tensor) -> Tensor:
        return F.embedding_bag(row_of, values_NC, firsts, mode="sum")

    scale_FC = None
    if telling:
        all_F1 = summed(torch.ones(n, 1))
        scale_FC = told_apart(summed(right_NC), all_F1, right_NC.sum(0), n)
    weight_FC, bias_C = torch.zeros(rows.n_features, n_classes), torch.zeros(n_classes)
    optimizer = torch.optim.LBFGS(
        [weight_FC.requires_grad_(), bias_C.requires_grad_()],
        max_iter=iterations, history_size=6, line_search_fn="strong_wolfe",
    )  # fmt: skip

    @torch.no_grad()
    def loss() -> float:
        """And its gradient, by hand: in a small part of the time that autograd takes."""
        used_FC = weight_FC if scale_FC is None else weight_FC * scale_FC
        losses, wrong_NC = _losses(rows.scores(used_FC, bias_C), right_NC, link)
        sums_FC = summed(wrong_NC) if scale_FC is None else summed(wrong_NC) * scale_FC
        weight_FC.grad = (sums_FC + l2 * weight_FC) / n
        bias_C.grad = wrong_NC.sum(0) / n
        return float((losses + 0.5 * l2 * weight_FC.square().sum()) / n)

    optimizer.step(loss)
    weight_FC, bias_C = weight_FC.detach(), bias_C.detach()
    return Fitted(weight_FC if scale_FC is None else weight_FC * scale_FC, bias_C)


def _losses(scores_NC: Tensor, right_NC: Tensor, link: Link) -> tuple[Tensor, Tensor]:
    """The sum of the losses, and their gradient by the scores."""
    if link == "one":
        logs_NC = scores_NC.log_softmax(-1)
        return -(logs_NC * right_NC).sum(), logs_NC.exp() - right_NC
    if link == "several":
        losses_NC = F.softplus(scores_NC) - right_NC * scores_NC
        return losses_NC.sum(), scores_NC.sigmoid() - right_NC
    wrong_NC = scores_NC - right_NC
    return 0.5 * wrong_NC.square().sum(), wrong_NC


def told_apart(counts_FC: Tensor, counts_F1: Tensor, n_C: Tensor, n: int) -> Tensor:
    """How far the shares of rows with a feature are apart, between rows with a label and without:
    the magnitude of the log of their ratio. The counts are of rows with a feature, by label and in
    all; `n` is the number of rows."""
    others_FC = counts_F1 - counts_FC
    return (((counts_FC + 1) / (n_C + 2)) / ((others_FC + 1) / (n - n_C + 2))).log().abs()
