"""Pairs of token sequences to flat batches: which pairs make which step, and their tensors.

The order is a pure function of the seed and the epoch. A position in the training data is therefore
two integers, the epoch and the number of the next step in it, and needs no state to be stored.
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

Rows = NDArray[np.int64]

POOL = 32
"""Steps whose pairs are sorted by length together. Attention on a CPU is cheapest among pairs of
like length; the pool keeps them random otherwise. With 1, steps are mixed: all of them are alike,
so that they fill one fixed form, as a recorded step on a GPU needs it."""

ROOM = 1.05
"""Source tokens that a step of sorted pairs has room for, beyond what its target tokens bring on
average."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Cuts an epoch into steps of at most so many tokens, counted with their end tokens."""

    source_lengths: NDArray[np.int64]
    target_lengths: NDArray[np.int64]
    source_tokens: int
    target_tokens: int
    seed: int
    pool: int = POOL

    @classmethod
    def of_lengths(
        cls, lengths: NDArray[np.int64], tokens: int, seed: int, pool: int | None = None
    ) -> StepPlan:
        """For sequences that are no pairs."""
        return cls(
            source_lengths=lengths,
            target_lengths=lengths,
            source_tokens=tokens,
            target_tokens=tokens,
            seed=seed,
            pool=pool or POOL,
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
        """Steps of so many target tokens, and the source tokens that come with them."""
        plan = cls(
            source_lengths=source,
            target_lengths=target,
            source_tokens=0,
            target_tokens=max(target_tokens, int(target.max())),
            seed=seed,
            pool=pool or POOL,
        )
        return replace(plan, source_tokens=plan.source_limit(plan.step_limit))

    @property
    def is_mixed(self) -> bool:
        return self.pool == 1

    def epoch(self, number: int) -> list[Rows]:
        """The pairs of each step. Every pair comes once; the last step may be a small one."""
        draw = np.random.Generator(np.random.PCG64([self.seed, number]))
        order = draw.permutation(len(self.target_lengths))
        if not self.is_mixed:
            self._sort_pools(order)
        n_steps = self._n_steps if self.is_mixed else None
        steps = self._cut(order, self.source_tokens, self.step_limit, n_steps)
        return [steps[i] for i in draw.permutation(len(steps))]

    def _sort_pools(self, order: Rows) -> None:
        per_step = max(1, int(self.target_tokens / max(1.0, self.target_lengths.mean())))
        for first in range(0, len(order), self.pool * per_step):
            pool = order[first : first + self.pool * per_step]
            order[first : first + self.pool * per_step] = pool[
                np.argsort(self._longer(pool), kind="stable")
            ]

    def _longer(self, rows: Rows) -> NDArray[np.int64]:
        return np.maximum(self.source_lengths[rows], self.target_lengths[rows])

    @cached_property
    def step_limit(self) -> int:
        """Target tokens of a step at most. Mixed steps are all about as large: one number of them,
        and a little room, instead of full ones and a small rest."""
        if not self.is_mixed:
            return self.target_tokens
        even = int(self.target_lengths.sum()) // self._n_steps
        even += self._room(self.target_tokens)
        return max(int(self.target_lengths.max()), min(self.target_tokens, even))

    @property
    def _n_steps(self) -> int:
        """Mixed steps of an epoch."""
        size = max(1, self.target_tokens - self._room(self.target_tokens))
        return -(-int(self.target_lengths.sum()) // size)

    def part_limit(self, micro_tokens: int) -> int:
        """Target tokens of what is computed at a time: never less than the longest has, never more
        than a step. A mixed step is cut into equal parts, which may be larger by a little room."""
        return self.part_limits(micro_tokens)[1]

    def part_limits(self, micro_tokens: int) -> tuple[int, int]:
        """Source tokens and target tokens of a part."""
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
        """Source tokens that come with so many target tokens, but for rare chances, in which fewer
        pairs are taken."""
        source, target = self.source_lengths, self.target_lengths
        longest = int(source.max())
        ratio = source.sum() / target.sum()
        if not self.is_mixed:
            return max(int(ROOM * ratio * target_tokens) + 1, longest)
        # A sum of independent differences: it spreads by the root of their number.
        n_pairs = target_tokens / target.mean()
        spread = float((source - ratio * target).std()) * n_pairs**0.5
        return max(int(ratio * target_tokens + 2.5 * spread) + 1, longest)

    def _room(self, tokens: int, share: float = 0.01) -> int:
        """What steps that are filled with whole sequences leave free, and by how much parts differ,
        generously."""
        return int(share * tokens + 2 * self.target_lengths.mean()) + 1

    def cut(self, rows: Rows, source_tokens: int, target_tokens: int) -> list[Rows]:
        """What is computed at a time, within these numbers on both sides; a pair is never split.
        Mixed steps are dealt out, so that their parts are alike; the others are cut."""
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
        """To which part each goes: forth and back, so that none has always the longer ones."""
        turn, place = np.divmod(np.arange(n), n_parts)
        return np.where(turn % 2, n_parts - 1 - place, place)

    def _cut(
        self, rows: Rows, source_tokens: int, target_tokens: int, n_parts: int | None = None
    ) -> list[Rows]:
        """Consecutive rows, as many at a time as fit on both sides, or as go into one of so many
        equal parts."""
        most = self.most_pairs(target_tokens)
        source_ends = np.cumsum(self.source_lengths[rows])
        target_ends = np.cumsum(self.target_lengths[rows])
        borders = np.full(0, 0)
        if n_parts is not None and len(rows):
            wanted = np.arange(1, n_parts + 1) * (target_ends[-1] / n_parts)
            borders = np.searchsorted(target_ends, wanted - self.target_lengths.mean() / 2) + 1
            borders[-1] = len(rows)
        parts: list[Rows] = []
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
        """Pairs that so many tokens may be cut into: a bound that recorded steps need."""
        times = 1.25 if self.is_mixed else 2
        return 8 + int(times * target_tokens / max(1.0, self.target_lengths.mean()))

    def n_targets(self, rows: Rows) -> int:
        return int(self.target_lengths[rows].sum())


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The shapes of every batch, for recorded steps."""

    source_rows: int
    target_rows: int
    n_sequences: int
    longest: int
    longest_target: int | None = None
    """Of texts about pictures, which have rows to fill behind each of them; a part then counts the
    rows of its source as its tokens."""

    n_dummies: int = 0
    """Sequences of a source that stand behind its own at least, while there are rows for them."""

    @property
    def rows(self) -> int:
        """Of what a part counts as its tokens."""
        return self.target_rows if self.longest_target is None else self.source_rows

    @property
    def most_rows(self) -> int:
        return max(self.source_rows, self.target_rows)


def layout_of(lengths: NDArray[np.int64], fixed: Fixed | None) -> Layout:
    """Of sequences side by side, in the fixed form where there is one."""
    if fixed is None:
        return Layout.of(lengths.tolist())
    return Layout.fixed(
        lengths.tolist(),
        n_rows=fixed.target_rows,
        n_sequences=fixed.n_sequences,
        longest=fixed.longest,
    )


def fixed_shapes(plan: StepPlan, source_tokens: int, target_tokens: int, longest: int) -> Fixed:
    """Shapes that hold any batch cut to these numbers of tokens. Where sequences may be too long
    for the `short` kernel, there is a source row for every dummy target: attention to nothing is no
    work for the kernels of long ones."""

    def rounded(n: int) -> int:
        return -(-n // 128) * 128

    target_rows = rounded(target_tokens)
    spare = -(-target_rows // longest) if longest > SHORT_LIMIT else 0
    rows = rounded(source_tokens + spare), target_rows
    dummies = max(-(-n // longest) for n in rows)
    n_sequences = plan.most_pairs(target_tokens) + dummies
    return Fixed(source_rows=rows[0], target_rows=rows[1], n_sequences=n_sequences, longest=longest)


def fed(
    tokens: NDArray[np.int64], lengths: NDArray[np.int64], bos: int, eos: int, begin: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What a decoder reads of targets (the start token, then the target), what it should say (the
    target, then the end token), and their lengths. `begin`: what every target begins with."""
    said, longer = with_ends(tokens, lengths, begin, eos)
    read = np.empty_like(said)
    read[1:] = said[:-1]
    read[np.cumsum(longer) - longer] = bos
    return read, said, longer


def with_ends(
    tokens: NDArray[np.int64], lengths: NDArray[np.int64], begin: int | None, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every sequence with one more token behind it, and one before it if there is such."""
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


def filled(tokens: NDArray[np.int64], n_rows: int) -> Tensor:
    """The tokens, and zeros for the dummy rows behind them."""
    filled = torch.zeros(n_rows, dtype=torch.long)
    filled[: len(tokens)] = torch.from_numpy(tokens)
    return filled


Batch = TypeVar("Batch")


def moved(batch: Batch, device: torch.device | str) -> Batch:
    """The same on the device: any dataclass of tensors, of tuples of them, of layouts, or of
    dataclasses likewise.

    It goes there from pinned memory, so that nobody waits for it.
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
    return moved(value, device) if is_dataclass(value) else value


def _sent(x: Tensor, device: torch.device | str) -> Tensor:
    if x.device.type != "cpu":  # there already, as pictures are that a GPU keeps
        return x
    return x.pin_memory().to(device, non_blocking=True)
