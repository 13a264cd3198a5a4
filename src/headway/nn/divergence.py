"""Divergences between the outputs of two models, or of two forward passes, for distillation and
R-Drop."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Divergence = Callable[[Tensor, Tensor, float], Tensor]
"""Function of outputs (R C), a teacher's outputs (R C) and a temperature. It returns one divergence
per row."""


def softmax_divergence(scores_RC: Tensor, aims_RC: Tensor, temperature: float) -> Tensor:
    """Return T² · KL(teacher ‖ student) of the softmax probabilities at temperature T."""
    logs_RC = (scores_RC.float() / temperature).log_softmax(-1)
    aims_RC = (aims_RC.float() / temperature).log_softmax(-1)
    return (aims_RC.exp() * (aims_RC - logs_RC)).sum(-1) * temperature**2


def mean_square(values_RE: Tensor, aims_RE: Tensor, _: float) -> Tensor:
    """Return the mean squared difference, for regression. The temperature has no effect."""
    return (values_RE.float() - aims_RE.float()).square().mean(-1)


def sigmoid_divergence(scores_RC: Tensor, aims_RC: Tensor, temperature: float) -> Tensor:
    """Return T² · KL(teacher ‖ student) of sigmoid probabilities (multi-label), averaged over the
    labels."""
    x_RC, y_RC = scores_RC.float() / temperature, aims_RC.float() / temperature
    yes_RC = y_RC.sigmoid() * (F.logsigmoid(y_RC) - F.logsigmoid(x_RC))
    no_RC = (-y_RC).sigmoid() * (F.logsigmoid(-y_RC) - F.logsigmoid(-x_RC))
    return (yes_RC + no_RC).mean(-1) * temperature**2


def square_distance(values_RD: Tensor, aims_RD: Tensor, _: float) -> Tensor:
    """Return the squared Euclidean distance of vectors. For unit vectors it is 2 − 2 cos."""
    return (values_RD.float() - aims_RD.float()).square().sum(-1)
