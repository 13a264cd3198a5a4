"""Long work on files that goes on where it was killed.

Results grow in one folder, and what is known of their state lies in a second one beside it: what is
being made, finished stages, and how much of each growing file is good. Whatever was written after
the last record is cut off, so that the result is the same as without a kill.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headway.config.durable import replace_text
from headway.errors import UserError

WANTED, RECORD = "wanted.json", "record.json"


@dataclass(frozen=True)
class Workplace:
    results: Path
    state: Path

    def stage(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, or gave before the work was interrupted; it must be JSON."""
        path = self.state / f"{name}.json"
        known = _json(path)
        if known is None:
            known = json.loads(json.dumps(make()))
            replace_text(path, json.dumps(known))
        return known

    def record(self, values: Mapping[str, Any]) -> None:
        replace_text(self.state / RECORD, json.dumps(values))

    def recorded(self) -> dict[str, Any] | None:
        return _json(self.state / RECORD)


@contextmanager
def workplace(folder: Path, wanted: Mapping[str, Any]) -> Iterator[Workplace]:
    """A place where the folder is made, and moved from when it is complete. What lies there of an
    earlier attempt is used if that wanted the same. A mistake of the user clears it."""
    place = _place(folder)
    if _json(place.state / WANTED) != json.loads(json.dumps(wanted)) or not place.results.is_dir():
        _clear(place)
        place.results.mkdir()
        place.state.mkdir()
        replace_text(place.state / WANTED, json.dumps(wanted))
    try:
        yield place
    except UserError:
        _clear(place)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    place.results.rename(folder)
    shutil.rmtree(place.state)


def tidy(folder: Path) -> None:
    """Take away what is left of work on a folder that is complete."""
    _clear(_place(folder))


def _place(folder: Path) -> Workplace:
    return Workplace(*(folder.with_name(f"{folder.name}.{end}") for end in ("tmp", "work")))


def _clear(place: Workplace) -> None:
    for path in (place.state, place.results):
        shutil.rmtree(path, ignore_errors=True)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class GrowingFiles:
    """Files of a folder that are appended to."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """Only so much of each file counts; files without a size begin anew."""
        self.folder = folder
        self.sizes = dict(sizes)
        self._open: dict[str, BinaryIO] = {}

    def start(self, name: str) -> None:
        """There will be such a file, if only an empty one."""
        if name in self._open:
            return
        path = self.folder / name
        size = self.sizes.setdefault(name, 0)
        file = path.open("r+b" if size else "wb")
        file.truncate(size)
        file.seek(size)
        self._open[name] = file

    def write(self, name: str, data: bytes) -> None:
        self.start(name)
        self._open[name].write(data)
        self.sizes[name] += len(data)

    def sync(self) -> dict[str, int]:
        """Force everything to the disk. Returns the sizes."""
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        return dict(self.sizes)

    def close(self) -> None:
        for file in self._open.values():
            file.close()


def whole(folder: Path, sizes: Mapping[str, int]) -> bool:
    """Whether the files have at least what was recorded of them."""
    files = ((folder / name, size) for name, size in sizes.items())
    return all(path.is_file() and path.stat().st_size >= size for path, size in files)
