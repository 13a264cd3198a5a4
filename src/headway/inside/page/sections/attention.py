"""Page section for attention weights: all weights of one text by kind, layer and head, in eight
bits (error at most 1/510).

Above `MOST` tokens, blocks of tokens are pooled by their maximum, so that no large weight is lost.
Queries that the user pins keep their exact weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.capture.trace import Trace
    from headway.inside.page.look import LookInputs

MOST = 256
"""Maximum number of queries and of keys in a map. Larger maps are pooled, which bounds the size of
a page."""

FIRST = {"cross": 0, "decoder": 1, "encoder": 2}
"""Position of each kind of attention in the list. Cross-attention is first, because it relates the
output to the source."""


def section(looked: LookInputs) -> PageSection | None:
    trace = looked.trace
    if not trace.attention:
        return None
    names = sorted(trace.attention, key=lambda name: FIRST.get(name, 0))
    return {"kinds": [_kind(name, trace, tuple(looked.pins)) for name in names]}


def _kind(name: str, trace: Trace, pins: tuple[int, ...]) -> PageSection:
    layers: list[Tensor] = trace.attention[name]
    rows, columns = trace.reading.sides(name)
    block = block_size(max(max(layer.shape[-2:]) for layer in layers))
    found = {
        "name": name,
        "rows": rows,
        "columns": columns,
        "block": block,
        "layers": [PackedArray(block_max(layer, block), "u8", (0, 1)) for layer in layers],
    }
    if block > 1:
        pinned = [row for row in pins if row < layers[0].shape[1]]
        found["pinned"] = pinned
        found["exact"] = [PackedArray(layer[:, pinned], "f16") for layer in layers]
    return found


def block_size(tokens: int) -> int:
    """Return the number of tokens per side of a pooled block; 1 if maps are not pooled."""
    return -(-tokens // MOST)


def block_max(weights_HTS: Tensor, block: int) -> Tensor:
    """Return the largest weight of each block of tokens. Blocks at the edges may be smaller."""
    if block == 1 or not weights_HTS.numel():
        return weights_HTS
    right, down = -weights_HTS.shape[2] % block, -weights_HTS.shape[1] % block
    return F.max_pool2d(F.pad(weights_HTS[None].float(), (0, right, 0, down)), block)[0]
