"""Linear models of sparse features, such as logistic regression. They are small, deterministic and
do not use autograd."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class SparseFeatures(NamedTuple):
    """Indices of the features that each example has, concatenated over the examples."""

    numbers: Tensor
    starts_N: Tensor
    """Index in `numbers` of the first feature of each example."""

    n_features: int

    def scores(self, weight_FC: Tensor, bias_C: Tensor) -> Tensor:
        return F.embedding_bag(self.numbers, weight_FC, self.starts_N, mode="sum") + bias_C


LinkFunction = Literal["one", "several", "number"]
"""Link function from scores to predictions: softmax over classes (`one`), sigmoid of independent
labels (`several`), or the identity for regression (`number`)."""


class FittedWeights(NamedTuple):
    weight_FC: Tensor
    bias_C: Tensor


def fit_logistic(
    rows: SparseFeatures,
    targets_N: Tensor,
    n_classes: int,
    *,
    l2: float = 1.0,
    iterations: int = 60,
    telling: bool = False,
) -> FittedWeights:
    """Fit a softmax classifier with one class per example. `fit_linear` describes the arguments."""
    right_NC = F.one_hot(targets_N, n_classes).float()
    return fit_linear(rows, right_NC, "one", l2=l2, iterations=iterations, telling=telling)


def fit_linear(
    rows: SparseFeatures,
    right_NC: Tensor,
    link: LinkFunction,
    *,
    l2: float = 1.0,
    iterations: int = 60,
    telling: bool = False,
) -> FittedWeights:
    """Fit a linear model by minimizing Σ loss + ½ l2 ‖weights‖².

    The loss is −log p or, for numbers, half the squared error (ridge regression). `right_NC`:
    targets, either zeros and ones or numbers. `telling`: scale each feature by how well it
    separates each class from the others (Wang & Manning 2012), so that l2 shrinks uninformative
    features more.
    """
    n, n_classes = right_NC.shape
    # Examples that have each feature. The gradient of a feature's weight is a sum over them.
    order = rows.numbers.argsort(stable=True)
    ends = torch.cat([rows.starts_N[1:], rows.starts_N.new_tensor([len(rows.numbers)])])
    row_of = torch.repeat_interleave(torch.arange(n), ends - rows.starts_N)[order]
    firsts = torch.searchsorted(rows.numbers[order], torch.arange(rows.n_features))

    def summed(values_NC: Tensor) -> Tensor:
        return F.embedding_bag(row_of, values_NC, firsts, mode="sum")

    scale_FC = None
    if telling:
        all_F1 = summed(torch.ones(n, 1))
        scale_FC = log_odds_ratio(summed(right_NC), all_F1, right_NC.sum(0), n)
    weight_FC, bias_C = torch.zeros(rows.n_features, n_classes), torch.zeros(n_classes)
    optimizer = torch.optim.LBFGS(
        [weight_FC.requires_grad_(), bias_C.requires_grad_()],
        max_iter=iterations, history_size=6, line_search_fn="strong_wolfe",
    )  # fmt: skip

    @torch.no_grad()
    def loss() -> float:
        """Return the loss, and set the gradient by its formula, which is much faster than
        autograd."""
        used_FC = weight_FC if scale_FC is None else weight_FC * scale_FC
        losses, wrong_NC = _losses(rows.scores(used_FC, bias_C), right_NC, link)
        sums_FC = summed(wrong_NC) if scale_FC is None else summed(wrong_NC) * scale_FC
        weight_FC.grad = (sums_FC + l2 * weight_FC) / n
        bias_C.grad = wrong_NC.sum(0) / n
        return float((losses + 0.5 * l2 * weight_FC.square().sum()) / n)

    optimizer.step(loss)
    weight_FC, bias_C = weight_FC.detach(), bias_C.detach()
    return FittedWeights(weight_FC if scale_FC is None else weight_FC * scale_FC, bias_C)


def _losses(scores_NC: Tensor, right_NC: Tensor, link: LinkFunction) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses, and its gradient with respect to the scores."""
    if link == "one":
        logs_NC = scores_NC.log_softmax(-1)
        return -(logs_NC * right_NC).sum(), logs_NC.exp() - right_NC
    if link == "several":
        losses_NC = F.softplus(scores_NC) - right_NC * scores_NC
        return losses_NC.sum(), scores_NC.sigmoid() - right_NC
    wrong_NC = scores_NC - right_NC
    return 0.5 * wrong_NC.square().sum(), wrong_NC


def log_odds_ratio(counts_FC: Tensor, counts_F1: Tensor, n_C: Tensor, n: int) -> Tensor:
    """Return how strongly each feature separates examples with a label from examples without it (F
    C).

    It is the absolute log ratio of the feature's frequencies in the two groups. `counts_FC`: number
    of examples with a feature, by label. `counts_F1`: number of examples with a feature. `n_C`:
    number of examples with each label. `n`: number of examples.
    """
    others_FC = counts_F1 - counts_FC
    return (((counts_FC + 1) / (n_C + 2)) / ((others_FC + 1) / (n - n_C + 2))).log().abs()
