"""Checks of the data before training. Findings state what is unusual, where, and what it means.

A finding is an error only if it makes training impossible. The checks use a few numbers per
example. The texts of examples that are quoted in findings are read again at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import (
    Finding,
    Level,
    Report,
    ReportedExample,
    listed,
    rare_label_note,
    sorted_labels,
)
from headway.data.hashing import UInt64Array
from headway.data.media.decoding import UNREADABLE
from headway.data.scan import (
    CONTROL,
    EMPTY,
    GARBLED,
    REPLACED,
    SAME,
    SWAPPED,
    DatasetScan,
)
from headway.data.source import MOST_NAMED

EXAMPLES = 3
"""Maximum number of examples quoted in a finding: enough to see a pattern, few enough to read."""

MANY = 0.1
"""Minimum fraction of examples for a finding to be a warning instead of a note. Chosen by hand as
the point at which a property is no longer an exception."""

MIN_PER_CLASS = 10
"""Minimum number of training examples per class. A class with fewer examples is reported as rare,
because they are too few to learn from and to set some aside for validation."""


MAX_RATIO = 3.0
"""Maximum allowed factor between the length ratio of a pair and the median ratio. A pair above it
is an outlier if it also differs by more than four standard deviations."""

MOST_UNREADABLE = 0.1
"""Fraction of unreadable files above which the check reports an error instead of a warning. Many
unreadable files suggest a wrong folder or format rather than single damaged files."""

TAG, CLASS = "tag", "label"
"""Words for a class in messages, for taggers and for classifiers."""

PROBLEMS = "problems.jsonl"
"""Name of the file that lists the examples left out, in the folder of the prepared data."""

IntArray = NDArray[np.int64]


@dataclass
class Findings:
    """Findings in the training or the validation data."""

    n: int
    """Number of examples."""

    unit: str
    """Unit in which examples are counted, such as `texts` or `images`."""

    which: str = ""
    """Prefix of the unit in messages: `validation ` for validation data, empty for training
    data."""

    found: list[tuple[Finding, IntArray]] = field(default_factory=list)
    """Findings, each with the indices of the examples that it quotes."""

    sizes: dict[str, float] = field(default_factory=dict)
    """Statistics of the sizes of images or audio, for the report."""

    def add(self, level: Level, name: str, count: int, text: str) -> None:
        self.found.append((Finding(level, name, count, text), np.zeros(0, np.int64)))

    def add_rows(
        self, level: Level, name: str, rows: IntArray, text: str, most: int = EXAMPLES
    ) -> None:
        """Add a finding about the examples `rows`, and quote at most `most` of them. Without
        examples, add nothing."""
        if len(rows):
            share = f" ({len(rows) / self.n:.1%})" if self.n > 1000 else ""
            said = f"{len(rows):,} of {self.n:,} {self.which}{self.unit}{share}: {text}"
            self.found.append((Finding(level, name, len(rows), said), rows[:most].copy()))

    def level_of(self, rows: IntArray) -> Level:
        return "warning" if len(rows) >= MANY * self.n else "note"

    def classes(
        self,
        counts: Mapping[str, int],
        what: str,
        where: str = "",
        other: str = "",
        least: int = 2,
    ) -> None:
        """Report class counts that are unusual: too few classes, too many, or rare ones.

        Args:
            counts: Number of examples of each class.
            what: Word for a class in messages, `tag` or `label`.
            where: Option or setting that selects the column of the classes; empty if there is none.
            other: Further advice for a wrong column.
            least: Minimum number of classes.
        """
        if 0 < len(counts) < least:
            text = f"every {what} is {next(iter(counts))!r}, but training needs at least two."
            text += f" If the labels are in another column, change {where}." if where else ""
            self.add("error", "one-class", 1, text)
        elif what == CLASS and len(counts) > max(20, self.n // 2):
            text = f"{len(counts):,} different labels for {self.n:,} {self.unit}."
            text += f" If the labels are in another column, change {where}.{other}" if where else ""
            self.add("warning", "many-classes", len(counts), text)
        rare = sorted(name for name, count in counts.items() if count < MIN_PER_CLASS)
        if rare and len(counts) > 1:
            shown = ", ".join(f"{name} ({counts[name]})" for name in rare[:10])
            more = ", …" if len(rare) > 10 else ""
            text = (
                f"{len(rare)} of {len(counts)} {what}s occur fewer than {MIN_PER_CLASS} times: "
                f"{shown}{more}."
            )
            self.add("warning", "rare", len(rare), text)

    def with_examples(self, examples: Mapping[int, ReportedExample]) -> list[Finding]:
        """Return the findings together with the examples that they quote."""
        return [
            replace(finding, examples=tuple(examples[row] for row in rows.tolist()))
            for finding, rows in self.found
        ]

    def shown_rows(self) -> list[int]:
        return [row for _, rows in self.found for row in rows.tolist()]


class TextFindings(Findings):
    """Findings in texts of any kind."""

    def __init__(self, scan: DatasetScan, which: str = "") -> None:
        super().__init__(len(scan), scan.source.schema.unit, which)
        self.scan, self.schema = scan, scan.source.schema
        self.pairs = self.schema.is_translation

    def texts(self, *, splits: bool) -> None:
        survey, which = self.scan, f"{self.which}{self.unit}"
        name, on = (
            ("no-pairs", "have no source or no target") if self.pairs else ("no-texts", "are empty")
        )
        if survey.unequal:
            self.add("error", "unequal", 1, str(survey.unequal))
        elif not len(survey):
            self.add("error", name, 0, f"there are no {which}: all files are empty.")
        elif not survey.filled.any():
            self.add("error", name, 0, f"all {len(survey):,} {which} {on}.")
        if self.pairs and not self.which:
            self._one_pair(splits=splits)
        problems, n = survey.labels.problems, survey.labels.n_problems
        if len(survey.rows(EMPTY)) > n:
            text = "source or target is empty; left out." if self.pairs else "no text; left out."
            self.add_rows("warning", "empty", survey.rows(EMPTY), text)
        if problems:
            listed = "all" if n == len(problems) else f"the first {len(problems):,}"
            text = (
                f"{n:,} of {len(survey):,} {which} could not be read and are left out "
                f"(data.on_bad_row=skip; {listed} are listed in data/{PROBLEMS}). The first one: "
                f"{next(iter(problems.values()))}"
            )
            self.add("warning", "bad", n, text)

    def _one_pair(self, *, splits: bool) -> None:
        filled = np.flatnonzero(self.scan.filled)
        exact = self.scan.exact
        if len(filled) > 1 and (exact[filled] == exact[filled[0]]).all():
            text = "source and target are the same in all of them, so there is nothing to learn."
            self.add_rows("error" if splits else "warning", "one-pair", filled, text)

    def characters(self) -> None:
        rows = self.scan.rows
        text = "contains U+FFFD, which replaces characters that were lost in an earlier conversion."
        self.add_rows("warning", "replaced", rows(REPLACED), text)
        text = "looks like UTF-8 that was decoded with another encoding (Ã¤ instead of ä)."
        self.add_rows("warning", "garbled", rows(GARBLED), text)
        if self.pairs:
            self.add_rows("note", "control", rows(CONTROL), "control characters in either text.")

    def sides(self) -> None:
        """Report pairs whose source and target are identical or seem to be swapped."""
        if not self.pairs:
            return
        survey = self.scan
        same = np.flatnonzero(survey.filled & (survey.flags & SAME > 0))
        self.add_rows(
            self.level_of(same), "identical", same, "source and target are the same text."
        )
        swapped = survey.rows(SWAPPED)
        text = "source and target look swapped, compared with the other pairs."
        if self.which and len(swapped) > len(survey) / 2:
            text = "source and target look swapped. Check the order of the two validation files."
        self.add_rows("warning", "swapped", swapped, text)

    def ratios(self) -> None:
        """Report pairs with an unusual length ratio in characters, compared with the other
        pairs."""
        filled = np.flatnonzero(self.scan.filled)
        if not self.pairs or len(filled) < 20:
            return
        source, target = (side[filled] for side in self.scan.lengths)
        logs = np.log((source + 5) / (target + 5))
        usual = np.median(logs)
        deviation = 1.4826 * np.median(np.abs(logs - usual))
        odd = np.abs(logs - usual) > max(4 * deviation, np.log(MAX_RATIO))
        farthest = filled[odd][np.argsort(-np.abs(logs - usual)[odd], kind="stable")]
        text = f"the length ratio of source to target is far from the usual {np.exp(usual):.2f}."
        self.add_rows("warning", "ratio", farthest, text)

    def repeated(self) -> None:
        """Report duplicates, and equal inputs with different labels. Empty examples are not
        compared."""
        filled = np.flatnonzero(self.scan.filled)
        places = duplicates(self.scan.exact[filled])
        again = filled[places]
        what = "an earlier pair" if self.pairs else "an earlier example"
        self.add_rows(self.level_of(again), "duplicates", again, f"exact copy of {what}.")
        if self.pairs:
            distinct = np.delete(filled, places)
            del filled, places, again
            several = distinct[duplicates(self.scan.key[distinct])]
            text = "same source as an earlier pair, other target (case and punctuation ignored)."
            self.add_rows("note", "several-targets", several, text)
        elif self.schema.are_compared:
            rows = conflicts(self.scan.exact, self.scan.label, filled)
            text = f"the same{self.called} as an earlier example, but with another label."
            self.add_rows(self.level_of(rows), "conflicts", rows, text)

    def columns(self) -> None:
        """Report unusual values of each column. Columns of media come last."""
        for column in sorted(self.schema.columns, key=lambda one: one.is_media):
            column.findings(self.scan, self)

    called = " text"
    """Noun for the input in the message about equal inputs with different labels."""

    @property
    def what(self) -> str:
        return TAG if self.schema.is_tagged else CLASS

    def seen_in(self, training: DatasetScan) -> None:
        """Report validation examples that also occur in the training data, and labels that occur
        only in the validation data."""
        survey = self.scan
        both = np.flatnonzero(survey.filled & np.isin(*self._same(survey, training)))
        text = "also in the training data, so validation scores will be too optimistic."
        self.add_rows("warning", "overlap", both, text)
        if self.pairs:
            source = np.isin(survey.key, training.key)
            target = np.isin(survey.other, training.other)
            either = np.setdiff1d(np.flatnonzero(survey.filled & (source | target)), both)
            text = "source or target also occurs in a training pair."
            self.add_rows(self.level_of(either), "shared-side", either, text)
        known = training.labels.counts
        strange = [name for name in survey.labels.counts if name not in known]
        if known and strange:
            shown = ", ".join(f"{name!r} ({survey.labels.places[name]})" for name in strange[:5])
            text = (
                f"the validation data has {len(strange)} {self.what}{'s' * (len(strange) > 1)} "
                f"that the training data lacks: {shown}. Known: {listed(sorted_labels(known))}."
            )
            self.add("error", "unknown-label", len(strange), text)

    @staticmethod
    def _same(one: DatasetScan, other: DatasetScan) -> tuple[UInt64Array, UInt64Array]:
        """Return, for each of the two splits, the hashes that identify equal examples."""
        return one.exact, other.exact

    def findings(self) -> list[Finding]:
        found = self.scan.examples(self.shown_rows())
        columns = self.schema.text_names
        shown = {}
        for row, one in found.items():
            texts = [one.text(name) for name in columns]
            label = " ".join(one.strings("labels")) or one.text("label")
            sides = texts if self.pairs else [" | ".join(filter(None, texts)), label]
            shown[row] = ReportedExample(one.place, *map(clipped, sides))
        return self.with_examples(shown)


class MediaFindings(TextFindings):
    """Findings in images, videos and audio, and in their labels or texts."""

    called = ""

    @property
    def facts(self) -> NDArray[np.void]:
        assert self.scan.media is not None
        return self.scan.media

    def texts(self, *, splits: bool) -> None:
        """Report media that cannot be read, and media without a text if the task needs one."""
        survey, which = self.scan, f"{self.which}{self.unit}"
        unread = (self.facts["marks"] & UNREADABLE > 0).any(1)
        bad = np.flatnonzero(unread)
        if not len(survey):
            self.add("error", "no-media", 0, f"there are no {which}.")
        elif len(bad) == len(survey):
            first = next(iter(survey.labels.problems.values()))
            text = f"none of the {len(survey):,} {which} can be read. The first error: {first}"
            self.add("error", "no-media", len(bad), text)
        elif len(bad) > MOST_UNREADABLE * len(survey):
            text = "cannot be read, which is too many to leave out. Fix or remove these files."
            self.add_rows("error", "unreadable", bad, text, MOST_NAMED)
        else:
            text = f"cannot be read and are left out. All are listed in data/{PROBLEMS}."
            self.add_rows("warning", "unreadable", bad, text, MOST_NAMED)
        without = np.flatnonzero(~survey.filled & ~unread)
        self.add_rows("warning", "empty", without, "no text; left out.")
        if len(without) and len(without) == len(survey):
            text = f"none of the {len(survey):,} {which} has a text."
            self.add("error", "no-texts", len(survey), text)

    def seen_in(self, training: DatasetScan) -> None:
        super().seen_in(training)
        here, there = self.scan.labels.counts, training.labels.counts
        found = missing_label_warning(here.keys(), there.keys())
        self.found += [(one, np.zeros(0, np.int64)) for one in found]

    @staticmethod
    def _same(one: DatasetScan, other: DatasetScan) -> tuple[UInt64Array, UInt64Array]:
        """Return the hashes of the media without their texts. An image that occurs in training with
        another caption is therefore reported, too."""
        return one.key, other.key[other.filled]

    def findings(self) -> list[Finding]:
        shown = {}
        problems = self.scan.labels.problems
        for row, one in self.scan.examples(self.shown_rows()).items():
            target = clipped(one.text("text") or ", ".join(one.labels))
            why = problems.get(one.place, "")
            shown[row] = ReportedExample(one.place, why or target, target if why else "")
        return self.with_examples(shown)


def missing_label_warning(here: Set[str], there: Set[str]) -> list[Finding]:
    """Return a warning if the validation labels `here` lack some of the training labels `there`,
    otherwise an empty list."""
    lacking = sorted_labels(there - here)
    if not here or not lacking:
        return []
    text = (
        f"the validation data has no examples of {len(lacking)} of {len(there)} labels: "
        f"{listed(lacking)}."
    )
    return [Finding("warning", "absent-label", len(lacking), text)]


def check(training: DatasetScan, validation: DatasetScan | None) -> Report:
    media = training.media is not None
    finding = MediaFindings if media else TextFindings
    mine = finding(training)
    mine.texts(splits=validation is None)
    mine.sides()
    mine.characters()
    mine.columns()
    mine.repeated()
    mine.ratios()
    findings = mine.findings()
    counts = {name: [n, 0] for name, n in training.labels.counts.items()}
    if validation is not None:
        others = finding(validation, "validation ")
        others.texts(splits=False)
        others.sides()
        others.characters()
        others.columns()
        if media:
            others.repeated()
        others.ratios()
        others.seen_in(training)
        findings += others.findings()
        for name, n in validation.labels.counts.items():
            counts.setdefault(name, [0, 0])[1] = n
    if not mine.schema.is_tagged and (text := rare_label_note(held_out(training, validation))):
        findings.append(Finding("warning", "few-valid", 1, text))
    n_valid = None if validation is None else len(validation)
    labels = {name: (counts[name][0], counts[name][1]) for name in sorted_labels(counts)}
    return Report(len(training), n_valid, findings, sizes=mine.sizes, unit=mine.unit, labels=labels)


def held_out(training: DatasetScan, validation: DatasetScan | None) -> dict[str, int]:
    """Return the number of validation examples of each training label. Without validation data,
    estimate the numbers that will be set aside, at most a tenth of each label."""
    counts = training.labels.counts
    if validation is not None:
        return {name: validation.labels.counts.get(name, 0) for name in counts}
    size = training.source.settings.data.valid_size
    share = min(0.1, size / max(1, len(training)))
    return {name: round(share * n) for name, n in counts.items()}


def duplicates(hashes: NDArray[np.uint64]) -> IntArray:
    """Return the indices of hashes that also occur earlier in the array. `np.unique` would take
    twice the memory."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = order[1:][ordered[1:] == ordered[:-1]]
    again.sort()
    return again


def conflicts(hashes: NDArray[np.uint64], labels: NDArray[np.int32], rows: IntArray) -> IntArray:
    """Return the examples in `rows` whose label differs from that of the first example with the
    same hash."""
    _, first, group = np.unique(hashes[rows], return_index=True, return_inverse=True)
    return rows[labels[rows] != labels[rows][first][group]]


def clipped(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
