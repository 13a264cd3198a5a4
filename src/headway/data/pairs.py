"""Pairs of sentences out of aligned files, columns, or lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.data.example import pair_source
from headway.data.files import is_stream, spool
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.storage import work_folder
from headway.tasks.specs import SPECS

Pair = tuple[str, str]
"""A source and its target."""

TASK = next(spec.name for spec in SPECS.values() if spec.reads == "pairs")


def read_pairs(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], settings: DataSettings
) -> Iterator[Pair]:
    """All pairs in the order of the files, of which little is in memory."""
    with work_folder() as folder:
        again = [_again(path, folder) for path in pairs]
        run = RunSettings(task=TASK, data=settings)
        for example in pair_source(run, again, source, target):
            yield example.text("source"), example.text("target")


def _again(path: str, folder: Path) -> str:
    """A file that can be read twice: columns are found before pairs are read."""
    if not is_stream(path):
        return path
    spool(path, folder / "standard-input")
    return str(folder / "standard-input")
