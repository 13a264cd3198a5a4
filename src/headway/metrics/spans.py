"""Metrics of tagged words: precision, recall and F1 of spans, and the accuracy of plain tags.

Spans are found as in conlleval and seqeval (in its default mode), even in invalid tag sequences: a
span begins wherever a tag other than O does not continue the previous one. A span is correct if its
type, its first word and its last word are correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.metrics.classification import widened
from headway.metrics.interval import Interval

SAMPLES = 1000
"""Number of bootstrap samples, as in sacreBLEU."""

SEED = 12345
"""Random seed of the bootstrap, the default of sacreBLEU."""

TagSequence = Sequence[str]


class TagSpan(NamedTuple):
    type: str
    first: int
    last: int
    """Index of the last word of the span (inclusive)."""


@dataclass(frozen=True)
class SpanScore:
    """Scores of spans, each from 0 to 1. `support` is the number of true spans."""

    precision: float
    recall: float
    f1: float
    support: int


def spans(tags: TagSequence) -> list[TagSpan]:
    """Return the spans of one sentence in order, from BIO, BIOES or IOB1 tags."""
    found: list[TagSpan] = []
    before = ("O", "")
    for place, tag in enumerate(tags):
        now = _parts(tag)
        if now[0] == "O":
            pass
        elif _continues(before, now):
            found[-1] = found[-1]._replace(last=place)
        else:
            found.append(TagSpan(now[1], place, place))
        before = now
    return found


def _parts(tag: str) -> tuple[str, str]:
    """Return the letter and the type of a span tag. A tag without a dash is its own type."""
    return tag[:1], tag.split("-", maxsplit=1)[-1] or "_"


def _continues(before: tuple[str, str], now: tuple[str, str]) -> bool:
    return before[0] in ("B", "I") and now[0] in ("I", "E") and before[1] == now[1]


def span_scores(
    truths: Sequence[TagSequence], guesses: Sequence[TagSequence]
) -> tuple[SpanScore, dict[str, SpanScore]]:
    """Return the scores of all types together (micro), and of each type that occurs or is
    predicted."""
    totals: Counter[tuple[str, str]] = Counter()
    for true, guessed in _pairs(truths, guesses):
        for kind, found in (("true", true), ("guessed", guessed), ("right", true & guessed)):
            for span in found:
                totals[kind, span.type] += 1
    types = sorted({name for _, name in totals})

    def score(names: Sequence[str]) -> SpanScore:
        right, guessed, true = (
            sum(totals[kind, name] for name in names) for kind in ("right", "guessed", "true")
        )
        return SpanScore(
            right / max(1, guessed), right / max(1, true), 2 * right / max(1, guessed + true), true
        )

    return score(types), {name: score([name]) for name in types}


def span_f1_interval(truths: Sequence[TagSequence], guesses: Sequence[TagSequence]) -> Interval:
    """Return micro F1 with its 95 % bootstrap interval over sentences."""
    rows = [[len(t & g), len(t), len(g)] for t, g in _pairs(truths, guesses)]
    return _interval(np.array(rows, dtype=np.float64).reshape(-1, 3))


def tag_accuracy(truths: Sequence[TagSequence], guesses: Sequence[TagSequence]) -> float:
    """Return the fraction of words whose tag is correct."""
    return tag_accuracy_interval(truths, guesses).value


def tag_accuracy_interval(
    truths: Sequence[TagSequence], guesses: Sequence[TagSequence]
) -> Interval:
    rows = [
        [sum(a == b for a, b in zip(t, g, strict=True)), len(t), len(t)]
        for t, g in zip(truths, guesses, strict=True)
    ]
    return _interval(np.array(rows, dtype=np.float64).reshape(-1, 3))


def _pairs(
    truths: Sequence[TagSequence], guesses: Sequence[TagSequence]
) -> Iterator[tuple[set[TagSpan], set[TagSpan]]]:
    for true, guessed in zip(truths, guesses, strict=True):
        if len(true) != len(guessed):
            raise ValueError(
                f"got {len(guessed)} predicted tags for a sentence of {len(true)} words. Each word "
                "needs exactly one tag."
            )
        yield set(spans(true)), set(spans(guessed))


def _interval(counts: NDArray[np.float64]) -> Interval:
    """Return F1 with its bootstrap interval over sentences. If there are as many true as predicted
    items, F1 equals the accuracy."""

    def f1(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2 * sums[..., 0] / np.maximum(1, sums[..., 1] + sums[..., 2])

    if not len(counts):
        return Interval(0.0, 0.0, 0.0)
    random = np.random.default_rng(SEED)
    n = len(counts)
    drawn = np.stack([f1(counts[random.integers(n, size=n)].sum(0)) for _ in range(SAMPLES)])
    low, high = np.quantile(drawn, [0.025, 0.975])
    return widened(Interval(float(f1(counts.sum(0))), float(low), float(high)), n)
