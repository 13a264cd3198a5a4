"""Prefetching of batches in a thread. Their order depends only on the cursor, so a resumed run
continues with the same batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.tasks.objective import MicroBatch, Objective
from headway.training.distributed import Distributed

AHEAD = 4
"""Maximum number of steps whose batches are prepared in advance. This is enough to even out slow
batches, and keeps few batches in memory."""


class Cursor(NamedTuple):
    """Position in the data: the epoch of the next step, and the index of that step within the
    epoch."""

    epoch: int = 0
    number: int = 0


@dataclass(frozen=True)
class StepItem:
    batches: list[Any]
    """Micro-batches of this rank, in the order of computation."""

    n_targets: int
    """Number of targets of the whole step, over all ranks."""

    n_tokens: int
    """Number of input tokens of the whole step, over all ranks."""

    parts: list[MicroBatch]
    after: Cursor


ROOM = 1.02
"""Maximum size of a rank's micro-batch, as a multiple of an even share of the step. Micro-batches
consist of whole examples; without tolerance, a small remainder would need another micro-batch."""


def part_tokens(micro_tokens: int, batch_tokens: int, ranks: Distributed) -> int:
    """Return the size of a micro-batch in tokens. It is `micro_tokens`, or less if that is needed
    to give every rank a part of each step."""
    if ranks.world == 1:
        return micro_tokens
    return min(micro_tokens, int(ROOM * batch_tokens / ranks.world) + 1)


def iter_steps(objective: Objective[Any], cursor: Cursor) -> Iterator[tuple[Any, Cursor]]:
    """Yield the examples of each step indefinitely, together with the cursor of the following
    step."""
    epoch, first = cursor
    while True:
        steps = objective.epoch(epoch)
        if not steps:
            raise ValueError(f"epoch {epoch} has no steps")
        for number in range(first, len(steps)):
            last = number + 1 == len(steps)
            yield steps[number], Cursor(epoch + 1, 0) if last else Cursor(epoch, number + 1)
        epoch, first = epoch + 1, 0


def step_item(
    objective: Objective[Any],
    step: Any,
    after: Cursor,
    micro_tokens: int,
    ranks: Distributed,
    fixed: Any,
) -> StepItem:
    parts = objective.parts(step, micro_tokens)
    mine = parts[ranks.rank :: ranks.world]
    return StepItem(
        batches=[objective.batch(part, ranks.device, fixed) for part in mine],
        n_targets=sum(part.n_targets for part in parts),
        n_tokens=sum(part.n_tokens for part in parts),
        parts=mine,
        after=after,
    )


class Prefetcher:
    """Iterator over steps that a thread prepares. Call `close` when done. `waited` is the number of
    seconds that training has waited for data."""

    def __init__(
        self,
        objective: Objective[Any],
        cursor: Cursor,
        micro_tokens: int,
        ranks: Distributed,
        fixed: Any = None,
    ) -> None:
        self.waited = 0.0
        self._made: queue.Queue[StepItem | BaseException] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._arguments = (objective, cursor, micro_tokens, ranks, fixed)
        self._thread = threading.Thread(target=self._work, daemon=True, name="headway-feed")
        self._thread.start()

    def __next__(self) -> StepItem:
        start = time.perf_counter()
        item = self._made.get()
        self.waited += time.perf_counter() - start
        if isinstance(item, BaseException):
            self._made.put(item)  # for later calls: the thread has ended
            raise item
        return item

    def close(self) -> None:
        self._closed.set()
        while self._thread.is_alive():
            try:  # make room for the item that the thread may be adding
                self._made.get(timeout=0.05)
            except queue.Empty:
                continue

    def _work(self) -> None:
        objective, cursor, micro_tokens, ranks, fixed = self._arguments
        try:
            for step, after in iter_steps(objective, cursor):
                item = step_item(objective, step, after, micro_tokens, ranks, fixed)
                self._put(item)
                if self._closed.is_set():
                    return
        except BaseException as error:  # raised again in the training thread
            self._put(error)

    def _put(self, item: StepItem | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._made.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
