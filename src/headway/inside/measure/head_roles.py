"""Roles of heads, by where their attention goes: previous token, first token, rare word and others.

A score is a fraction of attention (or of rows) between 0 and 1. A head has a role if its score
reaches the threshold of the role in `ROLES` and is at least `LIFT` times the score of uniform
attention over the same tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.inside.capture.streams import Reading, TokenStream

LIFT = 2.0


@dataclass(frozen=True)
class Role:
    name: str
    threshold: float
    meaning: str
    mark: str
    """Abbreviation of one or two letters."""


ROLES = {
    role.name: role
    for role in (
        Role("previous", 0.4, "attention on the previous token", "P"),
        Role("next", 0.4, "attention on the next token", "N"),
        Role("self", 0.4, "attention on the token itself", "S"),
        Role("first", 0.4, "attention on the first token (often an attention sink)", "F"),
        Role("ends", 0.4, "attention on end tokens and punctuation", "E"),
        Role("alignment", 0.4, "output tokens whose strongest source token is the one that they "
             "depend on most (gradient × input)", "A"),
        Role("rare", 0.3, "attention on the rarest token of the text", "R"),
        Role("induction", 0.4, "attention on the token after an earlier copy of this token, in "
             "repeated random tokens", "I"),
        Role("duplicate", 0.4, "attention on an earlier copy of this token, in repeated random "
             "tokens", "D"),
    )
}  # fmt: skip
"""All roles with their thresholds and what they measure."""


def roles_of(scores: Mapping[str, float], even: Mapping[str, float]) -> tuple[str, ...]:
    """Roles of a head, the clearest first; `even` are the scores of uniform attention."""
    found = [
        (score / ROLES[name].threshold, name)
        for name, score in scores.items()
        if score >= ROLES[name].threshold and score >= LIFT * even.get(name, 0.0)
    ]
    return tuple(name for _, name in sorted(found, reverse=True))


class RunningMeans:
    """Running means of numbers per head, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: Counter[str] = Counter()

    def add(self, name: str, sum_H: Tensor, count: float) -> None:
        if count > 0:
            self.sums[name] = self.sums.get(name, torch.zeros_like(sum_H)) + sum_H
            self.counts[name] += count  # type: ignore[assignment]

    def of(self, name: str) -> Tensor | None:
        return self.sums[name] / self.counts[name] if name in self.sums else None


class TokenFrequencies:
    """Counts of tokens in the texts; of equally frequent tokens the one with the higher id is
    rarer."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self.counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for reading in readings:
            for name, stream in reading.streams.items():
                self.counts[name].update(stream.ids)

    def rarest(self, stream: TokenStream) -> int | None:
        """Position of the rarest token; None for media, whose positions have no token ids."""
        places = [
            place
            for place, (piece, apart) in enumerate(zip(stream.pieces, stream.special, strict=True))
            if not apart and not is_punctuation(piece) and stream.ids[place] >= 0
        ]
        counts = self.counts[stream.name]
        if not places:
            return None
        return min(places, key=lambda at: (counts[stream.ids[at]], -stream.ids[at]))


def is_punctuation(piece: str) -> bool:
    return not any(character.isalnum() for character in piece)


def add_places(
    means: RunningMeans, even: RunningMeans, weights_HTS: Tensor, *, causal: bool
) -> None:
    """Add scores of the previous, next, same and first token for self-attention, over rows in which
    these tokens differ."""
    n_rows = weights_HTS.shape[1]
    rows_R = torch.arange(min(2, n_rows), n_rows)
    if not causal:
        rows_R = rows_R[:-1]
    if not len(rows_R):
        return
    shares_R = 1.0 / (rows_R + 1.0) if causal else torch.full((len(rows_R),), 1.0 / n_rows)
    columns = {"previous": rows_R - 1, "self": rows_R, "first": torch.zeros_like(rows_R)}
    if not causal:
        columns["next"] = rows_R + 1
    for name, column_R in columns.items():
        means.add(name, weights_HTS[:, rows_R, column_R].sum(1), len(rows_R))
        even.add(name, shares_R.sum()[None], len(rows_R))


def add_columns(
    means: RunningMeans,
    even: RunningMeans,
    weights_HTS: Tensor,
    columns: TokenStream,
    rare: int | None,
    *,
    causal: bool,
) -> None:
    """Add scores of end tokens and punctuation, and of the rarest token."""
    n_rows, n_columns = weights_HTS.shape[1:]
    ends = [
        place
        for place, (piece, apart) in enumerate(zip(columns.pieces, columns.special, strict=True))
        if place and (apart or is_punctuation(piece))
    ]
    for name, places in (("ends", ends), ("rare", [] if rare is None else [rare])):
        if not places:
            continue
        first = min(places) + 1 if causal else 0  # a row cannot see what comes later
        n_seen = n_rows - first
        if n_seen < 1:
            continue
        chosen = torch.tensor(places)
        means.add(name, weights_HTS[:, first:, chosen].sum((1, 2)), n_seen)
        row_R1 = torch.arange(first, n_rows)[:, None]
        seen_R = (row_R1 + 1).float()[:, 0] if causal else torch.full((n_seen,), float(n_columns))
        there_R = (chosen <= row_R1).sum(1) if causal else torch.full((n_seen,), len(places))
        even.add(name, (there_R / seen_R).sum()[None], n_seen)


def add_alignment(
    means: RunningMeans,
    even: RunningMeans,
    weights_HTS: Tensor,
    rows: Sequence[int],
    columns: Sequence[int],
) -> None:
    """Add the fraction of rows whose strongest column is the correct one."""
    if rows:
        best_HR = weights_HTS[:, torch.tensor(rows)].argmax(-1)
        hits_HR = best_HR == torch.tensor(columns)
        means.add("alignment", hits_HR.float().sum(1), len(rows))
        even.add("alignment", torch.tensor([len(rows) / weights_HTS.shape[2]]), len(rows))


def add_repeats(
    means: RunningMeans, even: RunningMeans, weights_HTS: Tensor, start: int, period: int
) -> None:
    """Add scores of the second copy of `period` tokens that are repeated from `start` on."""
    rows_R = torch.arange(start + period, start + 2 * period - 1)
    means.add("duplicate", weights_HTS[:, rows_R, rows_R - period].sum(1), len(rows_R))
    means.add("induction", weights_HTS[:, rows_R, rows_R - period + 1].sum(1), len(rows_R))
    for name in ("duplicate", "induction"):
        even.add(name, (1.0 / (rows_R + 1.0)).sum()[None], len(rows_R))
