"""Documents cut into windows that a model can read, differently in every epoch.

A document of n tokens that is longer than the context is cut at a random place first and then every
`context` tokens, so that over the epochs every token comes at every position. The cut is a pure
function of the seed and the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.batches import Fixed, Rows, StepPlan, fixed_shapes

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """Windows: which document, from which of its tokens on, how many."""

    document: Numbers
    start: Numbers
    length: Numbers

    def __len__(self) -> int:
        return len(self.document)


@dataclass(frozen=True)
class WindowRows:
    """Some windows of an epoch."""

    epoch: int
    rows: Rows


@dataclass
class Windows:
    """The windows of every epoch and the steps they make."""

    lengths: Callable[[int], Numbers]
    """Tokens of the documents in an epoch, counted as the model reads them."""

    context: int
    step_tokens: int
    seed: int
    pool: int | None = None
    _cuts: dict[int, Cut] = field(default_factory=dict)
    _limits: dict[int, int] = field(default_factory=dict)

    def cut(self, epoch: int) -> Cut:
        """The last two are kept: batches are made from them while the next epoch begins."""
        cuts = self._cuts
        if epoch not in cuts:
            draw = np.random.Generator(np.random.PCG64([self.seed, epoch, 1]))
            lengths = self.lengths(epoch)
            phase = draw.integers(0, self.context, len(lengths))
            cuts[epoch] = cut_documents(lengths, self.context, phase)
            for old in sorted(cuts)[:-2]:
                if old != epoch:
                    del cuts[old]
        return cuts[epoch]

    def plan(self, epoch: int) -> StepPlan:
        return self._plan(self.cut(epoch).length)

    def _plan(self, lengths: Numbers) -> StepPlan:
        return StepPlan.of_lengths(lengths, self.step_tokens, self.seed, self.pool)

    def epoch(self, number: int) -> list[WindowRows]:
        return [WindowRows(number, rows) for rows in self.plan(number).epoch(number)]

    def parts(self, step: WindowRows, micro_tokens: int) -> list[WindowRows]:
        tokens = self.limit(micro_tokens)
        cut = self.plan(step.epoch).cut(step.rows, tokens, tokens)
        return [WindowRows(step.epoch, rows) for rows in cut]

    def limit(self, micro_tokens: int) -> int:
        """Tokens of a part: never less than a window needs. Epochs are cut differently, so there is
        a little room beyond what the first one needs."""
        if micro_tokens not in self._limits:
            needed = self.plan(0).part_limit(micro_tokens)
            self._limits[micro_tokens] = max(min(int(1.02 * needed), self.step_tokens), self.widest)
        return self._limits[micro_tokens]

    @property
    def widest(self) -> int:
        """Tokens of a whole window, as the model reads it."""
        return self.context

    def fixed(self, micro_tokens: int) -> Fixed:
        """Shapes that hold every part of any epoch."""
        tokens = self.limit(micro_tokens)
        shapes = fixed_shapes(self.plan(0), tokens, tokens, self.widest)
        # The number of windows that a part is cut into differs a little from epoch to epoch.
        return replace(shapes, n_sequences=shapes.n_sequences + shapes.n_sequences // 4 + 8)


def cut_documents(lengths: Numbers, context: int, phase: Numbers) -> Cut:
    """Every document in windows; those that fit stay whole, the others are cut at their phase."""
    phase = np.where(lengths > context, phase, 0)
    has_first = phase > 0
    counts = has_first + -(-(lengths - phase) // context)
    document = np.repeat(np.arange(len(lengths)), counts)
    first_of = np.cumsum(counts) - counts
    number = np.arange(len(document)) - first_of[document]
    early = has_first[document]
    start = np.where(early, phase[document] + (number - 1) * context, number * context)
    start = np.maximum(start, 0)
    end = np.where(early & (number == 0), phase[document], start + context)
    end = np.minimum(end, lengths[document])
    return Cut(document, start, end - start)


def whole_cut(lengths: Numbers, context: int) -> Cut:
    """Without any chance: for validation."""
    return cut_documents(lengths, context, np.zeros(len(lengths), np.int64))


def drawn_cut(lengths: Numbers, context: int, seed: int, epoch: int) -> Cut:
    """As an epoch has it."""
    draw = np.random.Generator(np.random.PCG64([seed, epoch, 1]))
    return cut_documents(lengths, context, draw.integers(0, context, len(lengths)))


def window_limit(plan: StepPlan, micro_tokens: int, widest: int) -> int:
    """Tokens of a part: never less than a window needs. Epochs are cut differently, so there is a
    little room beyond what this plan, of the first one, needs."""
    needed = int(1.02 * plan.part_limit(micro_tokens))
    return max(min(needed, plan.target_tokens), widest)


def window_shapes(plan: StepPlan, tokens: int, widest: int) -> Fixed:
    """Shapes that hold every part of any epoch."""
    shapes = fixed_shapes(plan, tokens, tokens, widest)
    # The number of windows that a part is cut into differs a little from epoch to epoch.
    return replace(shapes, n_sequences=shapes.n_sequences + shapes.n_sequences // 4 + 8)
