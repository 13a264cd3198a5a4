"""Group input lines into windows for batching. A window is long enough to sort its lines by length,
and short enough for quick answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from headway.settings.listed import ensure_list

FIRST_WINDOW, LAST_WINDOW = 128, 2048
"""First and largest window size, in lines. Window sizes double, so that the first results come
early."""

GRACE = 0.02
"""Maximum wait in seconds for one more line when other lines are already waiting."""

T = TypeVar("T")


def windows(
    lines: Iterable[T], first: int = FIRST_WINDOW, most: int = LAST_WINDOW, *, live: bool = False
) -> Iterator[list[T]]:
    """Yield windows of `first` lines, doubling up to `most`. If reading fails, the error is raised
    after the lines read before it.

    `live`: yield a window as soon as no more input is available, because a person may be waiting.
    """
    if live:
        yield from _live_windows(lines)
        return
    size, window, source = first, [], iter(ensure_list(lines))
    failure: Exception | None = None
    while True:
        try:
            window.append(next(source))
        except StopIteration:
            break
        except Exception as error:
            failure = error
            break
        if len(window) == size:
            yield window
            size, window = min(2 * size, most), []
    if window:
        yield window
    if failure is not None:
        raise failure


def _live_windows(lines: Iterable[T]) -> Iterator[list[T]]:
    """Yield windows of lines that a background thread reads. The thread is abandoned if the
    consumer stops early."""
    waiting: queue.Queue[list[T] | BaseException | None] = queue.Queue(2 * LAST_WINDOW)

    def read() -> None:
        try:
            for line in ensure_list(lines):
                waiting.put([line])
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    size, ended = FIRST_WINDOW, False
    while not ended:
        window: list[T] = []
        failure: BaseException | None = None
        while len(window) < size and not ended:
            try:
                item = waiting.get(timeout=GRACE) if window else waiting.get()
            except queue.Empty:
                break
            if isinstance(item, list):
                window += item
            else:
                ended, failure = True, item
        if window:
            yield window
            size = min(2 * size, LAST_WINDOW)
        if failure is not None:
            raise failure


def prefetch_one(items: Iterable[T]) -> Iterator[T]:
    """Yield each item after the next one was fetched. If fetching fails, the error is raised after
    the items fetched before it."""
    held: list[T] = []
    source, failure = iter(items), None
    while True:
        try:
            item = next(source)
        except StopIteration:
            break
        except Exception as error:
            failure = error
            break
        yield from held
        held = [item]
    yield from held
    if failure is not None:
        raise failure


def batches(lengths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Group indices of items by similar length, longest first.

    The number of items in a group times the length of its longest item is at most `room`. An item
    longer than `room` is a group of its own.
    """
    group: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if group and lengths[group[0]] * (len(group) + 1) > room:
            yield group
            group = []
        group.append(place)
    if group:
        yield group
