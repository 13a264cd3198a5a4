"""Sinusoids in pairs (ours) for formats that have all sines first: the stream in another order.

A model does not care which of its numbers stands where, as long as everything that writes the
stream and everything that reads it agrees. So the positions stay what they are and the weights
move.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headway.interop.families import Architecture
from headway.interop.name_pairs import Change, Pair

READERS = ("tokens.weight", "to_qkv.weight", "to_hidden.weight", "head.linear.weight")
"""Matrices whose rows are as wide as the stream."""

WRITERS = ("to_out.weight", "to_out.bias")
"""Those that write it; norms have a number for each of its numbers, too."""


def in_halves(found: Architecture, width: int) -> Architecture:
    """The same with all even places of our stream first, then all odd ones."""
    order_D = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return replace(found, pairs=[_reordered(pair, order_D) for pair in found.pairs])


def _reordered(pair: Pair, order_D: Tensor) -> Pair:
    if pair.ours.endswith(READERS):
        axis = 1
    elif pair.ours.endswith(WRITERS) or "norm" in pair.ours:
        axis = 0
    else:
        return pair
    back_D = order_D.argsort()
    return pair._replace(
        change=Change(
            lambda tensor: pair.change.to_ours(tensor).index_select(axis, back_D),
            lambda tensor: pair.change.to_theirs(tensor.index_select(axis, order_D)),
        )
    )
