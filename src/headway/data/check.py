"""Checks of the data before training: what is unusual, where, and what it means.

Only problems that make training impossible are errors. The checks use a few numbers per example;
the texts of the examples that findings show are read again at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import (
    Finding,
    Level,
    Report,
    ReportedExample,
    counted,
    listed,
    rare_label_note,
    sorted_labels,
)
from headway.data.hashing import UInt64Array
from headway.data.media.decoding import FLAT, UNREADABLE
from headway.data.scan import (
    CONTROL,
    EMPTY,
    GARBLED,
    REPLACED,
    SAME,
    SWAPPED,
    DatasetScan,
)
from headway.data.source import MOST_NAMED, DataSource
from headway.errors import Option
from headway.settings.overrides import OriginKind

EXAMPLES = 3
MANY = 0.1
"""Share of examples from which a common finding becomes a warning instead of a note."""

MIN_PER_CLASS = 10
"""A class with fewer examples than this is reported as rare."""


MAX_RATIO = 3.0
"""A pair is an outlier when its length ratio differs from the usual one by more than this factor
and by more than four standard deviations."""

MOST_UNREADABLE = 0.1
"""Share of unreadable files above which the check reports an error instead of a warning."""

SMALL = 4
"""An image is reported as small if it must be enlarged by more than this factor."""

NARROW = 2.0
"""An image is reported as narrow if cropping keeps less than one part in this many of it."""

SHORT_S, LONG_S = 0.1, 30.0

TAG, CLASS = "tag", "label"
"""Words for a class in messages."""

PROBLEMS = "problems.jsonl"
"""Name of the file that lists the examples left out, in the folder of the prepared data."""

IntArray = NDArray[np.int64]


def valid_option(source: DataSource) -> str:
    """Return the option that gives separate validation data: `--valid` if the training files follow
    the task name, otherwise the counterpart of their option, such as `--valid-text`."""
    if is_positional(source):
        return f"{Option('valid', takes='FILE')}"
    name = _files_setting(source)
    if name == "source":
        return f"{Option('valid_source')}, {Option('valid_target')}"
    return f"{Option(f'valid_{name}')}"


def is_positional(source: DataSource) -> bool:
    """Whether files were named without an option, so that options name their columns."""
    key, asked = f"data.{_files_setting(source)}", source.settings.asked
    return asked.origin(key).kind in (OriginKind.UNKNOWN, OriginKind.POSITIONAL)


def _files_setting(source: DataSource) -> str:
    data = source.settings.data
    return next((one for one in ("pairs", "source", "media") if getattr(data, one)), "text")


@dataclass
class Findings:
    """Findings in one split, whose `n` examples are counted in a unit such as texts or images."""

    n: int
    unit: str
    which: str = ""
    """`validation `, or empty for training."""

    found: list[tuple[Finding, IntArray]] = field(default_factory=list)
    """Each finding with the rows that it shows."""

    def add(self, level: Level, name: str, count: int, text: str) -> None:
        self.found.append((Finding(level, name, count, text), np.zeros(0, np.int64)))

    def add_rows(
        self, level: Level, name: str, rows: IntArray, text: str, most: int = EXAMPLES
    ) -> None:
        """Add a finding about these rows and show some of them; without rows, add nothing."""
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
        """Report too few, too many or rare labels or tags; `where` is the column they come from."""
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
        """Return the findings with the contents of the rows that they show."""
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
        """Report pairs whose source and target are the same text, or look swapped."""
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
        """Report pairs whose length ratio, in characters, is unusual for this data."""
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
        """Report duplicates and contradictions; empty examples are left out here."""
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

    def labels(self) -> None:
        names, source = self.scan.labels, self.scan.source
        wanted = not self.schema.has_fields or names.counts
        if wanted and names.n_unlabelled and self.schema.has_single_class:  # several may be none
            where = "" if self.schema.media else f" in column {source.settings.data.label_field!r}"
            text = (
                f"{counted(names.n_unlabelled, self.unit, self.which)} "
                f"{'has' if names.n_unlabelled == 1 else 'have'} no label{where}; "
                f"the first is {names.first_unlabelled}. To leave such rows out: "
                "data.on_bad_row=skip"
            )
            self.add("error", "no-label", names.n_unlabelled, text)
        if names.n_unlabelled and self.schema.is_multi_label:
            text = (
                f"{counted(names.n_unlabelled, self.unit, self.which)} "
                f"{'has' if names.n_unlabelled == 1 else 'have'} none of the labels; the first is "
                f"{names.first_unlabelled}."
            )
            self.add("note", "no-label", names.n_unlabelled, text)
        if names.misfits:
            text = (
                f"{counted(names.misfits, 'tags', self.which)} "
                f"{'does' if names.misfits == 1 else 'do'} not fit the scheme {source.scheme} "
                f"and are converted as closely as possible; the first is at {names.first_misfit}."
            )
            self.add("warning", "misfits", names.misfits, text)

    def all_classes(self) -> None:
        data = self.scan.source.settings.data
        usual = (data.text_field, data.label_field, data.other_field) == ("text", "label", "")

        def column(name: str, value: str) -> Option | str:
            is_option = is_positional(self.scan.source)
            return Option(name, value) if is_option else f"data.{name}_field={value}"

        first = f" If the label is the first column: {column('text', '2')} {column('label', '1')}"
        named = not self.schema.is_tagged and self.schema.media is None
        where = f"{column('label', data.label_field)}" if named else ""
        self.classes(
            self.scan.labels.counts, self.what, where, first if usual else "",
            least=1 if self.schema.is_multi_label else 2,
        )  # fmt: skip
        if hint := label_hint(self.scan):
            self.add("warning", "label-form", 1, hint)

    called = " text"
    """Word for the part that identical examples share, in the finding `conflicts`."""

    def form(self) -> dict[str, float]:
        """Report the sizes of images or audio and return them; texts have none."""
        return {}

    @property
    def what(self) -> str:
        return TAG if self.schema.is_tagged else CLASS

    def fields(self) -> None:
        names, fields = self.scan.labels, self.schema.text_names
        if self.schema.has_fields and len(fields) > 1 and len(self.scan):
            missing = [name for name in fields if not names.present[name]]
            if missing:
                text = f"no document has a field {' or '.join(map(repr, missing))} (data.fields)."
                self.add("error", "no-field", len(missing), text)

    def seen_in(self, training: DatasetScan) -> None:
        """Report validation examples that are also in training, and labels that training lacks."""
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
        """Return the hashes of both by which validation examples are found in training."""
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
    """Findings in images, videos and audio."""

    called = ""

    @property
    def facts(self) -> NDArray[np.void]:
        assert self.scan.media is not None
        return self.scan.media

    def texts(self, *, splits: bool) -> None:
        """Report media that cannot be read, or that lack a text where one is the target."""
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

    def form(self) -> dict[str, float]:
        form, facts = self.schema.format, self.facts
        good = facts["marks"] & UNREADABLE == 0
        sizes = {}
        if good.any():
            height, width = facts["height"].astype(np.int64), facts["width"].astype(np.int64)
            if form.is_audio:
                sizes = self._lengths(height / form.rate, good)
            else:
                assert form.size is not None
                sizes = self._areas(height, width, good, form.size)
        silent = "silent from start to end." * form.is_audio
        flat = np.flatnonzero((facts["marks"] & FLAT > 0).any(1))
        self.add_rows("warning", "flat", flat, silent or "every pixel has the same colour.")
        return sizes

    def _areas(
        self, height: IntArray, width: IntArray, good: NDArray[np.bool_], size: tuple[int, int]
    ) -> dict[str, float]:
        """Report the sizes of images, and which are small or narrow."""
        area = np.where(good, height * width, -1)
        least = np.where(good, area, area.max() + 1)
        shown = [f"{width[at]:,} × {height[at]:,}" for at in _ends(least, area)]
        span = shown[0] if shown[0] == shown[1] else f"from {shown[0]} to {shown[1]}"
        text = f"{self.which}{self.unit} have {span} pixels, resized to {size[1]} × {size[0]}."
        self.add("note", "sizes", int(good.sum()), text)
        high, wide = np.maximum(height, 1), np.maximum(width, 1)
        factor = np.maximum(size[0] / high, size[1] / wide)
        rows = np.flatnonzero((good & (factor > SMALL)).any(1))
        text = f"must be enlarged more than {SMALL} times, so they show little detail."
        self.add_rows(self.level_of(rows), "small", rows, text)
        left = (size[0] / factor) * (size[1] / factor) / (high * wide)
        rows = np.flatnonzero((good & (left * NARROW < 1)).any(1))
        text = "so wide or so high that cropping removes more than half."
        self.add_rows(self.level_of(rows), "narrow", rows, text)
        return {"pixels_least": float(least.min()), "pixels_most": float(area.max())}

    def _lengths(self, seconds: NDArray[np.float64], good: NDArray[np.bool_]) -> dict[str, float]:
        found = seconds[good]
        text = (
            f"{self.which}{self.unit} last {format_seconds(found.sum())} in total, each from "
            f"{format_seconds(found.min())} to {format_seconds(found.max())}, median "
            f"{format_seconds(float(np.median(found)))}."
        )
        self.add("note", "sizes", len(found), text)
        rows = np.flatnonzero((good & (seconds < SHORT_S)).any(1))
        self.add_rows("warning", "short", rows, f"shorter than {SHORT_S:g} s.")
        rows = np.flatnonzero((good & (seconds > LONG_S)).any(1))
        self.add_rows("note", "long", rows, f"longer than {LONG_S:g} s.")
        return {"seconds": float(found.sum()), "longest": float(found.max())}

    def seen_in(self, training: DatasetScan) -> None:
        super().seen_in(training)
        here, there = self.scan.labels.counts, training.labels.counts
        found = missing_label_warning(here.keys(), there.keys())
        self.found += [(one, np.zeros(0, np.int64)) for one in found]

    @staticmethod
    def _same(one: DatasetScan, other: DatasetScan) -> tuple[UInt64Array, UInt64Array]:
        """Compare the media alone: an image seen in training with another text counts as seen."""
        return one.key, other.key[other.filled]

    def findings(self) -> list[Finding]:
        shown = {}
        problems = self.scan.labels.problems
        for row, one in self.scan.examples(self.shown_rows()).items():
            target = clipped(one.text("text") or ", ".join(one.labels))
            why = problems.get(one.place, "")
            shown[row] = ReportedExample(one.place, why or target, target if why else "")
        return self.with_examples(shown)


def _ends(*values: IntArray) -> Iterable[tuple[int, ...]]:
    """Yield the index of the lowest value of the first array and of the highest of the second."""
    least, most = values
    for flat in (least.argmin(), most.argmax()):
        yield tuple(int(i) for i in np.unravel_index(flat, least.shape))


MANY_NUMBERS = 10
"""Numeric labels are taken for quantities if there are more different ones than this."""

SEPARATORS = (";", "|", ",")

MISSING = frozenset({"nan", "n/a", "#n/a", "<na>", "null"})
"""Lower-case texts that programs write for missing values. Some are also class names, such as the
language code `nan`, so rows with them are kept."""


def label_hint(seen: DatasetScan) -> str:
    """A hint that single-label classes look like numbers, or like several labels in one cell; empty
    if they look like classes or if the task has no other kind of answer."""
    settings, names = seen.source.settings, list(seen.labels.counts)
    own = getattr(settings, settings.task, None)
    if not seen.source.schema.has_single_class or not hasattr(own, "answer") or not names:
        return ""
    if len(names) > MANY_NUMBERS and all(map(is_number, names)):
        return (
            f"all {len(names):,} labels are numbers, such as {names[0]!r}. To predict a number "
            "instead of a class (regression): classify.answer=number"
        )
    for separator in SEPARATORS:
        joined = [name for name in names if separator in name]
        parts = {part.strip() for name in names for part in name.split(separator)}
        if len(joined) >= max(2, len(names) / 4) and len(parts) < len(names):
            return (
                f"labels such as {joined[0]!r} look like several labels with {separator!r} between "
                f"them: {len(parts):,} in all. To learn each of them: classify.answer=labels "
                f'data.label_separator="{separator}"'
            )
    missing = [name for name in names if name.lower() in MISSING]
    if missing:
        return (
            f"labels such as {missing[0]!r} look like missing values, and each is read as a class. "
            "To leave these rows out, empty the cells and set data.on_bad_row=skip."
        )
    return ""


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def missing_label_warning(here: Set[str], there: Set[str]) -> list[Finding]:
    """A warning where validation, which has the labels `here`, lacks some of training."""
    lacking = sorted_labels(there - here)
    if not here or not lacking:
        return []
    text = (
        f"the validation data has no examples of {len(lacking)} of {len(there)} labels: "
        f"{listed(lacking)}."
    )
    return [Finding("warning", "absent-label", len(lacking), text)]


def format_seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def check(training: DatasetScan, validation: DatasetScan | None) -> Report:
    media = training.media is not None
    finding = MediaFindings if media else TextFindings
    mine = finding(training)
    mine.texts(splits=validation is None)
    mine.sides()
    mine.characters()
    mine.fields()
    mine.labels()
    mine.all_classes()
    sizes = mine.form()
    mine.repeated()
    mine.ratios()
    findings = mine.findings()
    counts = {name: [n, 0] for name, n in training.labels.counts.items()}
    if validation is not None:
        others = finding(validation, "validation ")
        others.texts(splits=False)
        others.sides()
        others.characters()
        others.labels()
        others.form()
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
    return Report(len(training), n_valid, findings, sizes=sizes, unit=mine.unit, labels=labels)


def held_out(training: DatasetScan, validation: DatasetScan | None) -> dict[str, int]:
    """Count the validation examples of each training label; without validation data, estimate how
    many the split will set aside (at most a tenth)."""
    counts = training.labels.counts
    if validation is not None:
        return {name: validation.labels.counts.get(name, 0) for name in counts}
    size = training.source.settings.data.valid_size
    share = min(0.1, size / max(1, len(training)))
    return {name: round(share * n) for name, n in counts.items()}


def duplicates(hashes: NDArray[np.uint64]) -> IntArray:
    """Return the rows whose hash an earlier row has. `np.unique` would take twice the memory."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = order[1:][ordered[1:] == ordered[:-1]]
    again.sort()
    return again


def conflicts(hashes: NDArray[np.uint64], labels: NDArray[np.int32], rows: IntArray) -> IntArray:
    """Return the rows whose label differs from that of the first row with the same hash."""
    _, first, group = np.unique(hashes[rows], return_index=True, return_inverse=True)
    return rows[labels[rows] != labels[rows][first][group]]


def clipped(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
