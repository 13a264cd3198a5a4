"""Apply a function to many blocks on all cores. The result does not depend on the number of cores.

Workers are separate processes that get their work through pipes. They do not import the calling
script, so it needs no `if __name__ == "__main__"`. They end when the main process ends.
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
"""Number of blocks that are processed before any worker is started. Small inputs have no more
blocks."""

AHEAD = 2
"""Number of blocks per worker that are submitted in advance. No worker then waits for input, and
memory stays limited."""


def cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def map_blocks(
    work: Callable[[Block], Result], blocks: Iterable[Block], *, threads: bool = False
) -> Iterator[Result]:
    """Yield the result of `work` for each block, in order. The result must not depend on other
    blocks.

    `threads`: use threads instead of processes. They suit work that mostly runs outside Python and
    has large results, such as decoding images. For processes, `work`, blocks and results must be
    picklable.
    """
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
    """Pool of worker processes that apply the same function. A call waits for a free worker."""

    def __init__(self, work: Callable[[Block], Result], n: int) -> None:
        self.work = work
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._all = [self._start() for _ in range(n)]
        for child in self._all:
            self._free.put(child)

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(filter(None, sys.path))
        # Each worker has one core to itself.
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
            answer = self.work(block), None  # the worker was killed: do its block here
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
    """Process blocks from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and closes the pipe
    given, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed output must not mix with results
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
