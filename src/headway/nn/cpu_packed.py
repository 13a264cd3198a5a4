"""Packed weights: copies in the memory order that oneDNN reads on a CPU.

A product with few rows, as in decoding, spends most of its time on reordering the weight. With a
weight packed in advance, it takes half the time, and with four rows a third. The copies take as
much memory as the weights. PyTorch does not guarantee these operators. Without them, `nn/linear.py`
multiplies as usual.

`python -m benchmarks.shortcuts`: the encoder of `transformer-base` is 1.4 times as fast with four
rows on one core.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ALL = slice(None)

ROWS = 128
"""Number of input rows that the packed order is optimized for. It also works for other numbers."""


MOST = 256
"""Maximum number of input rows of one product. Larger inputs are split."""


def sizes(n: int) -> list[int]:
    """Return the row counts into which a product with n rows is split.

    All but the last are `MOST`. The last is rounded up by at most a quarter, so that only 44
    different row counts ever occur.
    """
    whole, rest = divmod(n, MOST)
    step = 1 << min(3, max(0, (rest - 1).bit_length() - 3))
    return [MOST] * whole + ([-(-rest // step) * step] if rest else [])


def in_fixed_sizes(x: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a row-wise `product` to parts of the input, so that few different row counts occur.

    For every new row count, oneDNN compiles code, half a megabyte per shape of a weight, and keeps
    a thousand of these. A server meets every row count, so its memory would grow by hundreds of
    megabytes. The input is padded with zeros, which does not change the results of the other rows
    by a single bit.
    """
    x_ND, found, begin = x.flatten(0, -2), [], 0  # accepts grids, such as image patches
    for size in sizes(len(x_ND)):
        part_ND = x_ND[begin : begin + size]
        n, begin = len(part_ND), begin + size
        if n < size:
            part_ND = torch.cat([part_ND, part_ND.new_zeros(size - n, part_ND.shape[1])])
        found.append(product(part_ND)[:n])
    out = found[0] if len(found) == 1 else torch.cat(found)
    return out if x.dim() == 2 else out.unflatten(0, x.shape[:-1])


class PackedWeight:
    """Packed copies of one weight, or of some of its rows, made on first use."""

    def __init__(self) -> None:
        self._copies: dict[tuple[object, object], tuple[tuple[int, int], Tensor]] = {}

    @property
    def n_bytes(self) -> int:
        """Size in bytes of the copies made so far."""
        return sum(copy.numel() * copy.element_size() for _, copy in self._copies.values())

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
        run = torch.ops.mkldnn._linear_pointwise
        return in_fixed_sizes(x, lambda part: run(part, copy, bias, after, [], ""))

    def _copy(self, weight: Tensor, rows: slice) -> Tensor:
        # If the weight was trained or replaced since it was packed, pack it again.
        now = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        key = (rows.start, rows.stop)
        found = self._copies.get(key)
        if found is None or found[0] != now:
            found = (now, torch.ops.mkldnn._reorder_linear_weight(weight.detach()[rows], ROWS))
            self._copies[key] = found
        return found[1]

    def __deepcopy__(self, memo: object) -> PackedWeight:
        return PackedWeight()

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[()]]:
        return PackedWeight, ()


def can_pack() -> bool:
    needed = ("_linear_pointwise", "_reorder_linear_weight")
    known = all(hasattr(torch.ops.mkldnn, name) for name in needed)
    return torch.backends.mkldnn.is_available() and known
