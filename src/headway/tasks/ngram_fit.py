"""Fit of a model's n-gram table to the training texts, before the layers are trained.

For labels, this is logistic regression, and for numbers ridge regression, on the n-grams that the
model extracts from its input tokens. For next-token prediction, n-grams are counted. The fit takes
some seconds, because larger corpora are sampled evenly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data.causal_lm import DEFAULT_EPOCH, DocumentTokens
from headway.models.parts.ngrams import SHARE, Ngrams, TokenView
from headway.nn.kneser_ney import KneserNey
from headway.nn.logistic import LinkFunction, SparseFeatures, fit_linear
from headway.tasks.dataset import Batch, TaskDataset
from headway.tasks.task import Note
from headway.tokens.pieces import SPACE_MARK
from headway.tokens.tokenizer import Tokenizer

T = TypeVar("T")

MOST_TOKENS = 2_000_000
"""Maximum number of training tokens in the fit, so that it takes some seconds."""

AT_ONCE = 512
"""Number of texts per batch. With a few dozen tokens each, the features of a batch take some
megabytes."""

L2_TEXTS: dict[LinkFunction, float] = {"one": 1.0, "several": 1.0, "number": 10.0}
"""L2 penalty for predictions of whole texts, by kind of target. For labels, features are scaled by
how well they discriminate (Wang and Manning 2012)."""

L2_TOKENS = 0.3
"""L2 penalty for predictions of single tokens. It is weaker than for whole texts, because there are
far more tokens than texts."""


def ngrams_of(model: nn.Module) -> Ngrams | None:
    return next((part for part in model.modules() if isinstance(part, Ngrams)), None)


@torch.no_grad()
def fit_ngrams(
    model: nn.Module,
    items: TaskDataset[T],
    labels: Callable[[Batch[T]], Tensor],
    tokenizer: Tokenizer,
    note: Note,
    link: LinkFunction = "one",
) -> None:
    """Fit the n-gram table, if the model has one.

    Args:
        model: Model whose n-gram table is replaced.
        items: Training examples.
        labels: Function that returns the targets of a batch. For classes, indices for its texts or
            predicted tokens (R); for multi-label targets and numbers, a matrix (R C).
        tokenizer: Tokenizer of the texts.
        note: Function that prints a line about the fit.
        link: Link function for the targets.
    """
    table, begun = ngrams_of(model), time.monotonic()
    if table is None:
        return
    device, table = table.weight_GC.device, table.cpu()
    table.views_KV.copy_(token_views(tokenizer, table.views_KV.shape[1]))
    found = [(*_features(table, batch), labels(batch)) for batch in _batches(items)]
    numbers, counts, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    used, dense = numbers.unique(return_inverse=True)
    rows = SparseFeatures(dense, counts.cumsum(0) - counts, len(used))
    right_RC = F.one_hot(targets, len(table.bias_C)).float() if link == "one" else targets
    l2 = L2_TEXTS[link] if table.of_texts else L2_TOKENS
    fitted = fit_linear(rows, right_RC, link, l2=l2, telling=table.of_texts and link != "number")
    table.weight_GC[used], table.bias_C[:] = fitted.weight_FC, fitted.bias_C
    table.share.fill_(SHARE)  # that of a parent run was fitted for another table
    table.to(device)
    what = "texts" if table.of_texts else "words"
    took = time.monotonic() - begun
    per = "" if link == "number" else " per label"
    note(f"n-grams: {len(used):,} weights{per}, fitted to {len(targets):,} {what} in {took:.0f} s")


def _batches(items: TaskDataset[T]) -> Iterator[Batch[T]]:
    lengths = items.lengths[:, -1]
    rows = np.arange(len(lengths))[:: max(1, -(-int(lengths.sum()) // MOST_TOKENS))]
    for first in range(0, len(rows), AT_ONCE):
        yield items.batch(rows[first : first + AT_ONCE], torch.device("cpu"))


def _features(table: Ngrams, batch: Batch[T]) -> tuple[Tensor, Tensor]:
    """Return the rows of the table for the n-grams of all texts or predicted tokens, concatenated,
    and the number of rows for each text or token."""
    stream = batch.streams[0]
    if not table.of_texts:
        buckets_RF = table.buckets(stream.values, stream.layout, stream.segments_N)[batch.rows_R]
        return buckets_RF.flatten(), torch.full((len(buckets_RF),), buckets_RF.shape[1])
    numbers, owner = table.unique_per_text(stream.values, stream.layout)
    n = stream.layout.n_sequences
    return numbers[owner < n], torch.bincount(owner, minlength=n + 1)[:n]


@dataclass(frozen=True)
class CountedTokens:
    """Token counts: tokens whose n-grams were counted (`n`), and all tokens (`of`)."""

    n: int
    of: int

    @property
    def text(self) -> str:
        return f"{self.of:,}" if self.n == self.of else f"{self.n:,} of {self.of:,}"


def count_ngrams(table: KneserNey, texts: DocumentTokens, most: int | None = None) -> CountedTokens:
    """Count the n-grams of all documents. If these have more than `most` tokens, count every
    second, third, … document. Return the number of tokens."""
    lengths = texts.lengths(DEFAULT_EPOCH)
    total = int(lengths.sum())
    most = total if most is None else most
    rows = np.arange(len(lengths))[:: max(1, -(-total // max(1, most)))]
    sizes = lengths[rows]
    # Truncate the last document too, because there may be only one.
    sizes = np.clip(most - (np.cumsum(sizes) - sizes), 0, sizes)
    table.fit(*texts.read(DEFAULT_EPOCH, rows, np.zeros_like(rows), sizes), sizes)
    return CountedTokens(int(sizes.sum()), total)


def token_views(tokenizer: Tokenizer, vocab_size: int) -> Tensor:
    """Return the features of each token of a vocabulary (K V), as `TokenView` defines them.
    Features are above 0 except `BEGINS`, because 0 means a missing token."""
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    views_KV = torch.zeros(len(TokenView), vocab_size, dtype=torch.int32)
    seen: dict[TokenView, dict[str, int]] = {TokenView.FOLDED: {}, TokenView.ENDING: {}}
    begin = tokenizer.begins_words
    for i, piece in enumerate(pieces):
        text, folded = piece.removeprefix(SPACE_MARK), piece.casefold()
        text = text if begin[i] else text.removeprefix("##")
        begins = bool(begin[i]) or i in tokenizer.specials or not text[:1].isalnum()
        views_KV[TokenView.PIECE, i] = i + 1
        views_KV[TokenView.FOLDED, i] = seen[TokenView.FOLDED].setdefault(folded, i + 1)
        views_KV[TokenView.SHAPE, i] = 2 * shape_of(text) + begins
        views_KV[TokenView.ENDING, i] = seen[TokenView.ENDING].setdefault(folded[-3:], i + 1)
        views_KV[TokenView.BEGINS, i] = begins
    return views_KV


def shape_of(text: str) -> int:
    """Return the word shape of a text as a number.

    Words have one of five shapes: digits, capitals, capitalized, lower case, or other texts with a
    letter or digit. Punctuation is hashed to one of 64 buckets.
    """
    kinds = (text.isdigit(), text.isupper() and len(text) > 1, text[:1].isupper(), text.islower(),
             any(map(str.isalnum, text)))  # fmt: skip
    signs = 6 + sum(map(ord, text)) % 64
    return next((kind for kind, is_it in enumerate(kinds, 1) if is_it), signs)
