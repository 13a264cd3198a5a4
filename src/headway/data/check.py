"""The check of the data before training: what is odd about the pairs, where, and what it means.

Only what makes training impossible is an error. Everything is decided on a few numbers a pair, and
the texts of the examples are read again at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.data.languages import Profiles
from headway.data.pairs import PairFile
from headway.data.report import Example, Finding, Level, Report
from headway.data.scan import CONTROL, EMPTY, GARBLED, REPLACED, SAME, SWAPPED, Scan, scan

EXAMPLES = 3
MANY = 0.1
"""The share of pairs from which something usual is worth a warning."""

MAX_RATIO = 3.0
"""Pairs are outliers when the ratio of their lengths is at least so many times the usual one, and
four standard deviations away from it."""

Rows = NDArray[np.int64]


def check_pairs(
    training: Sequence[PairFile],
    validation: Sequence[PairFile] = (),
    advance: Callable[[int], None] = lambda n: None,
) -> tuple[Report, Scan]:
    """Read everything once and say what is odd. Also gives the numbers kept of training pairs.

    `advance` hears how many pairs were read since it last heard."""
    profiles = Profiles()
    pairs = scan(training, profiles, learn=True, advance=advance)
    drafts = _Drafts(pairs)
    drafts.usable(splits=not validation)
    drafts.each_pair()
    drafts.repeated()
    drafts.ratios()
    findings = drafts.findings()
    if not validation:
        return Report(len(pairs), None, findings), pairs
    held = scan(validation, profiles, learn=False, advance=advance)
    drafts = _Drafts(held, "validation ")
    drafts.usable(splits=False)
    drafts.each_pair()
    drafts.ratios()
    drafts.seen_in(pairs)
    return Report(len(pairs), len(held), findings + drafts.findings()), pairs


@dataclass(frozen=True)
class _Draft:
    level: Level
    name: str
    count: int
    text: str
    rows: Rows


class _Drafts:
    """Findings about one set of pairs, whose examples are still row numbers."""

    def __init__(self, pairs: Scan, which: str = "") -> None:
        self.pairs = pairs
        self.which = which
        self.drafts: list[_Draft] = []

    def add(self, level: Level, name: str, rows: Rows, text: str) -> None:
        """Say how many pairs the text is about; nothing when there are none."""
        if len(rows):
            share = f" ({len(rows) / len(self.pairs):.1%})" if len(self.pairs) > 1000 else ""
            said = f"{len(rows):,} of {len(self.pairs):,} {self.which}pairs{share}: {text}"
            self.drafts.append(_Draft(level, name, len(rows), said, rows))

    def level(self, rows: Rows) -> Level:
        return "warning" if len(rows) >= MANY * len(self.pairs) else "note"

    def usable(self, *, splits: bool) -> None:
        """What makes training impossible."""
        none = np.zeros(0, np.int64)
        pairs, which = self.pairs, self.which
        if pairs.unequal:
            self.drafts.append(_Draft("error", "unequal", 1, str(pairs.unequal), none))
        elif not len(pairs):
            text = f"there are no {which}pairs: every file is empty."
            self.drafts.append(_Draft("error", "no-pairs", 0, text, none))
        elif len(pairs.rows(EMPTY)) == len(pairs):
            text = f"none of the {len(pairs):,} {which}pairs has text on both sides."
            self.drafts.append(_Draft("error", "no-pairs", 0, text, pairs.rows(EMPTY)))
        filled = np.flatnonzero(~(pairs.marks & EMPTY).astype(bool))
        if not which and len(filled) > 1 and (pairs.pair[filled] == pairs.pair[filled[0]]).all():
            text = "all the same; there is nothing to learn, and nothing to validate on."
            self.add("error" if splits else "warning", "one-pair", filled, text)

    def each_pair(self) -> None:
        """What one pair shows by itself."""
        pairs, add = self.pairs, self.add
        add("warning", "empty", pairs.rows(EMPTY), "a side is empty; left out.")
        filled = pairs.marks & EMPTY == 0
        same = np.flatnonzero(filled & (pairs.marks & SAME > 0))
        add(self.level(same), "identical", same, "both sides have the same text.")
        swapped = pairs.rows(SWAPPED)
        text = "source and target look exchanged, next to the others."
        if self.which and len(swapped) > len(pairs) / 2:
            text = "source and target look exchanged; are the two validation files?"
        add("warning", "swapped", swapped, text)
        text = "U+FFFD stands where a character was lost."
        add("warning", "replaced", pairs.rows(REPLACED), text)
        text = "looks like UTF-8 that was read in another encoding (Ã¤ for ä)."
        add("warning", "garbled", pairs.rows(GARBLED), text)
        add("note", "control", pairs.rows(CONTROL), "control characters inside.")

    def repeated(self) -> None:
        """Of pairs with text: empty ones have been counted."""
        filled = np.flatnonzero(self.pairs.marks & EMPTY == 0)
        again = repeats(self.pairs.pair[filled])
        add = self.add
        add(self.level(again), "duplicates", filled[again], "repeats an earlier pair exactly.")
        distinct = np.delete(filled, again)
        del filled, again
        several = distinct[repeats(self.pairs.source[distinct])]
        text = "another target for an earlier source (but for case and punctuation)."
        add("note", "several-targets", several, text)

    def ratios(self) -> None:
        """Lengths that do not fit each other, by what is usual here. In characters."""
        pairs = self.pairs
        filled = np.flatnonzero(pairs.marks & EMPTY == 0)
        if len(filled) < 20:
            return
        logs = np.log((pairs.source_lengths[filled] + 5) / (pairs.target_lengths[filled] + 5))
        usual = np.median(logs)
        deviation = 1.4826 * np.median(np.abs(logs - usual))
        odd = np.abs(logs - usual) > max(4 * deviation, np.log(MAX_RATIO))
        farthest = filled[odd][np.argsort(-np.abs(logs - usual)[odd], kind="stable")]
        text = f"lengths far from the usual ratio of {np.exp(usual):.2f}."
        self.add("warning", "ratio", farthest, text)

    def seen_in(self, training: Scan) -> None:
        """Validation pairs that training sees too, whole or by one side."""
        pairs = self.pairs
        filled = pairs.marks & EMPTY == 0
        source = np.isin(pairs.source, training.source)
        target = np.isin(pairs.target, training.target)
        both = np.flatnonzero(filled & np.isin(pairs.pair, training.pair))
        text = "also in the training data, so that scores will be too good."
        self.add("warning", "overlap", both, text)
        either = np.flatnonzero(filled & (source | target))
        either = np.setdiff1d(either, both)
        text = "the source or the target is also in a training pair."
        self.add(self.level(either), "shared-side", either, text)

    def findings(self) -> list[Finding]:
        """Read the examples again and put them in."""
        wanted = [row for draft in self.drafts for row in draft.rows[:EXAMPLES].tolist()]
        texts = self.pairs.texts(wanted)
        return [
            Finding(
                draft.level,
                draft.name,
                draft.count,
                draft.text,
                tuple(
                    Example(self.pairs.place(row), *map(clipped, texts[row]))
                    for row in draft.rows[:EXAMPLES].tolist()
                ),
            )
            for draft in self.drafts
        ]


def repeats(hashes: NDArray[np.uint64]) -> Rows:
    """The rows whose hash an earlier row has. `np.unique` would take twice the memory."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = order[1:][ordered[1:] == ordered[:-1]]
    again.sort()
    return again


def clipped(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
