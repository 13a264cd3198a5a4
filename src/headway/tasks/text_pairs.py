"""Pairs of texts for contrastive learning: two views of a text in one batch, or two halves of a
text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headway.data.batches import (
    FixedShapes,
    IntArray,
    StepPlan,
    fixed_shapes,
    layout_of,
    pad_rows,
)
from headway.data.store import Columns
from headway.data.token_store import TokenStore
from headway.metrics.retrieval import text_keys
from headway.models.parts.output_heads import ModelInput
from headway.tokens.tokenizer import Tokenizer


def content_keys(columns: Columns, examples: IntArray) -> IntArray:
    """Return a hash of the content of each example. Equal examples have equal hashes, so that they
    are not used as negatives of each other."""
    if "text" in columns:
        return text_keys(TokenStore(*columns["text"].gather(examples)))
    values = (np.asarray(columns.media[row]) for row in examples.tolist())
    found = [hashlib.blake2b(one.tobytes(), digest_size=7).digest() for one in values]
    return np.array([int.from_bytes(one, "little") for one in found], np.int64)


def interleaved(streams: Sequence[ModelInput], fixed: FixedShapes | None) -> ModelInput:
    """Return one batch with the sequences of all views. The views of an example are adjacent."""
    sides = [one.layout.split(one.values) for one in streams]
    texts = [text for pair in zip(*sides, strict=True) for text in pair]
    layout = layout_of(np.array([len(text) for text in texts], np.int64), fixed)
    return ModelInput(pad_rows(torch.cat(texts).numpy(), layout.n_rows), layout)


def fixed_pairs(plan: StepPlan, longest: int, n: int) -> FixedShapes:
    """Return fixed shapes of a batch that contains `n` views of each example."""
    shapes = fixed_shapes(plan, plan.step_limit, plan.step_limit, longest)
    dummies = -(-shapes.target_rows // longest)
    n_pairs = plan.most_pairs(plan.step_limit) + -(-dummies // n)
    rows = shapes.target_rows
    return FixedShapes(source_rows=rows, target_rows=rows, n_sequences=n * n_pairs, longest=longest)


def word_halves(columns: Columns, tokenizer: Tokenizer) -> tuple[Columns, Columns]:
    """Split each text into two halves: the words at even positions, and those at odd positions."""
    found: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] = ([], [])
    for number in range(columns.n):
        tokens = np.asarray(columns["text"][number], np.int64)
        starts = tokenizer.word_starts(tokens) if len(tokens) else tokens
        word = np.cumsum(starts) - 1
        for half, side in enumerate(found):
            side.append(tokens[word % 2 == half])
    one, other = (Columns({"text": TokenStore.of(side)}) for side in found)
    return one, other
