"""Batches made ahead by a thread: in the right order, with its errors, and never hanging."""

from __future__ import annotations

import threading
import time
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from headway.training.distributed import Distributed
from headway.training.feed import AHEAD, Cursor, Prefetcher, iter_steps

from .toy import PER_EPOCH, PER_STEP, N, ToyTask


def rows_of(feed: Prefetcher, n: int) -> list[list[int]]:
    return [[row for batch in next(feed).batches for row in batch.tolist()] for _ in range(n)]


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "headway-feed"]


@pytest.mark.parametrize("cursor", [Cursor(), Cursor(0, 3), Cursor(2, PER_EPOCH - 1), Cursor(7, 0)])
def test_the_order_is_that_of_the_epochs_from_the_cursor_on(cursor: Cursor) -> None:
    task = ToyTask()
    whole = [step for epoch in range(12) for step in task.epoch(epoch)]
    first = cursor.epoch * PER_EPOCH + cursor.number
    assert [step for step, _ in islice(iter_steps(task, cursor), 14)] == whole[first : first + 14]
    feed = Prefetcher(task, cursor, 2, Distributed())
    assert rows_of(feed, 14) == whole[first : first + 14]
    feed.close()


def test_where_a_step_ends_the_next_begins() -> None:
    task = ToyTask()
    for start in (Cursor(), Cursor(1, 2), Cursor(0, PER_EPOCH - 1)):
        steps = list(islice(iter_steps(task, start), 12))
        for (_, after), (following, _) in pairwise(steps):
            assert next(iter_steps(task, after))[0] == following
    assert [after for _, after in islice(iter_steps(task, Cursor(0, 3)), 3)] == [
        (0, 4), (1, 0), (1, 1),
    ]  # fmt: skip


def test_an_epoch_without_steps_is_an_error_and_not_an_endless_search() -> None:
    task = ToyTask()
    task.epoch = lambda number: []  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"\bepoch\b"):
        next(iter_steps(task, Cursor()))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_share_the_parts_of_a_step_and_agree_on_its_targets(world: int) -> None:
    feeds = [
        Prefetcher(ToyTask(), Cursor(), 2, Distributed(rank=rank, world=world))
        for rank in range(world)
    ]
    for step in islice(ToyTask().epoch(0), PER_EPOCH):
        items = [next(feed) for feed in feeds]
        parts = [part.rows for item in items for part in item.parts]
        assert sorted(row for rows in parts for row in rows) == sorted(step)
        assert {item.n_targets for item in items} == {len(step)}
        assert all(len(item.batches) == len(item.parts) for item in items)
    for feed in feeds:
        feed.close()


def test_an_error_in_the_thread_is_raised_with_its_step() -> None:
    task, made = ToyTask(), 0

    def on_batch(part: Any) -> None:
        nonlocal made
        made += 1
        if made == 3:
            raise ZeroDivisionError("thread")

    task.on_batch = on_batch
    feed = Prefetcher(task, Cursor(), PER_STEP, Distributed())
    assert len(rows_of(feed, 2)) == 2
    for _ in range(2):  # however often one asks
        with pytest.raises(ZeroDivisionError, match="thread"):
            next(feed)
    feed.close()
    assert threads() == []


def test_it_works_ahead_but_not_without_end() -> None:
    task = ToyTask()
    feed = Prefetcher(task, Cursor(), PER_STEP, Distributed())
    deadline = time.monotonic() + 120
    while len(task.cut_to) < AHEAD + 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(task.cut_to) == AHEAD + 1  # one more in its hands
    feed.close()


@pytest.mark.parametrize("taken", [0, 1, AHEAD + 3])
def test_closing_ends_the_thread_at_once(taken: int) -> None:
    feed = Prefetcher(ToyTask(), Cursor(), PER_STEP, Distributed())
    rows_of(feed, taken)
    start = time.monotonic()
    feed.close()
    feed.close()
    assert time.monotonic() - start < 60  # other work may hold all cores
    assert threads() == []


def test_time_spent_waiting_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.5, 20.0, 20.25])
    clock = SimpleNamespace(perf_counter=lambda: next(moments))
    monkeypatch.setattr("headway.training.feed.time", clock)
    feed = Prefetcher(ToyTask(), Cursor(), PER_STEP, Distributed())
    rows_of(feed, 2)
    assert feed.waited == 2.75
    feed.close()
    assert len(ToyTask().epoch(0)[-1]) == N % PER_STEP
