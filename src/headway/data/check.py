"""The check of the data before training: what is odd, where, and what it means.

Only what makes training impossible is an error. Everything is decided on a few numbers an example,
and the texts of those that are shown are read again at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import Example, Finding, Level, Report
from headway.data.example import TextKind
from headway.data.survey import (
    CONTROL,
    EMPTY,
    GARBLED,
    REPLACED,
    SAME,
    SWAPPED,
    Survey,
)

EXAMPLES = 3
MANY = 0.1
"""The share from which something usual is worth a warning."""

FEW = 10
"""Examples of a class below which it is called rare."""

MAX_RATIO = 3.0
"""Pairs are outliers when the ratio of their lengths is at least so many times the usual one, and
four standard deviations away from it."""

UNITS: dict[TextKind, str] = {
    "pairs": "pairs",
    "documents": "documents",
    "labelled": "examples",
    "tagged": "sentences",
    "fields": "documents",
    "texts": "texts",
}

PROBLEMS = "problems.jsonl"
"""Lists what was left out, in the folder of the prepared data."""

Rows = NDArray[np.int64]


@dataclass
class Findings:
    """What is found in one split of some unit: texts, pictures or recordings."""

    n: int
    unit: str
    which: str = ""
    """`validation `, or nothing for training."""

    found: list[tuple[Finding, Rows]] = field(default_factory=list)
    """With the rows that are shown."""

    def say(self, level: Level, name: str, count: int, text: str) -> None:
        self.found.append((Finding(level, name, count, text), np.zeros(0, np.int64)))

    def about(self, level: Level, name: str, rows: Rows, text: str, most: int = EXAMPLES) -> None:
        """Say how many examples the text is about, and show some; nothing when there are none."""
        if len(rows):
            share = f" ({len(rows) / self.n:.1%})" if self.n > 1000 else ""
            said = f"{len(rows):,} of {self.n:,} {self.which}{self.unit}{share}: {text}"
            self.found.append((Finding(level, name, len(rows), said), rows[:most].copy()))

    def usual(self, rows: Rows) -> Level:
        return "warning" if len(rows) >= MANY * self.n else "note"

    def classes(
        self,
        counts: Mapping[str, int],
        what: str,
        where: str = "",
        other: str = "",
        least: int = 2,
    ) -> None:
        """What labels or tags there must be to learn from; `where` they were looked for."""
        if 0 < len(counts) < least:
            text = f"every {what} is {next(iter(counts))!r}; there is nothing to tell apart."
            text += f" Is it in another column than {where}?" if where else ""
            self.say("error", "one-class", 1, text)
        elif what == "label" and len(counts) > max(20, self.n // 2):
            text = f"{len(counts):,} different labels for {self.n:,} {self.unit}."
            text += f" Are they in another column than {where}?{other}" if where else ""
            self.say("warning", "many-classes", len(counts), text)
        rare = sorted(name for name, count in counts.items() if count < FEW)
        if rare and len(counts) > 1:
            shown = ", ".join(f"{name} ({counts[name]})" for name in rare[:10])
            more = ", …" if len(rare) > 10 else ""
            text = (
                f"{len(rare)} of {len(counts)} {what}s come fewer than {FEW} times: {shown}{more}."
            )
            self.say("warning", "rare", len(rare), text)

    def with_examples(self, examples: Mapping[int, Example]) -> list[Finding]:
        """The findings with what stands in the rows that are shown."""
        return [
            replace(finding, examples=tuple(examples[row] for row in rows.tolist()))
            for finding, rows in self.found
        ]

    def shown(self) -> list[int]:
        return [row for _, rows in self.found for row in rows.tolist()]


class TextFindings(Findings):
    """What is found in texts of any kind."""

    def __init__(self, survey: Survey, which: str = "") -> None:
        super().__init__(len(survey), UNITS[survey.source.kind], which)
        self.survey = survey
        self.pairs = survey.source.kind == "pairs"

    def texts(self, *, splits: bool) -> None:
        survey, which = self.survey, f"{self.which}{self.unit}"
        name, on = ("no-pairs", " on both sides") if self.pairs else ("no-texts", "")
        if survey.unequal:
            self.say("error", "unequal", 1, str(survey.unequal))
        elif not len(survey):
            self.say("error", name, 0, f"there are no {which}: every file is empty.")
        elif not survey.filled.any():
            self.say("error", name, 0, f"none of the {len(survey):,} {which} has text{on}.")
        if self.pairs and not self.which:
            self._one_pair(splits=splits)
        problems, n = survey.names.problems, survey.names.n_problems
        if len(survey.rows(EMPTY)) > n:
            text = "a side is empty; left out." if self.pairs else "no text; left out."
            self.about("warning", "empty", survey.rows(EMPTY), text)
        if problems:
            listed = "all" if n == len(problems) else f"the first {len(problems):,}"
            text = (
                f"{n:,} of {len(survey):,} {which} could not be read and are left out "
                f"(data.bad=skip; {listed} are in data/{PROBLEMS}). The first: "
                f"{next(iter(problems.values()))}"
            )
            self.say("warning", "bad", n, text)

    def _one_pair(self, *, splits: bool) -> None:
        filled = np.flatnonzero(self.survey.filled)
        exact = self.survey.exact
        if len(filled) > 1 and (exact[filled] == exact[filled[0]]).all():
            text = "all the same; there is nothing to learn, and nothing to validate on."
            self.about("error" if splits else "warning", "one-pair", filled, text)

    def characters(self) -> None:
        rows = self.survey.rows
        text = "U+FFFD stands where a character was lost."
        self.about("warning", "replaced", rows(REPLACED), text)
        text = "looks like UTF-8 that was read in another encoding (Ã¤ for ä)."
        self.about("warning", "garbled", rows(GARBLED), text)
        if self.pairs:
            self.about("note", "control", rows(CONTROL), "control characters inside.")

    def sides(self) -> None:
        """Of source and target: whether each is what it should be."""
        if not self.pairs:
            return
        survey = self.survey
        same = np.flatnonzero(survey.filled & (survey.marks & SAME > 0))
        self.about(self.usual(same), "identical", same, "both sides have the same text.")
        swapped = survey.rows(SWAPPED)
        text = "source and target look exchanged, next to the others."
        if self.which and len(swapped) > len(survey) / 2:
            text = "source and target look exchanged; are the two validation files?"
        self.about("warning", "swapped", swapped, text)

    def ratios(self) -> None:
        """Lengths that do not fit each other, by what is usual here. In characters."""
        filled = np.flatnonzero(self.survey.filled)
        if not self.pairs or len(filled) < 20:
            return
        source, target = (side[filled] for side in self.survey.lengths)
        logs = np.log((source + 5) / (target + 5))
        usual = np.median(logs)
        deviation = 1.4826 * np.median(np.abs(logs - usual))
        odd = np.abs(logs - usual) > max(4 * deviation, np.log(MAX_RATIO))
        farthest = filled[odd][np.argsort(-np.abs(logs - usual)[odd], kind="stable")]
        text = f"lengths far from the usual ratio of {np.exp(usual):.2f}."
        self.about("warning", "ratio", farthest, text)

    def repeated(self) -> None:
        """Of what has text: what is empty has been counted."""
        filled = np.flatnonzero(self.survey.filled)
        places = repeats(self.survey.exact[filled])
        again = filled[places]
        what = "an earlier pair" if self.pairs else "an earlier one"
        self.about(self.usual(again), "duplicates", again, f"repeats {what} exactly.")
        if self.pairs:
            distinct = np.delete(filled, places)
            del filled, places, again
            several = distinct[repeats(self.survey.key[distinct])]
            text = "another target for an earlier source (but for case and punctuation)."
            self.about("note", "several-targets", several, text)
        elif self.survey.source.kind == "labelled":
            rows = conflicts(self.survey.exact, self.survey.label, filled)
            text = "the same text as an earlier one, but with another label."
            self.about(self.usual(rows), "conflicts", rows, text)

    def labels(self) -> None:
        names, source = self.survey.names, self.survey.source
        wanted = source.kind == "labelled" or (source.kind == "fields" and names.counts)
        if wanted and names.without and "label" in source.kinds:  # several may be none
            text = (
                f"{names.without:,} {self.which}{self.unit} have no label "
                f"({source.settings.data.label_field!r}); the first is {names.first_without}."
            )
            self.say("error", "no-label", names.without, text)
        if names.without and "labels" in source.kinds:
            text = (
                f"{names.without:,} {self.which}{self.unit} have none of the labels; the first is "
                f"{names.first_without}."
            )
            self.say("note", "no-label", names.without, text)
        if names.misfits:
            text = (
                f"{names.misfits:,} {self.which}tags do not fit the scheme {source.scheme} and are "
                f"read as they best can; the first is at {names.first_misfit}."
            )
            self.say("warning", "misfits", names.misfits, text)

    def all_classes(self) -> None:
        data = self.survey.source.settings.data
        usual = (data.text_field, data.label_field, data.other_field) == ("text", "label", "")
        other = " If it stands first: data.text_field=2 data.label_field=1" if usual else ""
        where = f"data.label_field={data.label_field}" if self.what == "label" else ""
        several = "labels" in self.survey.source.kinds
        self.classes(self.survey.names.counts, self.what, where, other, least=1 if several else 2)

    @property
    def what(self) -> str:
        return "tag" if self.survey.source.kind == "tagged" else "label"

    def fields(self) -> None:
        names, source = self.survey.names, self.survey.source
        if source.kind == "fields" and len(source.columns) > 1 and len(self.survey):
            missing = [name for name in source.columns if not names.present[name]]
            if missing:
                text = f"no document has a field {' or '.join(map(repr, missing))} (data.fields)."
                self.say("error", "no-field", len(missing), text)

    def seen_in(self, training: Survey) -> None:
        """Validation examples that training sees too, and labels that it does not know."""
        survey = self.survey
        both = np.flatnonzero(survey.filled & np.isin(survey.exact, training.exact))
        text = "also in the training data, so that scores will be too good."
        self.about("warning", "overlap", both, text)
        if self.pairs:
            source = np.isin(survey.key, training.key)
            target = np.isin(survey.other, training.other)
            either = np.setdiff1d(np.flatnonzero(survey.filled & (source | target)), both)
            text = "the source or the target is also in a training pair."
            self.about(self.usual(either), "shared-side", either, text)
        known = training.names.counts
        strange = [name for name in survey.names.counts if name not in known]
        if known and strange:
            shown = ", ".join(f"{name!r} ({survey.names.places[name]})" for name in strange[:5])
            text = (
                f"the validation data has {len(strange)} {self.what}{'s' * (len(strange) > 1)} "
                f"that the training data lacks: {shown}. Known: {listed(sorted_labels(known))}."
            )
            self.say("error", "unknown-label", len(strange), text)

    def findings(self) -> list[Finding]:
        found = self.survey.examples(self.shown())
        columns = self.survey.source.columns
        shown = {}
        for row, one in found.items():
            texts = [one.text(name) for name in columns]
            label = " ".join(one.several("labels")) or one.text("label")
            sides = texts if self.pairs else [" | ".join(filter(None, texts)), label]
            shown[row] = Example(one.place, *map(clipped, sides))
        return self.with_examples(shown)


def check_texts(training: Survey, validation: Survey | None) -> Report:
    mine = TextFindings(training)
    mine.texts(splits=validation is None)
    mine.sides()
    mine.characters()
    mine.fields()
    mine.labels()
    mine.all_classes()
    mine.repeated()
    mine.ratios()
    findings = mine.findings()
    counts = {name: [n, 0] for name, n in training.names.counts.items()}
    if validation is not None:
        others = TextFindings(validation, "validation ")
        others.texts(splits=False)
        others.sides()
        others.characters()
        others.labels()
        others.ratios()
        others.seen_in(training)
        findings += others.findings()
        for name, n in validation.names.counts.items():
            counts.setdefault(name, [0, 0])[1] = n
    n_valid = None if validation is None else len(validation)
    labels = {name: (counts[name][0], counts[name][1]) for name in sorted_labels(counts)}
    return Report(len(training), n_valid, findings, unit=mine.unit, labels=labels)


def repeats(hashes: NDArray[np.uint64]) -> Rows:
    """The rows whose hash an earlier row has. `np.unique` would take twice the memory."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = order[1:][ordered[1:] == ordered[:-1]]
    again.sort()
    return again


def conflicts(hashes: NDArray[np.uint64], labels: NDArray[np.int32], rows: Rows) -> Rows:
    """The rows whose label is not the one that their first occurrence has."""
    _, first, group = np.unique(hashes[rows], return_index=True, return_inverse=True)
    return rows[labels[rows] != labels[rows][first][group]]


def sorted_labels(names: Iterable[str]) -> list[str]:
    """By name; numbers by their size."""
    names = list(names)
    try:
        return sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(names)


def listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")


def clipped(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
