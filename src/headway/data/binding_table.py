"""Summary of the columns of the data and their roles. It is shown before training and stored with a
run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from headway.data.bind import DEFAULTS, Binding, is_blank
from headway.data.bound_data import ROWS, BoundData
from headway.data.check_report import Report
from headway.data.columns.column import Column, class_of
from headway.data.files import is_stream
from headway.data.media.open_item import ItemFormat
from headway.data.readers.folder import FOLDER
from headway.data.schema import MediaSpec
from headway.data.sniff import is_table_file
from headway.data.source import BoundTable, sources
from headway.data.table import Table, is_missing, value_in
from headway.settings.data import DataSettings, file_name
from headway.settings.run import RunSettings
from headway.specs.needs import OTHER, Need
from headway.specs.tasks import Spec

MOST_FILES = 3
"""Maximum number of files whose columns are shown, so that the summary fits a screen. Other files
are only counted."""

MOST_CLASSES = 8
"""Maximum number of classes listed with their counts, so that the list fits one terminal line."""


@dataclass(frozen=True)
class TrainingTables:
    """The files of a training run, with their bound columns."""

    bound: Sequence[tuple[Table, Binding]]
    """Tables of the training data, each with its bound columns."""

    others: Sequence[str] = ()
    """Descriptions of inputs that are not tables, such as folders and `.npy` stacks."""

    @classmethod
    def of(cls, settings: RunSettings, row: Spec, given: Mapping[str, BoundData]) -> TrainingTables:
        """Find the files of a run and bind their columns as the readers do. Data passed in memory
        (`given`) is already bound."""
        held = given.get(ROWS)
        if held is not None and held.table is not None:
            return cls([(held.table, dict(held.columns))])
        if (what := row.media) is not None:
            media = MediaSpec(ItemFormat(what), media_target(settings, row))
            training, _ = sources(settings, media)
            found = list(training.tables())
            lists = [one for one in found if is_table_file(one.table.name)]
            others = [_describe_files(one) for one in found if one not in lists]
            return cls([(one.table, one.binding) for one in lists], others)
        training, _ = sources(settings)
        aligned = [one for both in training.aligned for one in both]
        if any(map(is_stream, (*training.paths, *aligned))):  # which can be read only once
            return cls(())
        return cls([(one.table, one.binding) for one in training.tables()])

    def named(self, data: DataSettings) -> DataSettings:
        """Return the settings with the column names that were found. If the names differ between
        files, return the settings unchanged."""
        found: list[dict[str, str]] = []
        for table, binding in self.bound:
            names = binding.items() if table.header else ()
            named = {one.setting: name for name, one in names if one.setting}
            found.append({k: name for k, name in named.items() if name != DEFAULTS.get(k)})
        same = found[0] if found and all(one == found[0] for one in found) else {}
        return DataSettings(**{**asdict(data), **same})

    @property
    def columns(self) -> dict[str, str]:
        """Role of each column of the first file, by column name. The role is empty for columns that
        are not read."""
        for table, binding in self.bound[:1]:
            said = dict.fromkeys(table.columns, "")
            return said | {name: one.name for name, one in binding.items()}
        return {}

    def describe(self, report: Report) -> list[dict[str, object]]:
        """Describe the first files as JSON objects: file, format, and a `ColumnRow` for each
        column."""
        found: list[dict[str, object]] = [
            {"file": file_name(str(table.display_name)), "form": table.form,
             "columns": list(_cells(table, binding, report))}
            for table, binding in self.bound[:MOST_FILES]
        ]  # fmt: skip
        return found + [{"file": "", "form": said} for said in self.others[:MOST_FILES]]

    def lines(self, report: Report) -> list[str]:
        shown: list[str] = []
        alike = all(one[1] == self.bound[0][1] for one in self.bound)
        for number, (table, binding) in enumerate(self.bound[: 1 if alike else MOST_FILES]):
            alone = len(self.bound) == 1 and not self.others
            n, left = report.n_pairs, len(self.bound) - 1
            rows = f", {n:,} {table.unit_of(n)}" if alone or (alike and not number) else ""
            more = f" and {left:,} more file{'s' * (left > 1)}" if alike and left else ""
            shown.append(f"{Path(table.display_name).name}{more}   {table.form}{rows}")
            shown += _columns(table, binding, report)
        if not alike and len(self.bound) > MOST_FILES:
            shown.append(f"and {len(self.bound) - MOST_FILES:,} more files")
        left = len(self.others) - MOST_FILES
        behind = [f"and {left:,} more files or folders"] if left > 0 else []
        return [*shown, *self.others[:MOST_FILES], *behind]


def media_target(settings: RunSettings, row: Spec) -> Need | None:
    """Return the column that accompanies the media of this task: a second media file, or the target
    of the task. None if there is neither."""
    return OTHER if settings.data.other_field else row.target


ColumnRow = tuple[str, str, str, str]
"""Line of the summary: column name, role, kind of column, and an example value. For a column that
is not read, role and kind are empty, and the last entry is the reason."""


def _cells(table: Table, binding: Binding, report: Report) -> Iterator[ColumnRow]:
    tops = {name.partition(".")[0] for name in binding} | set(binding)
    for name in [*binding, *(name for name in table.columns if name not in tops)]:
        column = binding.get(name)
        if column is None or column.is_region:
            yield name, "", "", "not used" if column is None else column.show("")
            continue
        found = (value_in(row, name) for row in table.sample)
        value = next((one for one in found if not (is_missing(one) or is_blank(one))), "")
        yield name, column.name, column.kind, _value(value, column, report.labels)


def _columns(table: Table, binding: Binding, report: Report) -> Iterator[str]:
    cells = list(_cells(table, binding, report))
    wide, needs, kinds = (max((len(one[at]) for one in cells), default=0) for at in range(3))
    for name, need, kind, said in cells:
        if need:
            yield f"  {name:{wide}} → {need:{needs}}   {kind:{kinds}}   {said}".rstrip()
        else:
            yield f"  {name:{wide}} ({said})"


def _value(value: object, column: Column, labels: Mapping[str, tuple[int, int]]) -> str:
    if column.is_class and labels:
        some = ", ".join(f"{name} {sum(n):,}" for name, n in islice(labels.items(), MOST_CLASSES))
        more = ", …" if len(labels) > MOST_CLASSES else ""
        return f"{len(labels):,} class{'es' * (len(labels) != 1)}: {some}{more}"
    return column.show(value)


def _describe_files(bound: BoundTable) -> str:
    """Describe a folder, stack or single file, which has no columns of its own."""
    table, (first, *_) = bound.table, bound.binding.values()
    labels = Counter(one.text("label") for one in bound) if FOLDER in table.columns else {}
    n = table.n or 0
    known = {name: (count, 0) for name, count in labels.items()}
    said = (
        f"\n  (folder) → label   label   {_value('', class_of('label')('label'), known)}"
        if known
        else ""
    )
    name = file_name(str(table.name))
    return f"{name}   {table.form}, {n:,} {table.unit_of(n)}\n  (file) → {first.kind}{said}"
