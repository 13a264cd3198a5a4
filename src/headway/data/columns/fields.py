"""Columns of documents with several fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headway.data.columns.column import Column, Sample, Value, to_python, value_text
from headway.data.columns.text import TextColumn

if TYPE_CHECKING:
    from headway.data.check import Findings
    from headway.data.scan import DatasetScan


@dataclass(frozen=True)
class FieldColumn(TextColumn):
    """Field of a document, one of those listed in `data.fields`. A document may lack some
    fields."""

    kind: ClassVar[str] = "field"
    is_field: ClassVar[bool] = True

    def matches(self, sample: Sample) -> str | None:
        return "fields are found by their names alone"

    def parse(self, raw: object, where: str) -> Value:
        text = value_text(to_python(raw), where)
        return text if text.strip() else ""

    def is_plain(self, value: object) -> bool:
        return False

    def findings(self, scan: DatasetScan, report: Findings) -> None:
        """Report the fields that no document has. Only the column of the first field does this, for
        all fields."""
        fields = scan.source.schema.text_names
        if report.which or self.name != fields[0] or len(fields) == 1 or not len(scan):
            return
        missing = [name for name in fields if not scan.labels.present[name]]
        if missing:
            text = f"no document has a field {' or '.join(map(repr, missing))} (data.fields)."
            report.add("error", "no-field", len(missing), text)

    def to_json(self, raw: object, where: str) -> object:
        return Column.to_json(self, raw, where)
