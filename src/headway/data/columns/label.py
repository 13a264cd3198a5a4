"""Columns of targets: one label, several labels, or a number per example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import counted, listed
from headway.data.columns.column import (
    Column,
    Rows,
    Sample,
    StoreFacts,
    StoreTools,
    Value,
    label_text,
    name_media,
    to_python,
    value_text,
)
from headway.data.sniff import is_number
from headway.data.table import is_missing, shown_value
from headway.errors import DataError, Option, one_line
from headway.settings.data import DataSettings

if TYPE_CHECKING:
    from headway.data.check import Findings
    from headway.data.scan import DatasetScan
    from headway.tokens.word_cache import FlatIds

UNLIKE = 20
"""Minimum number of sampled rows for a column with only distinct values to be rejected as the
label. Such a column probably contains ids or texts."""

MANY_NUMBERS = 10
"""Number of distinct numeric labels above which the check suggests a regression. Fewer distinct
numbers are usually ratings or class numbers."""

SEPARATORS = (";", "|", ",")

MISSING = frozenset({"nan", "n/a", "#n/a", "<na>", "null"})
"""Lower-case texts that programs write for missing values. Some are also class names, such as the
language code `nan`, so rows with these texts are kept."""


@dataclass(frozen=True)
class LabelColumn(Column):
    """Column with one label per example."""

    kind: ClassVar[str] = "label"
    is_label: ClassVar[bool] = True
    is_class: ClassVar[bool] = True
    is_counted: ClassVar[bool] = True

    def matches(self, sample: Sample) -> str | None:
        if name_media(sample.values):
            return "the values name media files"
        if len(sample.values) >= UNLIKE and _all_differ(sample.values):
            return "all values are different"  # row numbers or texts
        if not all(isinstance(value, str | int | bool) for value in sample.values):
            return "not all values are texts or whole numbers"
        return None

    def parse(self, raw: object, where: str) -> Value:
        if is_missing(raw):
            return ""
        if isinstance(raw, list) and len(raw) > 1:
            said = ", ".join(map(str, raw))[:60]
            raise DataError(f"{where} has {len(raw)} labels ({said}), but exactly one is needed.")
        return one_line(value_text(to_python(raw), where).strip(" \t"), where).strip()

    def is_plain(self, value: object) -> bool:
        if type(value) is not str or not value.isascii() or not value.isprintable():
            return False
        return bool(value) and value == value.strip()

    def scan(self, value: Value) -> Sequence[str]:
        return [value] if value else []

    def findings(self, scan: DatasetScan, report: Findings) -> None:
        names, schema = scan.labels, scan.source.schema
        if names.n_unlabelled and (names.counts or not schema.has_fields):
            field = scan.source.settings.data.label_field
            where = "" if schema.media else f" in column {field!r}"
            text = (
                f"{counted(names.n_unlabelled, report.unit, report.which)} "
                f"{'has' if names.n_unlabelled == 1 else 'have'} no label{where}; "
                f"the first is {names.first_unlabelled}. To leave such rows out: "
                "data.on_bad_row=skip"
            )
            report.add("error", "no-label", names.n_unlabelled, text)
        add_classes(scan, report)
        if not report.which and (hint := self.hint(scan)):
            report.add("warning", "label-form", 1, hint)

    def hint(self, scan: DatasetScan) -> str:
        """Return a hint if the column seems to contain numbers, several labels in one cell, or
        missing values. It is empty if the values look like classes, or if the task supports only
        single labels."""
        settings, names = scan.source.settings, list(scan.labels.counts)
        own = getattr(settings, settings.task, None)
        if not hasattr(own, "answer") or not names:
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
                    f"labels such as {joined[0]!r} look like several labels with {separator!r} "
                    f"between them: {len(parts):,} in all. To learn each of them: "
                    f"classify.answer=labels "
                    f'data.label_separator="{separator}"'
                )
        missing = [name for name in names if name.lower() in MISSING]
        if missing:
            return (
                f"labels such as {missing[0]!r} look like missing values, and each is read as a "
                "class. To leave these rows out, empty the cells and set data.on_bad_row=skip."
            )
        return ""

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<i4"}} if tools.labels else {}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        if not tools.labels:
            return {}
        pairs = zip(values, places, strict=True)
        return {self.name: np.array([self.number(*one, tools.labels) for one in pairs], "<i4")}

    def number(self, label: str, place: str, labels: Mapping[str, int]) -> int:
        if not label:
            raise DataError(f"{place} has no label in column {self.given_name or self.name!r}.")
        return number_of(label, place, labels)

    @classmethod
    def from_stored(cls, values: NDArray[Any]) -> NDArray[Any]:
        return values.astype(np.int64)


@dataclass(frozen=True)
class MultiLabelColumn(Column):
    """Column with any number of labels per example, as a list or in one cell with separators."""

    kind: ClassVar[str] = "labels"
    is_label: ClassVar[bool] = True
    is_class: ClassVar[bool] = True
    is_counted: ClassVar[bool] = True
    is_several: ClassVar[bool] = True
    is_named_by_need: ClassVar[bool] = False
    separator: str = field(default=",", kw_only=True)

    def with_settings(self, data: DataSettings) -> Self:
        return replace(self, separator=data.label_separator)

    def matches(self, sample: Sample) -> str | None:
        if not all(isinstance(value, str | list) for value in sample.values):
            return "not all values are texts or lists"
        return None

    def parse(self, raw: object, where: str) -> Value:
        raw = to_python(raw)
        if is_missing(raw):
            return []
        parts = raw if isinstance(raw, list) else value_text(raw, where).split(self.separator)
        found = (label_text(part, where).strip() for part in parts)
        return list(dict.fromkeys(filter(None, found)))

    def scan(self, value: Value) -> Sequence[str]:
        return list(value)

    def findings(self, scan: DatasetScan, report: Findings) -> None:
        names = scan.labels
        if names.n_unlabelled:
            text = (
                f"{counted(names.n_unlabelled, report.unit, report.which)} "
                f"{'has' if names.n_unlabelled == 1 else 'have'} none of the labels; the first is "
                f"{names.first_unlabelled}."
            )
            report.add("note", "no-label", names.n_unlabelled, text)
        add_classes(scan, report, least=1)

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<u4", "lengths": tools.lengths}}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        return {self.name: numbers_of(values, places, tools.labels)}


@dataclass(frozen=True)
class NumberColumn(Column):
    """Column with a number per example, the target of a regression. `parse` returns the number as
    text, in JSON notation."""

    kind: ClassVar[str] = "number"
    is_label: ClassVar[bool] = True
    is_named_by_need: ClassVar[bool] = False

    def matches(self, sample: Sample) -> str | None:
        return None if all(map(is_number, sample.values)) else "not all values are numbers"

    def parse(self, raw: object, where: str) -> Value:
        raw = to_python(raw)
        text = shown_value(raw)
        if isinstance(raw, str | int | float) and not isinstance(raw, bool):
            text = str(raw).strip()
            if is_number(text):
                return repr(float(text))
        raise DataError(
            f"{where} contains {text[:40]!r}, which is not a number, but classify.answer=number "
            "needs one."
        )

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<f4"}}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        return {self.name: np.array([float(value) for value in values], "<f4")}


def add_classes(scan: DatasetScan, report: Findings, what: str = "label", least: int = 2) -> None:
    """Report unusual class counts of the training data: too few classes, too many, or rare ones."""
    if report.which:
        return
    source = scan.source
    data, schema = source.settings.data, source.schema
    usual = (data.text_field, data.label_field, data.other_field) == ("text", "label", "")

    def column(name: str, value: str) -> Option | str:
        is_option = source.is_positional
        return Option(name, value) if is_option else f"data.{name}_field={value}"

    first = f" If the label is the first column: {column('text', '2')} {column('label', '1')}"
    named = not schema.is_tagged and schema.media is None
    where = f"{column('label', data.label_field)}" if named else ""
    report.classes(scan.labels.counts, what, where, first if usual else "", least)


def number_of(label: str, place: str, labels: Mapping[str, int], what: str = "label") -> int:
    """Return the index of a label. An unknown label raises a `DataError` that begins with
    `place`."""
    if label not in labels:
        raise DataError(
            f"{place}: unknown {what} {label!r}. Known {what}s: {listed(list(labels))}."
        )
    return labels[label]


def numbers_of(
    values: Sequence[Sequence[str]],
    places: Sequence[str],
    labels: Mapping[str, int],
    what: str = "label",
) -> FlatIds:
    """Return the indices of the labels or tags of each example."""
    from headway.tokens.word_cache import FlatIds

    return FlatIds.of(
        [
            [number_of(label, place, labels, what) for label in each]
            for each, place in zip(values, places, strict=True)
        ]
    )


def _all_differ(values: Sequence[object]) -> bool:
    return len(set(map(str, values))) == len(values)
