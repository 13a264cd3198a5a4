"""Columns of targets that are one label, several labels, or a number per example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import listed
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
from headway.errors import DataError, one_line
from headway.settings.data import DataSettings

if TYPE_CHECKING:
    from headway.tokens.word_cache import FlatIds

UNLIKE = 20
"""A column with this many rows, all with different values, is not taken for a label."""


@dataclass(frozen=True)
class LabelColumn(Column):
    """One label per example."""

    kind: ClassVar[str] = "label"
    is_label: ClassVar[bool] = True
    is_class: ClassVar[bool] = True

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
        return type(value) is str and value.isascii() and value.isalnum()

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
    """Any number of labels per example: a list, or a cell with a separator."""

    kind: ClassVar[str] = "labels"
    is_label: ClassVar[bool] = True
    is_class: ClassVar[bool] = True
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

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<u4", "lengths": tools.lengths}}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        return {self.name: numbers_of(values, places, tools.labels)}


@dataclass(frozen=True)
class NumberColumn(Column):
    """A number per example, the target of a regression. It is parsed to its text, as in JSON."""

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


def number_of(label: str, place: str, labels: Mapping[str, int], what: str = "label") -> int:
    """Return the number of a label; an unknown one raises an error with its place."""
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
    """Return the numbers of several labels or tags per example."""
    from headway.tokens.word_cache import FlatIds

    return FlatIds.of(
        [
            [number_of(label, place, labels, what) for label in each]
            for each, place in zip(values, places, strict=True)
        ]
    )


def _all_differ(values: Sequence[object]) -> bool:
    return len(set(map(str, values))) == len(values)
