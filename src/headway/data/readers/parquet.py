"""Read Parquet files as tables. Only required columns are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headway.data.table import SAMPLE, RawRow, Table, value_in
from headway.errors import DataError, needs

ROWS = 1024
"""Number of rows in memory at a time. It is large enough for fast reading, and small enough for
rows with long texts."""


def open_parquet(path: str) -> Table:
    with _opened(path) as file:
        columns = tuple(file.schema_arrow.names)

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        tops = [name if name in columns else name.partition(".")[0] for name in names]
        found = _rows(path, [name for name in dict.fromkeys(tops) if name in columns])
        for number, row in enumerate(found, 1):
            yield RawRow([value_in(row, name) for name in names], number, row=row)

    sample: list[dict[str, Any]] = []
    for row in _rows(path, list(columns), SAMPLE):
        sample.append(row)
        if len(sample) == SAMPLE:
            break
    return Table(columns, sample, read, name=path, form="Parquet", unit="row")


def _rows(path: str, columns: list[str], at_once: int = ROWS) -> Iterator[dict[str, Any]]:
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=at_once, columns=columns):
            yield from batch.to_pylist()


def _opened(path: str) -> Any:
    parquet = needs("pyarrow.parquet", "parquet")
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # the base classes of errors of pyarrow
        raise DataError(
            f"{path} cannot be read as a Parquet file: {str(error).rstrip('.')}."
        ) from error
