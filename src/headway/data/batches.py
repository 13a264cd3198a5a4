"""Group pairs of token sequences into steps and flat batches.

The order is a pure function of the seed and the epoch. A position in the training data is therefore
two integers, the epoch and the number of its next step, and no other state is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.nn.attention.attend import SHORT_LIMIT
from headway.nn.layout import Layout

IntArray = NDArray[np.int64]

BUCKET_STEPS = 32
"""Length bucketing: number of steps whose pairs are sorted by length together, because attention on
a CPU is fastest if the pairs of a step have similar lengths. The order of the buckets stays random,
so 32 trades off less padding against more random steps. 1: no sorting. All steps then have about
the same composition and fit the fixed shapes of a CUDA graph."""

ROOM = 1.05
"""Limit on the source tokens of a step of sorted pairs, relative to the expected number: 5% above
the average ratio of source to target tokens."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Plan that divides an epoch into optimiser steps with a limit on tokens; end tokens count
    too."""

    source_lengths: NDArray[np.int64]
    target_lengths: NDArray[np.int64]
    source_tokens: int
    target_tokens: int
    seed: int
    bucket_steps: int = BUCKET_STEPS

    @classmethod
    def of_lengths(
        cls, lengths: NDArray[np.int64], tokens: int, seed: int, pool: int | None = None
    ) -> StepPlan:
        """Plan steps for single sequences."""
        return cls(
            source_lengths=lengths,
            target_lengths=lengths,
            source_tokens=tokens,
            target_tokens=tokens,
            seed=seed,
            bucket_steps=pool or BUCKET_STEPS,
        )

    @classmethod
    def of_pairs(
        cls,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        target_tokens: int,
        seed: int,
        pool: int | None = None,
    ) -> StepPlan:
        """Plan steps of about `target_tokens`, with a matching limit on their source tokens."""
        plan = cls(
            source_lengths=source,
            target_lengths=target,
            source_tokens=0,
            target_tokens=max(target_tokens, int(target.max())),
            seed=seed,
            bucket_steps=pool or BUCKET_STEPS,
        )
        return replace(plan, source_tokens=plan.source_limit(plan.step_limit))

    @property
    def is_mixed(self) -> bool:
        return self.bucket_steps == 1

    def epoch(self, number: int) -> list[IntArray]:
        """Return the pairs of each step. Every pair occurs once; one step may be small."""
        draw = np.random.Generator(np.random.PCG64([self.seed, number]))
        order = draw.permutation(len(self.target_lengths))
        if not self.is_mixed:
            self._sort_buckets(order)
        n_steps = self._n_steps if self.is_mixed else None
        steps = self._cut(order, self.source_tokens, self.step_limit, n_steps)
        return [steps[i] for i in draw.permutation(len(steps))]

    def _sort_buckets(self, order: IntArray) -> None:
        per_step = max(1, int(self.target_tokens / max(1.0, self.target_lengths.mean())))
        for first in range(0, len(order), self.bucket_steps * per_step):
            pool = order[first : first + self.bucket_steps * per_step]
            order[first : first + self.bucket_steps * per_step] = pool[
                np.argsort(self._longer(pool), kind="stable")
            ]

    def _longer(self, rows: IntArray) -> NDArray[np.int64]:
        return np.maximum(self.source_lengths[rows], self.target_lengths[rows])

    @cached_property
    def step_limit(self) -> int:
        """Maximum number of target tokens of a step. Mixed steps are made equally large, with 1% of
        room, instead of filling all but a small last one."""
        if not self.is_mixed:
            return self.target_tokens
        even = int(self.target_lengths.sum()) // self._n_steps
        even += self._room(self.target_tokens)
        return max(int(self.target_lengths.max()), min(self.target_tokens, even))

    @property
    def _n_steps(self) -> int:
        """Number of mixed steps in an epoch."""
        size = max(1, self.target_tokens - self._room(self.target_tokens))
        return -(-int(self.target_lengths.sum()) // size)

    def part_limit(self, micro_tokens: int) -> int:
        """Maximum number of target tokens of a micro-batch: at least the longest sequence, at most
        a step. A mixed step is divided into equal micro-batches with a little room."""
        return self.part_limits(micro_tokens)[1]

    def part_limits(self, micro_tokens: int) -> tuple[int, int]:
        """Limits of source tokens and target tokens of a micro-batch."""
        longest = int(self.target_lengths.max())
        target = min(max(micro_tokens, longest), self.step_limit)
        n_parts = -(-self.step_limit // target)
        if not self.is_mixed:
            return min(self.source_limit(target), self.source_tokens), target
        if n_parts > 1:
            even = self.step_limit // n_parts
            target = max(longest, min(self.step_limit, even + self._room(even, 0.02)))
        source = self.source_tokens
        if n_parts > 1:
            even = source // n_parts
            most = even + self._room(even, 0.02)
            source = max(int(self.source_lengths.max()), min(source, most))
        return source, target

    def source_limit(self, target_tokens: int) -> int:
        """Limit on the source tokens of a step or micro-batch with this many target tokens. It is
        high enough that almost no micro-batch exceeds it; one that would gets fewer pairs."""
        source, target = self.source_lengths, self.target_lengths
        longest = int(source.max())
        ratio = source.sum() / target.sum()
        if not self.is_mixed:
            return max(int(ROOM * ratio * target_tokens) + 1, longest)
        # The standard deviation of a sum of n independent differences grows with √n.
        n_pairs = target_tokens / target.mean()
        spread = float((source - ratio * target).std()) * n_pairs**0.5
        return max(int(ratio * target_tokens + 2.5 * spread) + 1, longest)

    def _room(self, tokens: int, share: float = 0.01) -> int:
        return int(share * tokens + 2 * self.target_lengths.mean()) + 1

    def cut(self, rows: IntArray, source_tokens: int, target_tokens: int) -> list[IntArray]:
        """Cut a step into micro-batches within both token limits; a pair is never split. The pairs
        of a mixed step are dealt out by length, so that its micro-batches are similar. Other steps
        are cut in order."""
        if not self.is_mixed:
            return self._cut(rows, source_tokens, target_tokens)
        rows = rows[np.argsort(self._longer(rows), kind="stable")]
        limits = (
            (self.source_lengths[rows], source_tokens),
            (self.target_lengths[rows], target_tokens),
        )
        fewest = max(1, *(-(-int(lengths.sum()) // limit) for lengths, limit in limits))
        for n_parts in range(fewest, len(rows)):
            part_of = self._deal(len(rows), n_parts)
            sums = (np.bincount(part_of, lengths, n_parts).max() for lengths, _ in limits)
            if all(most <= limit for most, (_, limit) in zip(sums, limits, strict=True)):
                return [rows[part_of == part] for part in range(n_parts)]
        return [rows[i : i + 1] for i in range(len(rows))]

    @staticmethod
    def _deal(n: int, n_parts: int) -> NDArray[np.int64]:
        """Assign sorted items to parts back and forth, so that no part gets all the longer ones."""
        turn, place = np.divmod(np.arange(n), n_parts)
        return np.where(turn % 2, n_parts - 1 - place, place)

    def _cut(
        self, rows: IntArray, source_tokens: int, target_tokens: int, n_parts: int | None = None
    ) -> list[IntArray]:
        """Cut consecutive rows into parts that fit both token limits, into about `n_parts` equal
        parts if that is given."""
        most = self.most_pairs(target_tokens)
        source_ends = np.cumsum(self.source_lengths[rows])
        target_ends = np.cumsum(self.target_lengths[rows])
        borders = np.full(0, 0)
        if n_parts is not None and len(rows):
            wanted = np.arange(1, n_parts + 1) * (target_ends[-1] / n_parts)
            borders = np.searchsorted(target_ends, wanted - self.target_lengths.mean() / 2) + 1
            borders[-1] = len(rows)
        parts: list[IntArray] = []
        first, source_done, target_done = 0, 0, 0
        while first < len(rows):
            fit = [
                int(np.searchsorted(source_ends, source_done + source_tokens, side="right")),
                int(np.searchsorted(target_ends, target_done + target_tokens, side="right")),
            ]
            fit += borders[len(parts) : len(parts) + 1].tolist()
            last = max(min(*fit, first + most), first + 1)
            parts.append(rows[first:last])
            source_done, target_done = int(source_ends[last - 1]), int(target_ends[last - 1])
            first = last
        return parts

    def most_pairs(self, target_tokens: int) -> int:
        """Upper bound on the number of pairs with this many target tokens, which fixes the shapes
        of CUDA graphs."""
        times = 1.25 if self.is_mixed else 2
        return 8 + int(times * target_tokens / max(1.0, self.target_lengths.mean()))

    def n_targets(self, rows: IntArray) -> int:
        return int(self.target_lengths[rows].sum())


@dataclass(frozen=True, kw_only=True)
class FixedShapes:
    """Fixed shapes that all batches are padded to, so that one CUDA graph fits them."""

    source_rows: int
    target_rows: int
    n_sequences: int
    longest: int
    longest_target: int | None = None
    """Longest target in tokens, only for texts about images. Their batches are padded with dummy
    rows, and the size of a micro-batch is the number of its source rows."""

    n_dummies: int = 0
    """Minimum number of dummy sequences that follow the sources, as long as rows are left."""

    @property
    def rows(self) -> int:
        """Number of rows that determines the size of a micro-batch."""
        return self.target_rows if self.longest_target is None else self.source_rows

    @property
    def most_rows(self) -> int:
        return max(self.source_rows, self.target_rows)


def layout_of(lengths: NDArray[np.int64], fixed: FixedShapes | None) -> Layout:
    """Return the layout of concatenated sequences, with fixed shapes if given."""
    if fixed is None:
        return Layout.of(lengths.tolist())
    return Layout.fixed(
        lengths.tolist(),
        n_rows=fixed.target_rows,
        n_sequences=fixed.n_sequences,
        longest=fixed.longest,
    )


def fixed_shapes(
    plan: StepPlan, source_tokens: int, target_tokens: int, longest: int
) -> FixedShapes:
    """Return shapes that fit any batch within these token limits. If sequences may be too long for
    the `short` attention kernel, every dummy target also gets a source row: the kernels for long
    sequences cannot attend to an empty source."""

    def rounded(n: int) -> int:
        return -(-n // 128) * 128

    target_rows = rounded(target_tokens)
    spare = -(-target_rows // longest) if longest > SHORT_LIMIT else 0
    rows = rounded(source_tokens + spare), target_rows
    dummies = max(-(-n // longest) for n in rows)
    n_sequences = plan.most_pairs(target_tokens) + dummies
    return FixedShapes(
        source_rows=rows[0], target_rows=rows[1], n_sequences=n_sequences, longest=longest
    )


def shift_right(
    tokens: NDArray[np.int64], lengths: NDArray[np.int64], bos: int, eos: int, begin: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the decoder input (start token and target), the expected output (target and end
    token), and their lengths. `begin` is a token that every target begins with."""
    said, longer = with_special_tokens(tokens, lengths, begin, eos)
    read = np.empty_like(said)
    read[1:] = said[:-1]
    read[np.cumsum(longer) - longer] = bos
    return read, said, longer


def with_special_tokens(
    tokens: NDArray[np.int64], lengths: NDArray[np.int64], begin: int | None, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Add a token after every sequence, and one before it if `begin` is given."""
    longer = lengths + (1 if begin is None else 2)
    ends = np.cumsum(longer)
    filled = np.full(int(longer.sum()), end, dtype=np.int64)
    is_token = np.ones(len(filled), dtype=np.bool_)
    is_token[ends - 1] = False
    if begin is not None:
        is_token[ends - longer] = False
        filled[ends - longer] = begin
    filled[is_token] = tokens
    return filled, longer


def pad_rows(tokens: NDArray[np.int64], n_rows: int) -> Tensor:
    """Pad the tokens with zeros to `n_rows`, for dummy rows."""
    filled = torch.zeros(n_rows, dtype=torch.long)
    filled[: len(tokens)] = torch.from_numpy(tokens)
    return filled


BatchT = TypeVar("BatchT")


def to_device(batch: BatchT, device: torch.device | str) -> BatchT:
    """Move a dataclass of tensors, tuples, layouts or such dataclasses to a device.

    The copy is made from pinned memory, so that the CPU does not wait for it.
    """
    if torch.device(device).type == "cpu":
        return batch
    changed = {name: _moved(value, device) for name, value in vars(batch).items()}
    return replace(batch, **changed)  # type: ignore[type-var]


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return _sent(value, device)
    if isinstance(value, tuple):
        return tuple(_moved(part, device) for part in value)
    if isinstance(value, Layout):
        parts: dict[str, Any] = {
            key: _sent(part, device)
            for key, part in vars(value).items()
            if isinstance(part, Tensor)
        }
        if value.bounds is not None:  # the starts are a view of the bounds: keep it one
            parts["starts_B"] = parts["bounds"][:-1]
        return replace(value, **parts, memo={})
    return to_device(value, device) if is_dataclass(value) else value


def _sent(x: Tensor, device: torch.device | str) -> Tensor:
    if x.device.type != "cpu":  # already there, such as images kept on a GPU
        return x
    return x.pin_memory().to(device, non_blocking=True)
