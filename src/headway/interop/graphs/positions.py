"""Where tokens of padded batches stand and who sees whom, in plain operations (see `plain.py`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.attention.scope import Scope
from headway.nn.positions import Learned, Relative, Rotary, Sinusoidal, sinusoids

Turning = tuple[Tensor, Tensor]
"""Cosine and sine for each row (N 1 I)."""

HIDDEN = -1e9
"""Added to the score of a key that a query may not see. Finite: a padded query sees none."""


class Turns(nn.Module):
    """What `Rotary` turns by, from a table that is long enough."""

    cos_PI: Tensor
    sin_PI: Tensor

    def __init__(self, rotary: Rotary, reach: int) -> None:
        super().__init__()
        angle_PI = torch.arange(max(reach, len(rotary.cos_PI))).double()[:, None] * rotary.rates()
        self.register_buffer("cos_PI", angle_PI.cos().float())
        self.register_buffer("sin_PI", angle_PI.sin().float())

    def forward(self, position_N: Tensor) -> Turning:
        cos_NI = F.embedding(position_N, self.cos_PI)
        return cos_NI[:, None], F.embedding(position_N, self.sin_PI)[:, None]


def turned(x_NHK: Tensor, turns: Turning) -> Tensor:
    (a_NHI, b_NHI), (cos_N1I, sin_N1I) = x_NHK.chunk(2, dim=-1), turns
    both = [a_NHI * cos_N1I - b_NHI * sin_N1I, b_NHI * cos_N1I + a_NHI * sin_N1I]
    return torch.cat(both, dim=-1)


class Distances(nn.Module):
    """`Relative` as one number a head and distance: no logarithm, which runtimes round differently.

    Distances of `max_distance` and more are all one.
    """

    table_PH: Tensor

    def __init__(self, relative: Relative) -> None:
        super().__init__()
        self.end = relative.max_distance
        distance_P = torch.arange(-self.end, self.end + 1)
        self.register_buffer("table_PH", relative.table(relative.bucket(distance_P)).detach())

    def forward(self, distance_BTS: Tensor) -> Tensor:
        place_BTS = distance_BTS.clamp(-self.end, self.end) + self.end
        return F.embedding(place_BTS, self.table_PH).movedim(-1, -3)


def added_positions(positions: nn.Module | None, reach: int) -> nn.Embedding | None:
    if isinstance(positions, Learned):
        return positions.table
    if isinstance(positions, Sinusoidal):
        n_rows, width = positions.table_PD.shape
        table_PD = sinusoids(max(reach, n_rows), width, **positions.kind)
        return nn.Embedding.from_pretrained(table_PD)
    return None


def hidden(may_BTS: Tensor) -> Tensor:
    """What hides keys when it is added to scores (B 1 T S)."""
    return (1.0 - may_BTS[:, None].float()) * HIDDEN


def added_BHTS(
    scope: Scope, bias: nn.Module | None, positions_BT: Tensor, real_BS: Tensor
) -> Tensor:
    """What scores get by the distance of query and key: `HIDDEN` where a query may not look."""
    real_BS = real_BS.to(torch.bool)
    may_BTS = real_BS[:, None]
    distance_BTS = torch.empty(0)
    if scope.causal or scope.window is not None or bias is not None:
        distance_BTS = (real_BS.long().cumsum(1) - 1)[:, None] - positions_BT[:, :, None]
    if scope.causal:
        may_BTS = may_BTS & (distance_BTS <= 0)
    if scope.window is not None:
        may_BTS = may_BTS & (distance_BTS.abs() < scope.window)
    return hidden(may_BTS) if bias is None else bias(distance_BTS) + hidden(may_BTS)
