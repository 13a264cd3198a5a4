"""Weights once more, in the order in which a CPU's library reads them.

A product of few rows, as in decoding, spends most of its time on rearranging the weight. Done once
beforehand, it takes half the time, and a third with four rows. It costs the memory of the weights.
torch does not promise these operators; without them `nn/linear.py` multiplies as ever.
`python -m benchmarks.shortcuts`: four rows are 1.4 times as fast through the whole encoder of
`transformer-base` on one core.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ALL = slice(None)

ROWS = 128
"""What the order is chosen for; it serves fewer and more rows as well."""


MOST = 256
"""Rows of one product; more are computed in pieces of so many."""


def sizes(n: int) -> list[int]:
    """The rows of the products by which n rows are computed: pieces of `MOST`, and a last one that
    is rounded up, by at most a quarter. There are 44 sizes in all, however many n there are."""
    whole, rest = divmod(n, MOST)
    step = 1 << min(3, max(0, (rest - 1).bit_length() - 3))
    return [MOST] * whole + ([-(-rest // step) * step] if rest else [])


def in_few_sizes(x: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
    """`product`, which has each row for itself, of numbers of rows of which there are few.

    oneDNN makes code for every new number of rows, half a megabyte for each shape of a weight, and
    keeps a thousand of them: a server, which meets all numbers, would grow by hundreds of
    megabytes. Rows of zeros change no bit of the others.
    """
    x_ND, found, begin = x.flatten(0, -2), [], 0  # of grids, as patches of pictures, too
    for size in sizes(len(x_ND)):
        part_ND = x_ND[begin : begin + size]
        n, begin = len(part_ND), begin + size
        if n < size:
            part_ND = torch.cat([part_ND, part_ND.new_zeros(size - n, part_ND.shape[1])])
        found.append(product(part_ND)[:n])
    out = found[0] if len(found) == 1 else torch.cat(found)
    return out if x.dim() == 2 else out.unflatten(0, x.shape[:-1])


class Packed:
    """Copies of one weight, or of some of its rows, made when they are first used."""

    def __init__(self) -> None:
        self._copies: dict[tuple[object, object], tuple[tuple[int, int], Tensor]] = {}

    @property
    def n_bytes(self) -> int:
        """Size of the copies made so far."""
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
        return in_few_sizes(x, lambda part: run(part, copy, bias, after, [], ""))

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
