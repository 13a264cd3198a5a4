"""Columns of documents with several fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headway.data.columns.column import Column, Sample, Value, to_python, value_text
from headway.data.columns.text import TextColumn


@dataclass(frozen=True)
class FieldColumn(TextColumn):
    """One of the fields of a document (`data.fields`). A document may lack some of them."""

    kind: ClassVar[str] = "field"
    is_field: ClassVar[bool] = True

    def matches(self, sample: Sample) -> str | None:
        return "fields are found by their names alone"

    def parse(self, raw: object, where: str) -> Value:
        text = value_text(to_python(raw), where)
        return text if text.strip() else ""

    def is_plain(self, value: object) -> bool:
        return False

    def to_json(self, raw: object, where: str) -> object:
        return Column.to_json(self, raw, where)
