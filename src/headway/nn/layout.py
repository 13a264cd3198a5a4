"""Layout of the sequences in a flat batch, in which all positions are real tokens and there is no
padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Tree(NamedTuple):
    """Attention mask for keys that do not form one linear text.

    In beam search, the hypotheses of a source share one sequence of keys, and each may attend only
    to its own past in it. When hypotheses are reordered, only the tree changes, not the keys.
    """

    may_BTS: Tensor
    """True where a query may attend to a key. No causal mask is added."""

    position_S: Tensor
    """Position of each key in its hypothesis, for scores that depend on distance. The shape is (B 1
    S) if sequences differ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Sequences of a flat batch: sequence b starts at index `starts_B[b]` and has `lengths_B[b]`
    tokens.

    In a batch, sequences are contiguous. In a cache, they start `stride` tokens apart, so that each
    has room to grow. Attention reads either kind in the same way.
    """

    starts_B: Tensor
    lengths_B: Tensor
    n_rows: int
    positions_N: Tensor
    """Position of each token in its sequence, including cached tokens before it. Empty for the keys
    of a cache, which need no position because they are not embedded again."""

    longest: int
    """Upper bound of the sequence lengths. It is exact unless the layout has fixed shapes."""

    reach: int
    """Exclusive upper bound of the positions: every position is smaller."""

    bounds: Tensor | None = None
    """Start of each sequence, followed by the total number of tokens. None if the sequences are not
    contiguous."""

    stride: int | None = None
    """Distance between the starts of consecutive sequences, if it is constant. The tensors can then
    be viewed as a padded batch without a copy. None otherwise."""

    lengths: tuple[int, ...] | None = None
    """Copy of `lengths_B` on the host. Attention can group sequences by length without a
    synchronization. None in layouts with fixed shapes, whose compiled steps must not depend on the
    lengths."""

    tree: Tree | None = None
    """Mask of the keys that each query may attend to, if the hypotheses of a beam share the keys of
    a cache. None otherwise."""

    memo: dict[object, object] = field(default_factory=dict, repr=False, compare=False)
    """Cache for values that are computed once from this layout and used in every layer."""

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
        """Return a layout whose shapes do not depend on the lengths, for compiled steps and CUDA
        graphs.

        Unused positions become dummy sequences of at most `longest` tokens. There are at least
        `n_dummies` of them if there are enough positions. Unused sequences are empty. Sorted
        lengths help the `short` kernel to balance its work. The caller must give dummy tokens the
        loss weight zero (`loss_weights`). No real token attends to them.
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
        """Return the layout of `length` new tokens per sequence, which follow `offsets_B` cached
        tokens."""
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
        # Use numpy, because a step may have thousands of short sequences. To convert lists of that
        # length, PyTorch needs longer than a GPU needs for the step itself.
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
        """Return the layout of the used slots of a cache with `capacity` slots per sequence."""
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
        """Return the layout of the sequences with these indices, in this order. The tokens
        themselves stay in place."""
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
        """Whether every sequence has `longest` tokens and the sequences are contiguous."""
        return self.bounds is not None and self.stride is not None

    def has_all(self, n_rows: int) -> bool:
        """Return whether every sequence is known to have at least `n_rows` tokens."""
        return self.lengths is not None and min(self.lengths, default=0) >= n_rows

    def beginnings(self, n_rows: int) -> tuple[Tensor, Layout]:
        """Return the indices of the first `n_rows` tokens of each sequence, and the layout of these
        tokens. Every sequence must have at least that many."""
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
        """Return the lengths on the host. This synchronizes with the device if the host does not
        know them yet."""
        return self.lengths if self.lengths is not None else tuple(self.lengths_B.tolist())

    def split(self, x_N: Tensor) -> list[Tensor]:
        """Split a tensor with one row per token into one tensor per sequence."""
        pairs = zip(self.starts_B.tolist(), self.known_lengths(), strict=True)
        return [x_N[start : start + length] for start, length in pairs]

    def last_N(self) -> Tensor:
        """Return the index of the last token of each sequence."""
        return self.starts_B + self.lengths_B - 1

    def pooled(self, x_ND: Tensor, pooling: str) -> Tensor:
        """Return one vector per sequence. `pooling`: the vector of the `first` or `last` token, or
        the `mean` of all. The result for empty sequences, which fixed-size layouts have at the end,
        is arbitrary."""
        if pooling in ("first", "last"):
            row_B = self.starts_B if pooling == "first" else self.last_N()
            return x_ND[row_B.long().clamp(0, self.n_rows - 1)]
        number_N = self.numbers_N()
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        zeros_BD = x_ND.new_zeros(self.n_sequences, x_ND.shape[1], dtype=wide)
        sum_BD = zeros_BD.index_add(0, number_N, x_ND.to(wide))
        return (sum_BD / self.lengths_B[:, None].clamp(min=1)).to(x_ND.dtype)

    def numbers_N(self) -> Tensor:
        """Return the index of the sequence that each token belongs to."""
        return torch.repeat_interleave(self.lengths_B, output_size=self.n_rows)

    def real_N(self) -> Tensor:
        """Return a mask of the tokens that are not padding. A flat batch has none, so it is all
        true."""
        return torch.ones_like(self.positions_N, dtype=torch.bool)

    def nth(self, x_ND: Tensor, number: int) -> Tensor:
        """Return the token at index `number` of every sequence, counted from 0."""
        return x_ND[(self.starts_B.long() + number).clamp(max=self.n_rows - 1)]


def loss_weights(lengths: Sequence[int], n_rows: int, device: torch.device | str = "cpu") -> Tensor:
    """Return loss weights for a fixed-size batch: one for real tokens, zero for dummy tokens."""
    return (torch.arange(n_rows) < sum(lengths)).float().to(device, non_blocking=True)
