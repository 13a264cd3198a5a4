"""Cut documents into windows that fit the context, at different places in every epoch.

A document that is longer than the context is cut at a random place first and then every `context`
tokens, so that over the epochs every token occurs at every position. The cuts are a pure function
of the seed and the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.batches import FixedShapes, StepPlan, fixed_shapes

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class DocumentWindows:
    """Windows of documents: the document, the position of the first token, and the number of tokens
    of each window."""

    document: IntArray
    start: IntArray
    length: IntArray

    def __len__(self) -> int:
        return len(self.document)


def cut_documents(lengths: IntArray, context: int, phase: IntArray) -> DocumentWindows:
    """Cut long documents into windows of `context` tokens, the first of which ends at the `phase`
    of the document."""
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
    return DocumentWindows(document, start, end - start)


def fixed_windows(lengths: IntArray, context: int) -> DocumentWindows:
    """Cut documents without randomness, for validation."""
    return cut_documents(lengths, context, np.zeros(len(lengths), np.int64))


def random_windows(lengths: IntArray, context: int, seed: int, epoch: int) -> DocumentWindows:
    """Cut documents at the random places of an epoch."""
    draw = np.random.Generator(np.random.PCG64([seed, epoch, 1]))
    return cut_documents(lengths, context, draw.integers(0, context, len(lengths)))


def window_limit(plan: StepPlan, micro_tokens: int, widest: int) -> int:
    """Token limit of a micro-batch, at least one window. It is 2% above what the first epoch needs,
    because every epoch is cut differently."""
    needed = int(1.02 * plan.part_limit(micro_tokens))
    return max(min(needed, plan.target_tokens), widest)


def window_shapes(plan: StepPlan, tokens: int, widest: int) -> FixedShapes:
    """Return shapes that hold every micro-batch of any epoch."""
    shapes = fixed_shapes(plan, tokens, tokens, widest)
    # The number of windows in a micro-batch differs slightly from epoch to epoch.
    return replace(shapes, n_sequences=shapes.n_sequences + shapes.n_sequences // 4 + 8)
