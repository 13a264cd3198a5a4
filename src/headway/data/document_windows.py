"""Cut documents into windows that fit the context, at different positions in every epoch.

A document longer than the context is first cut at a random position, and then every `context`
tokens. Over many epochs, every token therefore occurs at every position. The cuts are a pure
function of the seed and the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.batches import FixedShapes, StepPlan, fixed_shapes

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class DocumentWindows:
    """Windows of documents that fit the context, in the order of the documents."""

    document: IntArray
    """Index of the document of each window."""

    start: IntArray
    """Position of the first token of each window in its document."""

    length: IntArray
    """Number of tokens of each window."""

    def __len__(self) -> int:
        return len(self.document)


def cut_documents(lengths: IntArray, context: int, phase: IntArray) -> DocumentWindows:
    """Cut documents that are longer than `context` into windows of `context` tokens. `phase`:
    length of the first window of each document; 0: a full window."""
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
    """Cut documents into windows without randomness, for validation."""
    return cut_documents(lengths, context, np.zeros(len(lengths), np.int64))


def random_windows(lengths: IntArray, context: int, seed: int, epoch: int) -> DocumentWindows:
    """Cut documents into windows at random positions, which differ between epochs."""
    draw = np.random.Generator(np.random.PCG64([seed, epoch, 1]))
    return cut_documents(lengths, context, draw.integers(0, context, len(lengths)))


def window_limit(plan: StepPlan, micro_tokens: int, widest: int) -> int:
    """Return the maximum number of tokens in a micro-batch, at least one window. It is 2% above
    what the first epoch needs, because every epoch is cut differently."""
    needed = int(1.02 * plan.part_limit(micro_tokens))
    return max(min(needed, plan.target_tokens), widest)


def window_shapes(plan: StepPlan, tokens: int, widest: int) -> FixedShapes:
    """Return fixed shapes for the micro-batches of every epoch."""
    shapes = fixed_shapes(plan, tokens, tokens, widest)
    # The number of windows in a micro-batch differs slightly from epoch to epoch.
    return replace(shapes, n_sequences=shapes.n_sequences + shapes.n_sequences // 4 + 8)
