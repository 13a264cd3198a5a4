"""Decode all media of a dataset once, into files of pixels or samples and of properties of each
item.

Several threads decode. Results are written in the order of the items, so that the files do not
depend on the number of threads. Interrupted work resumes after the last item that is known to be on
disk.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.media.audio import is_silent
from headway.data.media.image import DecodedMedia
from headway.data.media.open_item import (
    SHEETS,
    UNITS,
    ItemFormat,
    MediaRef,
    read_rows,
    rows_of_arrays,
)
from headway.data.media.store import to_int16
from headway.data.workdir import GrowingFiles, WorkDir
from headway.data.workers import map_blocks
from headway.errors import DataError
from headway.progress import SILENT, Progress

if TYPE_CHECKING:
    from headway.data.source import Example

VALUES, FACTS, PROBLEMS = "items.values", "items.facts", "items.problems"
RECORD = "decoded.json"

FACT = np.dtype([("hash", "<u8"), ("height", "<i4"), ("width", "<i4"), ("marks", "u1")])
UNREADABLE, FLAT = 1, 2
"""Bits of the field `marks` of a record. `UNREADABLE`: the item could not be read and is not
stored. `FLAT`: the item has a single colour or is silent."""

TASK_BYTES = 4_000_000
"""Maximum size in bytes of the decoded items in one block of work, to limit memory."""

MOST_ITEMS = 64
"""Maximum number of items in one block of work. A block of large items has fewer, to stay below
`TASK_BYTES`."""

RECORD_SECONDS = 2.0
"""Minimum number of seconds between records of progress. If the process is killed, it loses about
this much work."""

MediaRecords = NDArray[np.void]


class DecodeResult(NamedTuple):
    """Decoded media item, or the reason why it could not be decoded."""

    values: NDArray[Any] | None
    """Pixels or samples; None if the item could not be read."""

    record: tuple[int, int, int, int]
    """Content hash, height, width and marks of the item, as in `FACT`."""

    problem: str = ""
    """Why the item could not be read; empty if it could."""


class MediaDecoder:
    """Decodes the media of all examples into files, and resumes after items that are already
    done."""

    def __init__(
        self, examples: Sequence[Example], names: Sequence[str], form: ItemFormat, folder: Path,
        place: WorkDir | None = None,
    ) -> None:  # fmt: skip
        """Open the files for writing.

        Args:
            examples: Examples that contain the media.
            names: Names of the media columns.
            form: Format that the media are converted to.
            folder: Folder of the files.
            place: Working directory that records progress, so that interrupted work can be
                resumed. None: progress is not recorded.
        """
        self.items = [(one, name) for one in examples for name in names]
        self.form = form
        self.place = place
        done, files = (place and place.recorded(RECORD)) or ({}, {})
        self.done = int(done.get("items", 0))
        self.files = GrowingFiles(folder, files)
        for name in (VALUES, FACTS, PROBLEMS):
            self.files.start(name)

    def run(self, progress: Progress = SILENT) -> None:
        kept = time.monotonic()
        n, step = len(self.items), items_a_block(self.form)
        blocks = (self.items[first : first + step] for first in range(self.done, n, step))
        try:
            check_room(self.files.folder, n - self.done, self.form)
            with progress.stage("reading", n, UNITS[self.form.modality]) as stage:
                for outcomes in map_blocks(self.read, blocks, threads=True):
                    self._write(outcomes)
                    stage.update(self.done)
                    if time.monotonic() - kept > RECORD_SECONDS:
                        self._record()
                        kept = time.monotonic()
            self._record()
        finally:
            self.files.close()
            SHEETS.clear()

    def _record(self) -> None:
        if self.place is not None:
            self.place.record({"items": self.done}, self.files.sync(), RECORD)

    def read(self, items: Sequence[tuple[Example, str]]) -> list[DecodeResult]:
        """Decode items. Items of the same array file are decoded together. If that fails, they are
        decoded one by one to find the invalid one."""
        media = [_medium(*item) for item in items]
        found: dict[int, DecodeResult] = {}
        for path, rows in rows_of_arrays(media, self.form).items():
            with suppress(DataError):
                reading = read_rows(path, list(rows.values()), self.form)
                found.update(zip(rows, self._outcomes(reading), strict=True))
        return [found.get(i) or self._outcome(*item) for i, item in enumerate(items)]

    def _outcome(self, example: Example, name: str) -> DecodeResult:
        try:
            medium = _medium(example, name)
            if medium is None:
                raise DataError(example.problem)
            reading = medium.read(self.form)
        except DataError as error:
            return DecodeResult(None, (0, 0, 0, UNREADABLE), str(error))
        return self._outcomes(reading._replace(values=reading.values[None]))[0]

    def _outcomes(self, reading: DecodedMedia) -> list[DecodeResult]:
        """Return decoded items of equal shape, each with its content hash and marks."""
        values_N, height, width = reading
        if self.form.is_audio:
            flat = [is_silent(values) for values in values_N]
            values_N = to_int16(values_N).astype("<i2")
        else:
            alike = values_N == values_N[:, :1, :, :1, :1]
            flat = alike.all(axis=(1, 2, 3, 4)).tolist()
        found = []
        for values, is_flat in zip(np.ascontiguousarray(values_N), flat, strict=True):
            digest = hashlib.blake2b(values, digest_size=8).digest()
            number = int.from_bytes(digest, "little")
            found.append(DecodeResult(values, (number, height, width, FLAT * is_flat)))
        return found

    def _write(self, outcomes: list[DecodeResult]) -> None:
        read = [one.values.data for one in outcomes if one.values is not None]
        self.files.write(VALUES, b"".join(read))
        for i, one in enumerate(outcomes):
            if one.values is None:
                said = {"row": self.done + i, "why": one.problem}
                self.files.write(PROBLEMS, (json.dumps(said) + "\n").encode())
        facts = np.array([one.record for one in outcomes], FACT)
        self.files.write(FACTS, facts.tobytes())
        self.done += len(outcomes)


def _medium(example: Example, name: str) -> MediaRef | None:
    """Return the media item of an example in a column, or None if the cell names no file."""
    found = example.values.get(name)
    return found if isinstance(found, MediaRef) else None


def items_a_block(form: ItemFormat) -> int:
    if form.size is None:
        return 4
    return max(1, min(MOST_ITEMS, TASK_BYTES // prod((form.frames, form.channels, *form.size))))


def check_room(folder: Path, n: int, form: ItemFormat) -> None:
    """Raise a `DataError` if the disk has too little free space for the decoded items."""
    if form.size is None:
        return
    needed, free = (
        n * prod((form.frames, form.channels, *form.size)),
        shutil.disk_usage(folder).free,
    )
    if needed > free:
        raise DataError(
            f"{n:,} {UNITS[form.modality]} of {form.size[1]} × {form.size[0]} pixels need "
            f"{needed / 1e9:,.1f} GB, but the disk of {folder} has only {free / 1e9:,.1f} GB free."
        )


def read_media_records(folder: Path) -> MediaRecords:
    return np.fromfile(folder / FACTS, FACT)


def readable_records(folder: Path) -> MediaRecords:
    """Return the records of the items that could be read and are stored."""
    records = read_media_records(folder)
    return records[records["marks"] & UNREADABLE == 0]


def read_problems(folder: Path) -> dict[int, str]:
    """Return the reasons why items could not be read, by item number."""
    lines = (folder / PROBLEMS).read_text(encoding="utf-8").split("\n")[:-1]
    return {one["row"]: one["why"] for one in map(json.loads, lines)}
