"""Long work on files that resumes where it was interrupted.

Results grow in one folder. A second folder next to it records what is being made, which stages are
finished, and how much of each growing file is valid, all with checksums. On resuming, everything
written after the last record is removed, and damaged files are made again. The result is the same
as without an interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headway.errors import FolderError, UserError
from headway.storage import check_identity, identity, read_json, replace_text, seal_json

WANTED, RECORD = "wanted.json", "record.json"
BLOCK = 1 << 20
"""Number of bytes read at a time."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class WorkDir:
    """Working directory of a task that can be interrupted and resumed."""

    results: Path
    """Folder in which the results grow."""

    state: Path
    """Folder that records the progress."""

    wanted: Callable[[], Mapping[str, Any]]
    """Function that returns a description of what is being made. It is called only if there is an
    earlier attempt to compare with, or something to record."""

    note: Note = lambda text: None
    """Function that receives messages about damaged files."""

    def stage(self, name: str, make: Callable[[], Any], *files: Path) -> Any:
        """Return the result of `make`, which must be a JSON value. If the stage was finished before
        an interruption, return its stored result instead.

        `files`: files that `make` writes. If any of them has changed since, `make` runs again.
        """
        path = self.state / f"{name}.json"
        known = self._read(path)
        if known is not None and not self._is_intact(known["files"], files):
            known = None
        if known is None:
            result = make()
            made = {str(i): identity(file) for i, file in enumerate(files)}
            known = json.loads(json.dumps({"result": result, "files": made}))
            self._write(path, known)
        return known["result"]

    def record(self, done: Mapping[str, Any], files: Mapping[str, Any], name: str = RECORD) -> None:
        """Record the progress of some work. `files`: sizes and checksums of the files at that
        point, as returned by `GrowingFiles.sync`."""
        self._write(self.state / name, {"done": done, "files": files})

    def recorded(self, name: str = RECORD) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the last record (`done` and `files`). None if there is none, or if the recorded
        part of a file has changed."""
        known = self._read(self.state / name)
        if known is None:
            return None
        for name, promised in known["files"].items():
            path = self.results / name
            if not path.is_file() or _prefix_digest(path, promised["size"]) != promised["sha256"]:
                self.note(f"{path} is damaged and will be created again.")
                return None
        return known["done"], known["files"]

    def _is_intact(self, promised: Mapping[str, Any], files: Sequence[Path]) -> bool:
        try:
            for i, file in enumerate(files):
                check_identity(file, promised[str(i)])
        except FolderError as error:
            self.note(f"{error} The file will be created again.")
            return False
        return True

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            known = read_json(path)
            return known if isinstance(known, dict) and "files" in known else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, FolderError):
            self.note(f"{path} is damaged. The work that it records will be repeated.")
            return None

    def _write(self, path: Path, values: Mapping[str, Any]) -> None:
        if not (self.state / WANTED).exists():
            replace_text(self.state / WANTED, seal_json(json.dumps(self._asked())))
        replace_text(path, seal_json(json.dumps(values)))

    def _asked(self) -> Any:
        return json.loads(json.dumps({"wanted": self.wanted(), "files": {}}))


@contextmanager
def open_workdir(
    folder: Path, wanted: Callable[[], Mapping[str, Any]], note: Note = lambda text: None
) -> Iterator[WorkDir]:
    """Yield a working directory for building a folder. When the work is complete, the results are
    renamed to that folder.

    The results of an interrupted attempt are reused if its description (`wanted`) was the same. A
    `UserError` deletes the working directory.

    Args:
        folder: Folder to build.
        wanted: Function that returns a description of what is being made. It is called when the
            first stage is recorded, or at once if there was an earlier attempt.
        note: Function that receives messages about damaged files.
    """
    place = _place(folder, wanted, note)
    before = place._read(place.state / WANTED)
    if before is None or before != place._asked() or not place.results.is_dir():
        _clear(place)
        place.results.mkdir()
        place.state.mkdir()
    try:
        yield place
    except UserError:
        _clear(place)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    place.results.rename(folder)
    shutil.rmtree(place.state)


def remove_leftovers(folder: Path) -> None:
    """Remove working directories that remain beside a complete folder."""
    _clear(_place(folder, dict))


def _place(
    folder: Path, wanted: Callable[[], Mapping[str, Any]], note: Note = lambda text: None
) -> WorkDir:
    results, state = (folder.with_name(f"{folder.name}.{end}") for end in ("tmp", "work"))
    return WorkDir(results, state, wanted, note)


def _clear(place: WorkDir) -> None:
    for path in (place.state, place.results):
        shutil.rmtree(path, ignore_errors=True)


def _prefix_digest(path: Path, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file, or of the whole file if it is
    shorter."""
    return _digest(path, size).hexdigest()


def _digest(path: Path, size: int) -> hashlib._Hash:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, BLOCK))):
            digest.update(block)
            size -= len(block)
    return digest


class GrowingFiles:
    """Files in a folder that only grow, by appending data."""

    def __init__(self, folder: Path, known: Mapping[str, Mapping[str, Any]]) -> None:
        """Prepare files for appending. `known`: result of an earlier `sync`, which gives the size
        of each file to keep. Other files start empty."""
        self.folder = folder
        self._sizes = {name: int(facts["size"]) for name, facts in known.items()}
        self._digests: dict[str, hashlib._Hash] = {}
        self._open: dict[str, BinaryIO] = {}

    def start(self, name: str) -> None:
        """Open a file for appending, so that it exists even if nothing is written to it."""
        if name in self._open:
            return
        path = self.folder / name
        size = self._sizes.setdefault(name, 0)
        self._digests[name] = _digest(path, size) if size else hashlib.sha256()
        file = path.open("r+b" if size else "wb")
        file.truncate(size)
        file.seek(size)
        self._open[name] = file

    def write(self, name: str, data: bytes) -> None:
        self.start(name)
        self._open[name].write(data)
        self._digests[name].update(data)
        self._sizes[name] += len(data)

    def sync(self) -> dict[str, dict[str, Any]]:
        """Flush all files to disk, and return their sizes and checksums."""
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        return {
            name: {"size": self._sizes[name], "sha256": digest.hexdigest()}
            for name, digest in self._digests.items()
        }

    def close(self) -> None:
        for file in self._open.values():
            file.close()
