"""The check of texts before training: what is odd, where, and what it means.

As for pairs, only what makes training impossible is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.data.check import EXAMPLES, MANY, clipped, repeats
from headway.data.example import TextKind
from headway.data.report import Example, Finding, Level, Report
from headway.data.scan import EMPTY, GARBLED, REPLACED
from headway.data.survey import Survey

FEW = 10
"""Examples of a class below which it is called rare."""

UNITS: dict[TextKind, str] = {
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
class TextCheck:
    """Findings about one split."""

    survey: Survey
    which: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return UNITS[self.survey.source.kind]

    def say(self, level: Level, name: str, count: int, text: str) -> None:
        self.findings.append(Finding(level, name, count, text))

    def about(self, level: Level, name: str, rows: Rows, text: str) -> None:
        """Say how many examples the text is about, and show some; nothing when there are none."""
        if not len(rows):
            return
        n = len(self.survey)
        share = f" ({len(rows) / n:.1%})" if n > 1000 else ""
        said = f"{len(rows):,} of {n:,} {self.which}{self.unit}{share}: {text}"
        items = self.survey.items(rows[:EXAMPLES].tolist())
        columns = self.survey.source.columns
        shown = [
            Example(
                item.place,
                clipped(" | ".join(filter(None, map(item.text, columns)))),
                item.text("label"),
            )
            for item in items.values()
        ]
        self.findings.append(Finding(level, name, len(rows), said, tuple(shown)))

    def usual(self, rows: Rows) -> Level:
        return "warning" if len(rows) >= MANY * len(self.survey) else "note"

    def texts(self) -> None:
        survey, which = self.survey, f"{self.which}{self.unit}"
        if not len(survey):
            self.say("error", "no-texts", 0, f"there are no {which}: every file is empty.")
        elif not survey.filled.any():
            self.say("error", "no-texts", 0, f"none of the {len(survey):,} {which} has text.")
        problems, n = survey.names.problems, survey.names.n_problems
        if len(survey.rows(EMPTY)) > n:
            self.about("warning", "empty", survey.rows(EMPTY), "no text; left out.")
        if problems:
            listed = "all" if n == len(problems) else f"the first {len(problems):,}"
            text = (
                f"{n:,} of {len(survey):,} {which} could not be read and are left out "
                f"(data.bad=skip; {listed} are in data/{PROBLEMS}). The first: "
                f"{next(iter(problems.values()))}"
            )
            self.say("warning", "bad", n, text)
        text = "U+FFFD stands where a character was lost."
        self.about("warning", "replaced", survey.rows(REPLACED), text)
        text = "looks like UTF-8 that was read in another encoding (Ã¤ for ä)."
        self.about("warning", "garbled", survey.rows(GARBLED), text)

    def repeated(self) -> None:
        filled = np.flatnonzero(self.survey.filled)
        again = filled[repeats(self.survey.exact[filled])]
        self.about(self.usual(again), "duplicates", again, "repeats an earlier one exactly.")
        if self.survey.source.kind == "labelled":
            rows = self._conflicts(filled)
            text = "the same text as an earlier one, but with another label."
            self.about(self.usual(rows), "conflicts", rows, text)

    def _conflicts(self, rows: Rows) -> Rows:
        """Texts whose label is not the one that their first occurrence has."""
        exact, label = self.survey.exact[rows], self.survey.label[rows]
        _, first, group = np.unique(exact, return_index=True, return_inverse=True)
        return rows[label != label[first][group]]

    def labels(self) -> None:
        names, source = self.survey.names, self.survey.source
        wanted = source.kind == "labelled" or (source.kind == "fields" and names.counts)
        if wanted and names.without:
            text = (
                f"{names.without:,} {self.which}{self.unit} have no label "
                f"({source.settings.data.label_field!r}); the first is {names.first_without}."
            )
            self.say("error", "no-label", names.without, text)
        if names.misfits:
            text = (
                f"{names.misfits:,} {self.which}tags do not fit the scheme {source.scheme} and are "
                f"read as they best can; the first is at {names.first_misfit}."
            )
            self.say("warning", "misfits", names.misfits, text)

    def classes(self) -> None:
        """What labels or tags there must be to learn from."""
        names = self.survey.names
        field = self.survey.source.settings.data.label_field
        what = self._what
        n_classes, n = len(names.counts), len(self.survey)
        if n_classes == 1:
            text = f"every {what} is {next(iter(names.counts))!r}; there is nothing to tell apart."
            if what == "label":
                text += f" Is it in another column than data.label_field={field}?"
            self.say("error", "one-class", 1, text)
        elif what == "label" and n_classes > max(20, n // 2):
            text = (
                f"{n_classes:,} different labels for {n:,} {self.unit}. Are they in another "
                f"column than data.label_field={field}?{self._other_way()}"
            )
            self.say("warning", "many-classes", n_classes, text)
        rare = sorted(name for name, count in names.counts.items() if count < FEW)
        if rare and n_classes > 1:
            shown = ", ".join(f"{name} ({names.counts[name]})" for name in rare[:10])
            more = ", …" if len(rare) > 10 else ""
            text = f"{len(rare)} of {n_classes} {what}s come fewer than {FEW} times: {shown}{more}."
            self.say("warning", "rare", len(rare), text)

    def _other_way(self) -> str:
        data = self.survey.source.settings.data
        usual = (data.text_field, data.label_field, data.other_field) == ("text", "label", "")
        return " If it stands first: data.text_field=2 data.label_field=1" if usual else ""

    @property
    def _what(self) -> str:
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
        known = training.names.counts
        strange = [name for name in survey.names.counts if name not in known]
        if known and strange:
            shown = ", ".join(f"{name!r} ({survey.names.places[name]})" for name in strange[:5])
            text = (
                f"the validation data has {len(strange)} {self._what}{'s' * (len(strange) > 1)} "
                f"that the training data lacks: {shown}. Known: {listed(sorted_labels(known))}."
            )
            self.say("error", "unknown-label", len(strange), text)


def check_texts(training: Survey, validation: Survey | None) -> Report:
    drafts = TextCheck(training)
    drafts.texts()
    drafts.fields()
    drafts.labels()
    drafts.classes()
    drafts.repeated()
    findings = drafts.findings
    counts = {name: [n, 0] for name, n in training.names.counts.items()}
    if validation is not None:
        others = TextCheck(validation, "validation ")
        others.texts()
        others.labels()
        others.seen_in(training)
        findings += others.findings
        for name, n in validation.names.counts.items():
            counts.setdefault(name, [0, 0])[1] = n
    n_valid = None if validation is None else len(validation)
    labels = {name: (counts[name][0], counts[name][1]) for name in sorted_labels(counts)}
    return Report(len(training), n_valid, findings, unit=drafts.unit, labels=labels)


def sorted_labels(names: Iterable[str]) -> list[str]:
    """By name; numbers by their size."""
    names = list(names)
    try:
        return sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(names)


def listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")
