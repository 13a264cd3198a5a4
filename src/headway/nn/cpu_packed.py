"""Weights once more, in the order in which a CPU's library reads them.

A product of few rows, as in decoding, spends most of its time on rearranging the weight. Done once
beforehand, it takes half the time, and a third with four rows. It costs the memory of the weights.
torch does not promise these operators; without them `nn/linear.py` multiplies as ever.
`python -m benchmarks.shortcuts`: four rows are 1.4 times as fast through the whole encoder of
`transformer-base` on one core.
"""

from __future__ import annotations

import torch
from torch import Tensor

ALL = slice(None)

ROWS = 128
"""What the order is chosen for; it serves fewer and more rows as well."""


class Packed:
    """Copies of one weight, or of some of its rows, made when they are first used."""

    def __init__(self) -> None:
        self._copies: dict[tuple[object, object], tuple[tuple[int, int], Tensor]] = {}

    @staticmethod
    def fits(x: Tensor, weight: Tensor) -> bool:
        plain = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
        return plain and len(x) > 0 and not torch.is_grad_enabled()

    def product(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: slice = ALL,
        *,
        relu: bool = False,
    ) -> Tensor:
        copy = self._copy(weight, rows)
        after = "relu" if relu else "none"
        return torch.ops.mkldnn._linear_pointwise(x, copy, bias, after, [], "")

    def _copy(self, weight: Tensor, rows: slice) -> Tensor:
        # A weight that was trained on, or replaced, since it was copied is copied again.
        now = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        key = (rows.start, rows.stop)
        found = self._copies.get(key)
        if found is None or found[0] != now:
            found = (now, torch.ops.mkldnn._reorder_linear_weight(weight.detach()[rows], ROWS))
            self._copies[key] = found
        return found[1]

    def __deepcopy__(self, memo: object) -> Packed:
        return Packed()

    def __reduce__(self) -> tuple[type[Packed], tuple[()]]:
        return Packed, ()


def can_pack() -> bool:
    needed = ("_linear_pointwise", "_reorder_linear_weight")
    known = all(hasattr(torch.ops.mkldnn, name) for name in needed)
    return torch.backends.mkldnn.is_available() and known
