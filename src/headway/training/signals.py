"""Ask a run to stop: finish the step, save, and exit with a code that says "run me again"."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from headway.errors import Stopped


class StopSignal:
    """While entered, SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 set `asked` and end nothing.

    A later one ends it at once: a process of ours with 128 and its number, and one that calls us
    (`guest`) as if we had never been there, for what else it holds is not ours. Those that follow
    within `pause` seconds count as the same request: a launcher often repeats to its processes what
    the terminal has sent them already. One that is ignored stays so: a shell starts what runs in
    the background deaf to the Ctrl-C that is meant for another command.
    """

    NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self, pause: float = 1.0, *, guest: bool = False) -> None:
        self.asked = False
        self.name = ""
        """Of the signal that asked."""

        self._pause = pause
        self._guest = guest
        self._since = 0.0
        self._raises = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        # Python lets only the main thread set handlers; elsewhere `asked` stays False.
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in self.NUMBERS if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {n: signal.signal(n, self._receive) for n in heard}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # None: set by something other than Python, which cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def check(self) -> None:
        """Raise `Stopped` when a stop was asked for."""
        if self.asked:
            raise Stopped(self.name)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work that has nothing to save, such as reading data: inside, a signal raises
        `Stopped` where it arrives, and one that arrived before raises it on entering."""
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked:
            if now - self._since >= self._pause:
                self._end(number)
            return
        self.asked, self.name, self._since = True, signal.Signals(number).name, now
        if self._raises:
            raise Stopped(self.name)

    def _end(self, number: int) -> None:
        if self._guest:
            self.__exit__(None, None, None)
            signal.raise_signal(number)
        else:
            _leave(128 + number)


def _leave(code: int) -> None:
    """Without any clean-up, which might be what hangs. A bar may have hidden the cursor."""
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h\n")
    os._exit(code)
