"""Layout of the sequences in a flat batch. All rows are real tokens; there is no padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Tree(NamedTuple):
    """Mask of the keys that each query sees, if the keys of a sequence are not one linear text.

    The hypotheses of a beam share the keys of one sequence, and each sees its own past among them.
    When hypotheses change places, only the tree changes, not the keys.
    """

    may_BTS: Tensor
    """True where a query may attend. This is the complete mask; no causal mask is added."""

    position_S: Tensor
    """Position of each key, for scores that depend on distance; (B 1 S) if sequences differ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Rows of each sequence: sequence b starts at `starts_B[b]` and has `lengths_B[b]` rows.

    In a batch, sequences are contiguous. In a cache, they start `stride` rows apart, so that each
    has room to grow. Attention reads both in the same way.
    """

    starts_B: Tensor
    lengths_B: Tensor
    n_rows: int
    positions_N: Tensor
    """Position of each row in its sequence, counted from its first token, cached ones included.
    Empty for the keys of a cache, which are not embedded again."""

    longest: int
    """Upper bound of the sequence lengths; exact unless the layout has fixed shapes."""

    reach: int
    """Upper bound of the positions: all are smaller."""

    bounds: Tensor | None = None
    """Starts of the sequences and, last, the number of rows; None if they are not contiguous."""

    stride: int | None = None
    """Number of rows between the starts of consecutive sequences, if it is constant; the rows then
    form a grid."""

    lengths: tuple[int, ...] | None = None
    """Copy of `lengths_B` on the host, if known: attention can then group by length without waiting
    for the device. None with fixed shapes, whose compiled steps must not depend on the lengths."""

    tree: Tree | None = None
    """Mask of a cache's keys per query, if the hypotheses of a beam share them."""

    memo: dict[object, object] = field(default_factory=dict, repr=False, compare=False)
    """Values that are computed once from this layout and used again in every layer."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
        """Return the layout of contiguous sequences of these lengths."""
        return cls._side_by_side(list(lengths), device, longest=max(lengths, default=0))

    @classmethod
    def fixed(
        cls,
        lengths: Sequence[int],
        *,
        n_rows: int,
        n_sequences: int,
        longest: int,
        n_dummies: int = 0,
        device: torch.device | str = "cpu",
    ) -> Layout:
        """Return a layout whose shapes do not depend on the lengths, for compiled steps.

        Unused rows become dummy sequences of at most `longest` rows. There are at least `n_dummies`
        of them if there are enough rows. Unused sequences are empty. Sorted lengths help the
        `short` kernel to spread its work evenly. Give the dummy rows loss weight zero
        (`loss_weights`); no real row attends to them.
        """
        padded = list(lengths)
        left = n_rows - sum(padded)
        if left < 0 or max(padded, default=0) > longest:
            raise ValueError(
                f"lengths {padded} exceed {n_rows} rows in total or {longest} rows per sequence"
            )
        while left > 0:
            n_dummies -= 1  # each remaining dummy needs a row
            padded.append(min(max(1, left - max(0, n_dummies)), longest))
            left -= padded[-1]
        if len(padded) > n_sequences:
            raise ValueError(
                f"{len(padded)} sequences, including dummies, exceed n_sequences={n_sequences}"
            )
        padded += [0] * (n_sequences - len(padded))
        layout = cls._side_by_side(padded, device, longest=longest)
        return replace(layout, lengths=None, stride=None)

    @classmethod
    def steps(cls, offsets_B: Tensor, length: int, reach: int) -> Layout:
        """Return the layout of `length` new rows per sequence, after `offsets_B` cached rows."""
        n_sequences = len(offsets_B)
        device = offsets_B.device
        bounds = torch.arange(n_sequences + 1, device=device, dtype=torch.int32) * length
        new_T = torch.arange(length, device=device)
        return cls(
            starts_B=bounds[:-1],
            lengths_B=torch.full_like(bounds[:-1], length),
            n_rows=n_sequences * length,
            positions_N=(offsets_B[:, None] + new_T).flatten(),
            longest=length,
            reach=reach,
            bounds=bounds,
            stride=length,
            lengths=(length,) * n_sequences,
        )

    @classmethod
    def _side_by_side(cls, lengths: list[int], device: torch.device | str, longest: int) -> Layout:
        # With numpy: a step may have thousands of short sequences, and torch needs longer to
        # convert lists to tensors than a GPU needs for the step itself.
        counts = np.array(lengths, dtype=np.int32)
        ends = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(counts, out=ends[1:])
        rows = np.arange(ends[-1], dtype=np.int64)
        positions_N = torch.from_numpy(rows - np.repeat(ends[:-1], counts))
        bounds, lengths_B = torch.from_numpy(ends), torch.from_numpy(counts)
        equal = bool(lengths) and min(lengths) == longest > 0
        bounds = bounds.to(device, non_blocking=True)
        return cls(
            starts_B=bounds[:-1],
            lengths_B=lengths_B.to(device, non_blocking=True),
            n_rows=len(positions_N),
            positions_N=positions_N.to(device, non_blocking=True),
            longest=longest,
            reach=longest,
            bounds=bounds,
            stride=longest if equal else None,
            lengths=tuple(lengths),
        )

    @classmethod
    def in_cache(
        cls,
        lengths: Sequence[int],
        capacity: int,
        device: torch.device | str = "cpu",
        tree: Tree | None = None,
    ) -> Layout:
        """Return the layout of the used rows of a cache with `capacity` rows per sequence."""
        return cls(
            starts_B=torch.arange(len(lengths), device=device, dtype=torch.int32) * capacity,
            lengths_B=torch.tensor(lengths, dtype=torch.int32).to(device, non_blocking=True),
            n_rows=len(lengths) * capacity,
            positions_N=torch.empty(0, dtype=torch.long, device=device),
            longest=max(lengths, default=0),
            reach=max(lengths, default=0),
            stride=capacity,
            lengths=tuple(lengths),
            tree=tree,
        )

    def shifted(self, offsets: Sequence[int]) -> Layout:
        """Return this layout with positions that continue after `offsets` cached tokens."""
        offset_N = torch.repeat_interleave(
            torch.tensor(offsets, dtype=torch.long),
            torch.tensor(self.known_lengths(), dtype=torch.long),
        ).to(self.positions_N.device, non_blocking=True)
        pairs = zip(offsets, self.known_lengths(), strict=True)
        reach = max((offset + length for offset, length in pairs), default=0)
        return replace(self, positions_N=self.positions_N + offset_N, reach=reach, memo={})

    def pick(self, numbers: Sequence[int]) -> Layout:
        """Return the layout of some sequences, in this order. The rows do not move."""
        index = torch.tensor(numbers, dtype=torch.long).to(self.starts_B.device)
        lengths = tuple(self.known_lengths()[i] for i in numbers)
        return replace(
            self,
            starts_B=self.starts_B[index],
            lengths_B=self.lengths_B[index],
            longest=max(lengths, default=0),
            bounds=None,
            stride=None,
            lengths=lengths,
            memo={},
        )

    @property
    def n_sequences(self) -> int:
        return len(self.starts_B)

    @property
    def is_full_grid(self) -> bool:
        """Whether every sequence has `longest` rows and the sequences are contiguous."""
        return self.bounds is not None and self.stride is not None

    def has_all(self, n_rows: int) -> bool:
        """Whether every sequence is known to have at least `n_rows` rows."""
        return self.lengths is not None and min(self.lengths, default=0) >= n_rows

    def beginnings(self, n_rows: int) -> tuple[Tensor, Layout]:
        """Return the numbers of the first `n_rows` rows of each sequence, and the layout of these
        rows. Every sequence must have at least that many."""
        new_R = torch.arange(n_rows, device=self.starts_B.device)
        row_N = (self.starts_B.long()[:, None] + new_R).flatten()
        return row_N, Layout.steps(torch.zeros_like(self.starts_B), n_rows, n_rows)

    def to(self, device: torch.device | str) -> Layout:
        return replace(
            self,
            starts_B=self.starts_B.to(device, non_blocking=True),
            lengths_B=self.lengths_B.to(device, non_blocking=True),
            positions_N=self.positions_N.to(device, non_blocking=True),
            bounds=None if self.bounds is None else self.bounds.to(device, non_blocking=True),
            memo={},
        )

    def known_lengths(self) -> tuple[int, ...]:
        """Return the lengths on the host. This waits for the device if they are not known yet."""
        return self.lengths if self.lengths is not None else tuple(self.lengths_B.tolist())

    def split(self, x_N: Tensor) -> list[Tensor]:
        """Return the rows of each sequence."""
        pairs = zip(self.starts_B.tolist(), self.known_lengths(), strict=True)
        return [x_N[start : start + length] for start, length in pairs]

    def last_N(self) -> Tensor:
        """Return the row number of each sequence's last token."""
        return self.starts_B + self.lengths_B - 1

    def pooled(self, x_ND: Tensor, pooling: str) -> Tensor:
        """Return one row per sequence: its `first`, its `last`, or the `mean` of all.

        Empty sequences, at the end of the fixed-size form, get an arbitrary row.
        """
        if pooling in ("first", "last"):
            row_B = self.starts_B if pooling == "first" else self.last_N()
            return x_ND[row_B.long().clamp(0, self.n_rows - 1)]
        number_N = self.numbers_N()
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        zeros_BD = x_ND.new_zeros(self.n_sequences, x_ND.shape[1], dtype=wide)
        sum_BD = zeros_BD.index_add(0, number_N, x_ND.to(wide))
        return (sum_BD / self.lengths_B[:, None].clamp(min=1)).to(x_ND.dtype)

    def numbers_N(self) -> Tensor:
        """Return the sequence number of each row."""
        return torch.repeat_interleave(self.lengths_B, output_size=self.n_rows)

    def real_N(self) -> Tensor:
        """Return the mask of rows that are not padding: all of them."""
        return torch.ones_like(self.positions_N, dtype=torch.bool)

    def nth(self, x_ND: Tensor, number: int) -> Tensor:
        """Return row `number` of every sequence, counted from 0."""
        return x_ND[(self.starts_B.long() + number).clamp(max=self.n_rows - 1)]


def loss_weights(lengths: Sequence[int], n_rows: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the loss weights of a fixed-size batch: one for real rows, zero for dummy rows."""
    return (torch.arange(n_rows) < sum(lengths)).float().to(device, non_blocking=True)
