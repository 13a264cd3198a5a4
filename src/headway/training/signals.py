"""Stop signals: finish the step, save, and exit with the code that means "run the command
again"."""

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
    """Context manager in which SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 set `requested` instead of
    ending the run.

    A second signal ends the process at once. Our own process then exits with the code 128 plus the
    number of the signal; a process of another program (`guest`) runs its own signal handler.
    Signals within `pause` seconds count as one request, because a launcher often repeats a signal
    that the terminal has already sent. An ignored signal stays ignored, because a shell starts
    background processes with SIGINT ignored: Ctrl-C is meant for another command.
    """

    NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self, pause: float = 1.0, *, guest: bool = False) -> None:
        self.requested = False
        self.name = ""
        """Name of the signal that requested the stop; empty if there was none."""

        self._pause = pause
        self._guest = guest
        self._since = 0.0
        self._raises = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        # Python lets only the main thread set signal handlers. In other threads, `requested` stays
        # False.
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
            # None means that the handler was not set by Python, so it cannot be restored from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def check(self) -> None:
        """Raise `Stopped` if a stop was requested."""
        if self.requested:
            raise Stopped(self.name)

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Context for work without results to save, such as reading data. A signal raises `Stopped`
        immediately, and an earlier signal raises it on entry."""
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested:
            if now - self._since >= self._pause:
                self._end(number)
            return
        self.requested, self.name, self._since = True, signal.Signals(number).name, now
        if self._raises:
            raise Stopped(self.name)

    def _end(self, number: int) -> None:
        if self._guest:
            self.__exit__(None, None, None)
            signal.raise_signal(number)
        else:
            _leave(128 + number)


def _leave(code: int) -> None:
    """Exit without clean-up, which might hang. Before that, show the cursor, which a progress bar
    may have hidden."""
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h\n")
    os._exit(code)
