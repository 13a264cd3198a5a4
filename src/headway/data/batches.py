"""Group pairs of token sequences into optimizer steps, and concatenate them into batches.

The order of the pairs is a pure function of the seed and the epoch. A position in the training data
is therefore given by two integers, the epoch and the number of its next step. No other state is
stored.
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
"""Number of optimizer steps whose pairs are sorted by length together (length bucketing). Attention
on a CPU is fastest if the pairs of a step have similar lengths. The order of the buckets stays
random: 32 is a compromise between little padding and random steps. 1 disables sorting. All steps
then have about the same composition and fit the fixed shapes of a CUDA graph."""

ROOM = 1.05
"""Limit on the source tokens of a step of length-sorted pairs, relative to the number expected from
the average ratio of source to target tokens."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Plan that divides an epoch into optimizer steps of a limited number of tokens.

    Lengths and limits include the end token of each sequence. A plan without length sorting
    (`bucket_steps=1`) is called mixed.
    """

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
        """Return a plan for single sequences, with at most `tokens` tokens per step."""
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
        """Return a plan for pairs, with about `target_tokens` per step and a matching limit on
        source tokens."""
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
        """Return the pair indices of each step of an epoch, in random order. Every pair occurs
        once. One step may be smaller than the others."""
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
        """Maximum number of target tokens in a step. In a mixed plan, all steps get about the same
        size, with a tolerance of 1%; otherwise the last step would be much smaller."""
        if not self.is_mixed:
            return self.target_tokens
        even = int(self.target_lengths.sum()) // self._n_steps
        even += self._room(self.target_tokens)
        return max(int(self.target_lengths.max()), min(self.target_tokens, even))

    @property
    def _n_steps(self) -> int:
        """Number of steps in an epoch of a mixed plan."""
        size = max(1, self.target_tokens - self._room(self.target_tokens))
        return -(-int(self.target_lengths.sum()) // size)

    def part_limit(self, micro_tokens: int) -> int:
        """Return the maximum number of target tokens in a micro-batch. It is at least the longest
        sequence and at most a whole step. A step of a mixed plan is divided into micro-batches of
        about equal size."""
        return self.part_limits(micro_tokens)[1]

    def part_limits(self, micro_tokens: int) -> tuple[int, int]:
        """Return the maximum numbers of source tokens and of target tokens in a micro-batch."""
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
        """Return the limit on source tokens for a step or micro-batch with this many target tokens.
        Almost no micro-batch reaches the limit. A micro-batch that would exceed it gets fewer
        pairs."""
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
        """Split a step into micro-batches within both token limits, without splitting a pair.

        In a mixed plan, the pairs are distributed by length, so that all micro-batches are similar.
        In other plans, the order of the pairs is kept.
        """
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
        """Return, for each of `n` items sorted by length, the index of its part. Parts are filled
        in snake order (0, 1, …, k-1, k-1, …, 1, 0), so that no part gets all the longer items."""
        turn, place = np.divmod(np.arange(n), n_parts)
        return np.where(turn % 2, n_parts - 1 - place, place)

    def _cut(
        self, rows: IntArray, source_tokens: int, target_tokens: int, n_parts: int | None = None
    ) -> list[IntArray]:
        """Split pairs in order into parts within both token limits. With `n_parts`, split them into
        about that many parts of equal size."""
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
        """Return an upper bound on the number of pairs whose targets have this many tokens in
        total. CUDA graphs need the bound to fix the shapes of a batch."""
        times = 1.25 if self.is_mixed else 2
        return 8 + int(times * target_tokens / max(1.0, self.target_lengths.mean()))

    def n_targets(self, rows: IntArray) -> int:
        return int(self.target_lengths[rows].sum())


@dataclass(frozen=True, kw_only=True)
class FixedShapes:
    """Shapes that every batch is padded to, so that one CUDA graph fits all batches."""

    source_rows: int
    """Number of source positions in a batch, including padding."""

    target_rows: int
    """Number of target positions in a batch, including padding."""

    n_sequences: int
    """Number of sequences in a batch, including dummy sequences that fill the padding."""

    longest: int
    """Maximum length of a sequence in tokens."""

    longest_target: int | None = None
    """Maximum length of a target in tokens, given only for texts about images. Targets are then
    padded separately, and source positions determine the size of a micro-batch. None for all other
    data."""

    n_dummies: int = 0
    """Minimum number of dummy sequences appended to the sources, if enough padding is left."""

    @property
    def rows(self) -> int:
        """Number of positions that determines the size of a micro-batch: source positions for texts
        about images, otherwise target positions."""
        return self.target_rows if self.longest_target is None else self.source_rows

    @property
    def most_rows(self) -> int:
        return max(self.source_rows, self.target_rows)


def layout_of(lengths: NDArray[np.int64], fixed: FixedShapes | None) -> Layout:
    """Return the layout of concatenated sequences, padded to fixed shapes if they are given."""
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
    """Return shapes that fit every batch within these token limits.

    If sequences may be too long for the `short` attention kernel, every dummy target also gets a
    source position, because the kernels for long sequences cannot attend to an empty source.
    """

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
    """Return the decoder inputs (start token and target), the expected outputs (target and end
    token), and the length of each of these sequences. `begin`: token inserted before every target,
    or None."""
    said, longer = with_special_tokens(tokens, lengths, begin, eos)
    read = np.empty_like(said)
    read[1:] = said[:-1]
    read[np.cumsum(longer) - longer] = bos
    return read, said, longer


def with_special_tokens(
    tokens: NDArray[np.int64], lengths: NDArray[np.int64], begin: int | None, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the concatenated sequences with `end` after each of them, and their lengths. `begin`:
    token inserted before each sequence, or None."""
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
    """Return the tokens as a tensor, padded with zeros to `n_rows` positions."""
    filled = torch.zeros(n_rows, dtype=torch.long)
    filled[: len(tokens)] = torch.from_numpy(tokens)
    return filled


BatchT = TypeVar("BatchT")


def to_device(batch: BatchT, device: torch.device | str) -> BatchT:
    """Return a copy of a dataclass on a device. Its fields may be tensors, tuples, layouts or
    further dataclasses.

    Tensors are copied from pinned memory, so that the CPU does not wait for the transfer.
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
