"""Page section for neurons: factors of the feed-forward activations, which are groups of neurons
that are active together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.inside.measure.nmf import Nmf, nmf
from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

NUMBERS = (2, 3, 4, 6, 8, 12)
"""Numbers of factors that the reader can choose, in addition to the default."""

USUAL = 6
"""Default number of factors, which are few enough to read at once. Short texts have at most one per
three tokens."""

MOST_ROWS = 1024
"""Maximum number of tokens, patches or audio frames in a stream. Longer streams have no factors in
a page."""

MOST_NUMBERS = 2_000_000
"""Maximum number of activations of a stack. Larger stacks have only the default number of
factors."""

TOP = 6
"""Number of strongest neurons listed for each factor."""


def section(looked: LookInputs) -> PageSection | None:
    trace = looked.trace
    stacks = {}
    for part, layers in trace.hidden.items():
        stream = trace.reading.streams.get(trace.reading.sides(part)[0])
        if stream is not None and 2 <= len(stream) <= MOST_ROWS and layers:
            stacks[part] = _stack(layers, stream.name)
    return {"stacks": stacks} if stacks else None


def _stack(layers: list[Tensor], stream: str) -> PageSection:
    x_TF = torch.cat([layer.detach().float() for layer in layers], dim=1)
    n_tokens = len(x_TF)
    usual = max(1, min(USUAL, n_tokens // 3))
    others = [n for n in NUMBERS if n <= n_tokens // 2] if x_TF.numel() <= MOST_NUMBERS else []
    numbers = sorted({usual, *others})
    widths = [layer.shape[1] for layer in layers]
    return {
        "stream": stream,
        "layers": len(layers),
        "neurons": widths[0],
        "usual": usual,
        "clipped": _clipped(x_TF),
        "choices": {str(n): _facts(nmf(x_TF, n), widths) for n in numbers},
    }


def _clipped(x_TF: Tensor) -> float:
    """Return the fraction of the squared activations |x|² that is negative, which the factors do
    not cover."""
    total = float(x_TF.square().sum())
    return round(float(x_TF.clamp(max=0).square().sum()) / total, 4) if total else 0.0


def _facts(found: Nmf, widths: list[int]) -> PageSection:
    """Return the data of one factorization.

    Its keys include `weights` (weight of each factor for each token), `layers` (sum of squares of
    each factor in each layer) and `top` (strongest neurons of each factor, as layer, index and
    loading).
    """
    shares_KL = torch.stack([p.square().sum(1) for p in found.parts_KF.split(widths, 1)], 1)
    starts = torch.tensor([0, *widths]).cumsum(0)
    best = found.parts_KF.topk(min(TOP, found.parts_KF.shape[1]), dim=1)
    layer_KN = torch.bucketize(best.indices, starts[1:], right=True)
    number_KN = best.indices - starts[layer_KN]
    return {
        "weights": PackedArray(found.weights_TK.T.contiguous(), "f16"),
        "layers": PackedArray(shares_KL, "f16"),
        "explained": round(found.explained, 4),
        "top": [
            [[int(a), int(b), round(float(c), 3)] for a, b, c in zip(*row, strict=True)]
            for row in zip(layer_KN, number_KN, best.values, strict=True)
        ],
    }
