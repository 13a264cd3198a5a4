"""Conversion from interleaved sinusoids (ours) to formats that store all sines first.

The dimensions of the residual stream can be permuted if all weights that read or write it are
permuted, too. So the positions stay as they are and the weights are reordered.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headway.interop.families import Architecture
from headway.interop.name_pairs import NamePair, TensorTransform

READERS = ("tokens.weight", "to_qkv.weight", "to_hidden.weight", "head.linear.weight")
"""Matrices that read the residual stream: their columns are permuted."""

WRITERS = ("to_out.weight", "to_out.bias")
"""Weights that write the residual stream: their rows are permuted. Those of norms are, too."""


def in_halves(found: Architecture, width: int) -> Architecture:
    """Return the architecture with the even dimensions of the residual stream first, then the odd
    ones."""
    order_D = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return replace(found, pairs=[_reordered(pair, order_D) for pair in found.pairs])


def _reordered(pair: NamePair, order_D: Tensor) -> NamePair:
    if pair.ours.endswith(READERS):
        axis = 1
    elif pair.ours.endswith(WRITERS) or "norm" in pair.ours:
        axis = 0
    else:
        return pair
    back_D = order_D.argsort()
    return pair._replace(
        change=TensorTransform(
            lambda tensor: pair.change.to_ours(tensor).index_select(axis, back_D),
            lambda tensor: pair.change.to_theirs(tensor.index_select(axis, order_D)),
        )
    )
