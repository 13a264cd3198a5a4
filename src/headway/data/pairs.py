"""Sentence pairs from aligned files, tables, or lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.data.files import is_stream, spool
from headway.data.source import pair_source
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.specs.tasks import SPECS
from headway.storage import work_folder

TextPair = tuple[str, str]
"""A source and its target."""

TASK = next(spec.name for spec in SPECS.values() if spec.reads_pairs)


def read_pairs(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], settings: DataSettings
) -> Iterator[TextPair]:
    """Yield all pairs in the order of the files, in bounded memory."""
    with work_folder() as folder:
        again = [_rereadable(path, folder) for path in pairs]
        run = RunSettings(task=TASK, data=settings)
        for example in pair_source(run, again, source, target):
            yield example.text("source"), example.text("target")


def _rereadable(path: str, folder: Path) -> str:
    """Return a file that can be read twice: columns are bound before pairs are read."""
    if not is_stream(path):
        return path
    spool(path, folder / "standard-input")
    return str(folder / "standard-input")
