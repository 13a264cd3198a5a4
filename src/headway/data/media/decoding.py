"""All items of some sources, read once, in files: what they hold, and a few facts about each.

Several threads read at once, and the results are written in the order of the items, so that the
files are the same however many there are. Work that was interrupted goes on behind the last item
that is known to be on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.media.audio import is_silent
from headway.data.media.items import MediaItems
from headway.data.media.open_item import SHEETS, UNITS, Form
from headway.data.media.store import to_int16
from headway.data.workplace import GrowingFiles
from headway.errors import DataError
from headway.progress import Progress

VALUES, FACTS, PROBLEMS = "items.values", "items.facts", "problems.jsonl"

FACT = np.dtype([("hash", "<u8"), ("height", "<i4"), ("width", "<i4"), ("marks", "u1")])
UNREADABLE, FLAT = 1, 2
"""Marks: it is not stored; it is of one colour, or silent."""

THREADS = min(4, os.cpu_count() or 1)
"""More would hardly be faster, and each may hold a large picture."""

AHEAD = 3
"""Tasks a thread, that may wait to be written."""

TASK_BYTES = 4_000_000
MOST_ITEMS = 64
"""Of one task of a thread; no more than `TASK_BYTES`, if they are large."""

RECORD_SECONDS = 2.0

Facts = NDArray[np.void]


class Outcome(NamedTuple):
    values: NDArray[Any] | None
    """None if it could not be read."""

    fact: tuple[int, int, int, int]
    problem: str = ""


class Decoder:
    """Writes the items behind those that are done."""

    def __init__(
        self, items: MediaItems, form: Form, folder: Path, done: int = 0,
        files: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`done` and `files` are what an earlier attempt recorded."""
        self.items = items
        self.form = form
        self.done = done
        self.files = GrowingFiles(folder, files or {})
        for name in (VALUES, FACTS, PROBLEMS):
            self.files.start(name)

    def run(
        self, record: Callable[[Mapping[str, Any], Mapping[str, Any]], None], progress: Progress
    ) -> None:
        """`record` is told now and then what is safe on the disk."""
        kept = time.monotonic()
        n = len(self.items)
        try:
            check_room(self.files.folder, n - self.done, self.form)
            with progress.stage("reading", n, UNITS[self.form.what]) as stage:
                for outcomes in self._outcomes():
                    self._write(outcomes)
                    stage.update(self.done)
                    if time.monotonic() - kept > RECORD_SECONDS:
                        record({"items": self.done}, self.files.sync())
                        kept = time.monotonic()
            record({"items": self.done}, self.files.sync())
        finally:
            self.files.close()
            SHEETS.clear()

    def _outcomes(self) -> Iterator[list[Outcome]]:
        """Of a few items each, in order; never many of them are held."""
        step = items_a_task(self.form)
        waiting: deque[Future[list[Outcome]]] = deque()
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="media")
        try:
            for first in range(self.done, len(self.items), step):
                rows = range(first, min(first + step, len(self.items)))
                waiting.append(pool.submit(self._read, rows))
                if len(waiting) >= AHEAD * THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, rows: range) -> list[Outcome]:
        return [self._outcome(row) for row in rows]

    def _outcome(self, row: int) -> Outcome:
        try:
            values, height, width = self.items[row].read()
        except DataError as error:
            return Outcome(None, (0, 0, 0, UNREADABLE), str(error))
        if self.form.what == "sounds":
            flat = is_silent(values)
            values = to_int16(values).astype("<i2")
        else:
            flat = bool((values == values[:1, :, :1, :1]).all())
        digest = hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        return Outcome(values, (number, height, width, FLAT * flat))

    def _write(self, outcomes: list[Outcome]) -> None:
        for i, one in enumerate(outcomes):
            if one.values is not None:
                self.files.write(VALUES, one.values.tobytes())
            else:
                place = self.items[self.done + i].place
                said = {"row": self.done + i, "place": place, "why": one.problem}
                self.files.write(PROBLEMS, (json.dumps(said) + "\n").encode())
        facts = np.array([one.fact for one in outcomes], FACT)
        self.files.write(FACTS, facts.tobytes())
        self.done += len(outcomes)


def items_a_task(form: Form) -> int:
    if form.size is None:
        return 4
    return max(1, min(MOST_ITEMS, TASK_BYTES // prod((form.frames, form.channels, *form.size))))


def check_room(folder: Path, n: int, form: Form) -> None:
    """Said now, not after an hour."""
    if form.size is None:
        return
    needed, free = (
        n * prod((form.frames, form.channels, *form.size)),
        shutil.disk_usage(folder).free,
    )
    if needed > free:
        raise DataError(
            f"{n:,} {UNITS[form.what]} of {form.size[1]} × {form.size[0]} pixels take "
            f"{needed / 1e9:,.1f} GB on the disk of {folder}, where {free / 1e9:,.1f} GB are free."
        )


def read_facts(folder: Path) -> Facts:
    return np.fromfile(folder / FACTS, FACT)


def read_problems(folder: Path) -> dict[int, str]:
    """Why items could not be read, by their numbers."""
    lines = (folder / PROBLEMS).read_text(encoding="utf-8").split("\n")[:-1]
    # older versions wrote `error`, and what they prepared is used
    return {one["row"]: one.get("why") or one["error"] for one in map(json.loads, lines)}
