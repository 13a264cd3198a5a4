"""The check of pictures, videos and recordings before training: what is odd, where, and what it
means. As for texts, only what makes training impossible is an error."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.data.check import EXAMPLES, FEW, MANY, clipped, listed, repeats, sorted_labels
from headway.data.check_report import Example, Finding, Level, Report
from headway.data.media.decoding import FLAT, UNREADABLE
from headway.data.media.items import MOST_NAMED
from headway.data.media.open_item import UNITS
from headway.data.media.source import names_in
from headway.data.media.survey import Surveyed

MOST_UNREADABLE = 0.1
"""The share from which something must be wrong with all of them."""

SMALL = 4
"""Pictures are called small that must be made larger by more than this factor."""

NARROW = 2.0
"""Pictures are called narrow of which the middle part is less than one in this many."""

SHORT_S, LONG_S = 0.1, 30.0

Rows = NDArray[np.int64]


@dataclass
class MediaCheck:
    seen: Surveyed
    which: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return UNITS[self.seen.form.what]

    @property
    def one(self) -> str:
        return self.unit.removesuffix("s")

    def say(self, level: Level, name: str, count: int, text: str) -> None:
        self.findings.append(Finding(level, name, count, text))

    def about(self, level: Level, name: str, rows: Rows, text: str, most: int = EXAMPLES) -> None:
        """Say how many items the text is about, and show some; nothing when there are none."""
        if not len(rows):
            return
        seen, n = self.seen, len(self.seen)
        share = f" ({len(rows) / n:.1%})" if n > 1000 else ""
        said = f"{len(rows):,} of {n:,} {self.which}{self.unit}{share}: {text}"
        shown = []
        for row in rows[:most].tolist():
            target = ", ".join(names_in(seen.targets[row] or ""))
            why = seen.problems.get(row)
            place = seen.items[row].place
            shown.append(Example(place, why or clipped(target), clipped(target) if why else ""))
        self.findings.append(Finding(level, name, len(rows), said, tuple(shown)))

    def usual(self, rows: Rows) -> Level:
        return "warning" if len(rows) >= MANY * len(self.seen) else "note"

    def readable(self) -> None:
        seen, which = self.seen, f"{self.which}{self.unit}"
        bad = np.flatnonzero(seen.facts["marks"] & UNREADABLE)
        if not len(seen):
            self.say("error", "no-media", 0, f"there are no {which}.")
        elif len(bad) == len(seen):
            first = seen.problems[0]
            text = f"none of the {len(seen):,} {which} can be read. The first: {first}"
            self.say("error", "no-media", len(bad), text)
        elif len(bad) > MOST_UNREADABLE * len(seen):
            text = "cannot be read: too many to go on."
            self.about("error", "unreadable", bad, text, MOST_NAMED)
        else:
            text = "cannot be read; left out. All are in data/problems.jsonl."
            self.about("warning", "unreadable", bad, text, MOST_NAMED)

    def targets(self) -> None:
        """Whether all have what is to be learned."""
        seen = self.seen
        # What cannot be read is left out, whatever it is.
        without = np.array(
            [one is None and row not in seen.problems for row, one in enumerate(seen.targets)],
            np.bool_,
        )
        rows = np.flatnonzero(without)
        if seen.target == "label" and len(rows):
            text = (
                f"{len(rows):,} {self.which}{self.unit} have no label; the first is "
                f"{seen.items[int(rows[0])].place}."
            )
            self.say("error", "no-label", len(rows), text)
        elif seen.target == "text":
            self.about("warning", "empty", rows, "no text; left out.")
            if len(seen) and without.all():
                text = f"none of the {len(seen):,} {self.which}{self.unit} has a text."
                self.say("error", "no-texts", len(seen), text)

    def classes(self) -> None:
        counts = self.seen.counts
        if self.seen.target != "label" or not counts:
            return
        if len(counts) == 1 and self.seen.answer == "label":
            text = f"every label is {next(iter(counts))!r}; there is nothing to tell apart."
            self.say("error", "one-class", 1, text)
        elif len(counts) > max(20, len(self.seen) // 2):
            text = f"{len(counts):,} different labels for {len(self.seen):,} {self.unit}."
            self.say("warning", "many-classes", len(counts), text)
        rare = sorted(name for name, count in counts.items() if count < FEW)
        if rare and len(counts) > 1:
            shown = ", ".join(f"{name} ({counts[name]})" for name in rare[:10])
            more = ", …" * (len(rare) > 10)
            text = (
                f"{len(rare)} of {len(counts)} labels come fewer than {FEW} times: {shown}{more}."
            )
            self.say("warning", "rare", len(rare), text)

    def sizes(self) -> dict[str, float]:
        """How large they are, and which are oddly so."""
        facts = self.seen.facts
        good = facts["marks"] & UNREADABLE == 0
        if not good.any():
            return {}
        height, width = facts["height"].astype(np.int64), facts["width"].astype(np.int64)
        if self.seen.form.what == "sounds":
            return self._lengths(height / self.seen.form.rate, good)
        size = self.seen.form.size
        assert size is not None
        area = height * width
        rows = np.flatnonzero(good)
        low, high = rows[area[rows].argmin()], rows[area[rows].argmax()]
        shown = [f"{width[i]:,} × {height[i]:,}" for i in (low, high)]
        span = shown[0] if shown[0] == shown[1] else f"from {shown[0]} to {shown[1]}"
        text = f"{self.which}{self.unit} are {span} pixels; they become {size[1]} × {size[0]}."
        self.say("note", "sizes", int(good.sum()), text)
        safe_h, safe_w = np.maximum(height, 1), np.maximum(width, 1)
        factor = np.maximum(size[0] / safe_h, size[1] / safe_w)
        rows = np.flatnonzero(good & (factor > SMALL))
        text = f"smaller than a {SMALL}th of what they become: there is little to see in them."
        self.about(self.usual(rows), "small", rows, text)
        left = (size[0] / factor) * (size[1] / factor) / (safe_h * safe_w)
        rows = np.flatnonzero(good & (left * NARROW < 1))
        text = "so long or so high that more than half is cut off."
        self.about(self.usual(rows), "narrow", rows, text)
        return {"pixels_least": float(area[low]), "pixels_most": float(area[high])}

    def _lengths(self, seconds: NDArray[np.float64], good: NDArray[np.bool_]) -> dict[str, float]:
        found = seconds[good]
        text = (
            f"{self.which}{self.unit} last {shown_time(found.sum())} in all, each "
            f"{shown_time(found.min())} to {shown_time(found.max())}, half of them up to "
            f"{shown_time(float(np.median(found)))}."
        )
        self.say("note", "sizes", len(found), text)
        rows = np.flatnonzero(good & (seconds < SHORT_S))
        self.about("warning", "short", rows, f"shorter than {SHORT_S:g} s.")
        rows = np.flatnonzero(good & (seconds > LONG_S))
        self.about("note", "long", rows, f"longer than {LONG_S:g} s.")
        return {"seconds": float(found.sum()), "longest": float(found.max())}

    def odd(self) -> None:
        facts = self.seen.facts
        rows = np.flatnonzero(facts["marks"] & FLAT)
        silent = "silent from beginning to end." * (self.seen.form.what == "sounds")
        self.about("warning", "flat", rows, silent or "of one colour everywhere.")
        good = np.flatnonzero(self.seen.usable)
        again = good[repeats(facts["hash"][good])]
        if self.seen.target == "text":
            # A picture may well have several captions: only the same one again is no news.
            again = self._same(again, good)
        self.about(self.usual(again), "duplicates", again, "repeats an earlier one exactly.")
        if self.seen.target == "label" and len(good):
            rows = self._conflicts(good)
            text = "the same as an earlier one, but with another label."
            self.about(self.usual(rows), "conflicts", rows, text)

    def _same(self, again: Rows, good: Rows) -> Rows:
        hashes, targets = self.seen.facts["hash"], self.seen.targets
        seen: set[tuple[int, str | None]] = set()
        repeated = set(hashes[again].tolist())
        rows = []
        for row in good[np.isin(hashes[good], list(repeated))].tolist() if repeated else []:
            key = int(hashes[row]), targets[row]
            if key in seen:
                rows.append(row)
            seen.add(key)
        return np.array(rows, np.int64)

    def _conflicts(self, rows: Rows) -> Rows:
        targets = np.array([self.seen.targets[row] for row in rows.tolist()])
        hashes = self.seen.facts["hash"][rows]
        _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
        return rows[targets != targets[first][group]]

    def _first_place(self, name: str) -> str:
        """Of an item with this label."""
        rows = enumerate(self.seen.targets)
        first = next(row for row, one in rows if one is not None and name in names_in(one))
        return self.seen.items[first].place

    def seen_in(self, training: Surveyed) -> None:
        """Validation items that training sees too, and labels that differ between the two."""
        facts = self.seen.facts
        known = training.facts["hash"][training.usable]
        both = np.flatnonzero(self.seen.usable & np.isin(facts["hash"], known))
        text = "also in the training data, so that scores will be too good."
        self.about("warning", "overlap", both, text)
        here, there = self.seen.counts, training.counts
        strange = [name for name in here if name not in there]
        if there and strange:
            shown = ", ".join(f"{name!r} ({self._first_place(name)})" for name in strange[:5])
            text = (
                f"the validation data has {len(strange)} label{'s' * (len(strange) > 1)} that the "
                f"training data lacks: {shown}. Known: {listed(sorted_labels(there))}."
            )
            self.say("error", "unknown-label", len(strange), text)
        self.findings += absent_labels(here.keys(), there.keys())


def absent_labels(here: Set[str], there: Set[str]) -> list[Finding]:
    """A warning where validation, which has the labels `here`, lacks some of training."""
    lacking = sorted_labels(there - here)
    if not here or not lacking:
        return []
    text = (
        f"the validation data has nothing of {len(lacking)} of {len(there)} labels: "
        f"{listed(lacking)}."
    )
    return [Finding("warning", "absent-label", len(lacking), text)]


def check_media(training: Surveyed, validation: Surveyed | None) -> Report:
    drafts = MediaCheck(training)
    drafts.readable()
    drafts.targets()
    drafts.classes()
    sizes = drafts.sizes()
    drafts.odd()
    findings = drafts.findings
    counts = {name: [n, 0] for name, n in training.counts.items()}
    if validation is not None:
        others = MediaCheck(validation, "validation ")
        others.readable()
        others.targets()
        others.sizes()
        others.odd()
        others.seen_in(training)
        findings += others.findings
        for name, n in validation.counts.items():
            counts.setdefault(name, [0, 0])[1] = n
    each, unit = (2, "pairs") if training.target == "other" else (1, drafts.unit)
    n_valid = None if validation is None else len(validation) // each
    labels = {name: (counts[name][0], counts[name][1]) for name in sorted_labels(counts)}
    n = len(training) // each
    return Report(n, n_valid, findings, sizes=sizes, unit=unit, labels=labels)


def shown_time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
