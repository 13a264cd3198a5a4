"""Scores of the n-gram model that some neural models contain. They are computed with hidden tokens,
or split into the contributions of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from headway.inside.capture.interventions import NO_INTERVENTION, Intervention
from headway.inside.capture.streams import Reading
from headway.models.parts.ngrams import Ngrams, TokenView
from headway.nn.layout import Layout

NGRAMS = "ngrams"
"""Key of the n-gram model in mappings of replaced embeddings (`fronts`). Its values are not
embeddings, but contributions of tokens to the scores (`token_contributions`)."""


@dataclass(frozen=True)
class NgramOccurrence:
    """N-gram that a text contains, with all its occurrences."""

    view: TokenView | None
    """Form of the tokens by which the n-gram was matched; None if it consists of whole words."""

    places: tuple[tuple[int, ...], ...]
    """Positions of the tokens of each occurrence."""

    scores_C: Tensor


def ngram_table(model: nn.Module) -> Ngrams | None:
    found = getattr(model, "ngrams", None)
    return found if isinstance(found, Ngrams) else None


@torch.no_grad()
def ngram_occurrences(
    table: Ngrams, reading: Reading, change: Intervention = NO_INTERVENTION
) -> list[list[NgramOccurrence]]:
    """Return the n-grams that contribute to each output. N-grams with a hidden token are left
    out."""
    return [_grams(table, reading, kept, row) for kept, row in _texts(table, reading, change)]


def _texts(
    table: Ngrams, reading: Reading, change: Intervention
) -> list[tuple[tuple[int, ...], int | None]]:
    """Return, for each output, the positions that its n-grams may use and its own position."""
    hidden = set(change.places(reading.last.name))
    every = range(len(reading.last))
    # Hiding a token hides it from other tokens, not from itself.
    return [
        (tuple(place for place in every if place not in hidden or place == row), row)
        for row in (output.row for output in reading.outputs)
    ]


def _grams(
    table: Ngrams, reading: Reading, kept: Sequence[int], row: int | None
) -> list[NgramOccurrence]:
    tokens_T = torch.tensor([reading.last.ids[place] for place in kept], dtype=torch.long)
    spans = table.spans(tokens_T)
    buckets_TF = table.buckets(tokens_T, Layout.of([len(kept)]), _segments(reading, kept))
    views = (None, *(gram.view for gram in table.grams))
    found: dict[object, NgramOccurrence] = {}
    for place in range(len(kept)) if row is None else [kept.index(row)]:
        for number, bucket in enumerate(buckets_TF[place].tolist()):
            seen = tuple(kept[at] for at in spans[place][number])
            key = bucket if row is None else number  # of a text each n-gram counts once
            if key in found:
                found[key] = replace(found[key], places=(*found[key].places, seen))
            else:
                found[key] = NgramOccurrence(views[number], (seen,), table.weight_GC[bucket])
    return list(found.values())


def _segments(reading: Reading, kept: Sequence[int]) -> Tensor | None:
    return torch.tensor([reading.segments[at] for at in kept]) if reading.segments else None


@torch.no_grad()
def token_contributions(
    table: Ngrams, reading: Reading, change: Intervention = NO_INTERVENTION
) -> Tensor:
    """Return the contribution of each token to the scores of each output (tokens, outputs, labels).

    The scores of an n-gram are divided evenly among its occurrences and their tokens. The sum over
    the tokens plus `bias_C` is equal to the scores of the n-gram model.
    """
    sizes = len(reading.last), len(reading.outputs), len(table.bias_C)
    found_TRC = table.weight_GC.new_zeros(sizes)
    for row, grams in enumerate(ngram_occurrences(table, reading, change)):
        for gram in grams:
            for seen in gram.places:
                each_C = gram.scores_C / (len(gram.places) * len(seen))
                for place in seen:
                    found_TRC[place, row] += each_C
    return found_TRC


@torch.no_grad()
def scores_with_hidden(
    table: Ngrams, readings: Sequence[Reading], layout: Layout, changes: Sequence[Intervention]
) -> Tensor:
    """Return the scores of the n-gram model as if the hidden tokens were not in the text.

    The result has one row per text, or one row per position for models that label tokens. Rows of
    positions without an output are zero.
    """
    texts, rows_R, picked_R, n = list[tuple[Reading, Sequence[int]]](), [], list[int](), 0
    starts = accumulate((len(one.last) for one in readings), initial=0)
    for one, change, start in zip(readings, changes, starts, strict=False):
        known: dict[tuple[int, ...], int] = {}
        for kept, row in _texts(table, one, change):
            if kept not in known:
                texts.append((one, kept))
                known[kept] = n
                n += len(kept)
            if row is not None:
                rows_R.append(start + row)
                picked_R.append(known[kept] + kept.index(row))
    ids = [one.last.ids[at] for one, kept in texts for at in kept]
    numbers = [one.segments[at] for one, kept in texts for at in kept if one.segments]
    layout_T = Layout.of([len(kept) for _, kept in texts])
    segments_N = torch.tensor(numbers) if numbers else None
    scores_RC = table(torch.tensor(ids, dtype=torch.long), layout_T, segments_N)
    if table.of_texts:
        return scores_RC
    scores_NC = table.bias_C.new_zeros(layout.n_rows, len(table.bias_C))
    scores_NC[rows_R] = scores_RC[picked_R]
    return scores_NC


def scores_from_contributions(
    table: Ngrams, x_ND: Tensor, readings: Sequence[Reading], layout: Layout
) -> Tensor:
    """Return the scores of the n-gram model, as sums of the tokens' contributions.

    `x_ND`: contributions (`token_contributions`), one row per token. The result has one row per
    text, or one row per position.
    """
    n_outputs, n_labels = len(readings[0].outputs), len(table.bias_C)
    each_BRC = x_ND.unflatten(0, (len(readings), -1)).sum(1).unflatten(1, (n_outputs, n_labels))
    scores_RC = each_BRC.flatten(0, 1) + table.bias_C
    if table.of_texts:
        return scores_RC
    starts = layout.starts_B.tolist()
    rows = [start + (one.row or 0) for start, reading in zip(starts, readings, strict=True)
            for one in reading.outputs]  # fmt: skip
    return scores_RC.new_zeros(layout.n_rows, n_labels).index_copy(0, torch.tensor(rows), scores_RC)
