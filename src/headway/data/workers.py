"""The same work on many blocks, on all cores; what comes out does not depend on their number.

Workers are processes of their own that are fed through pipes: they import nothing of the program
that asks, so that no script must be written with them in mind, and they end when it does.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Block = TypeVar("Block")
Result = TypeVar("Result")

ALONE = 4
"""Blocks that are done without workers: what is small is done before these have begun."""

AHEAD = 2
"""Blocks a worker that may wait, done or not."""


def cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def each(
    work: Callable[[Block], Result], blocks: Iterable[Block], *, threads: bool = False
) -> Iterator[Result]:
    """What the work makes of each block, in their order; it must know nothing of the blocks before.
    `threads`: for work that is mostly done outside of Python, as decoding pictures is, and whose
    results are large; else it must be possible to pickle all of it."""
    rest = iter(blocks)
    yield from map(work, islice(rest, ALONE))
    begun = next(rest, None)
    if begun is None:
        return
    n = cores()
    if n < 2 or not (threads or sys.executable):
        yield from map(work, chain([begun], rest))
        return
    workers = None if threads else Workers(work, n)
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(n, thread_name_prefix="worker")
    try:
        for block in chain([begun], rest):
            waiting.append(pool.submit(workers or work, block))
            if len(waiting) > AHEAD * n:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if workers is not None:
            workers.close()


class Workers(Generic[Block, Result]):
    """Processes that do some work; whoever calls waits for one of them."""

    def __init__(self, work: Callable[[Block], Result], n: int) -> None:
        self.work = work
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._all = [self._start() for _ in range(n)]
        for child in self._all:
            self._free.put(child)

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(filter(None, sys.path))
        # What each has to itself is one core.
        own = {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | own,
        )  # fmt: skip

    def __call__(self, block: Block) -> Result:
        child = self._free.get()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            if not hasattr(child, "told"):
                pickle.dump(self.work, child.stdin, pickle.HIGHEST_PROTOCOL)
                child.told = True  # type: ignore[attr-defined]
            pickle.dump(block, child.stdin, pickle.HIGHEST_PROTOCOL)
            child.stdin.flush()
            answer: tuple[Result, Exception | None] = pickle.load(child.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            answer = self.work(block), None  # it was killed: what it had is done here
        finally:
            self._free.put(child)
        result, error = answer
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        for child in self._all:
            assert child.stdin is not None
            assert child.stdout is not None
            with suppress(OSError):
                child.stdin.close()
            child.stdout.close()
            child.terminate()
            child.wait()


def _serve() -> None:
    """Work off what comes in until nothing comes any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks hears of it, and closes the pipe
    given, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no result
    with suppress(EOFError, BrokenPipeError):
        work = pickle.load(given)
        while True:
            block = pickle.load(given)
            done: tuple[Any, Exception | None]
            try:
                done = work(block), None
            except Exception as error:
                done = None, error
            pickle.dump(done, results, pickle.HIGHEST_PROTOCOL)
            results.flush()


if __name__ == "__main__":
    _serve()
