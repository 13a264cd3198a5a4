"""Render the chat template of a run in a child process that can be killed.

A template comes with the weights and is a program, so it can loop for days or fill the memory. The
child process has its own limits (`serve.render_template`). If it exceeds the time limit it is
killed, and the next request starts another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headway.errors import FolderError
from headway.serve import render_template

MOST_BYTES = 200_000
"""Maximum number of characters in a chat template: ten times the size of published ones."""

RENDER_SECONDS = 10.0
"""Maximum time of a rendering in seconds, after which the child process is killed. The kernel
usually ends it earlier, after one or two seconds of CPU time."""

START_SECONDS = 30.0
"""Maximum time in seconds for the child process to start, even on a busy machine."""

PIECE = 65_536
"""Number of bytes written at a time: the capacity of a pipe on Linux."""


class TemplateError(Exception):
    """Raised when the template reports an error for these messages, or exceeds a limit."""


class ChatTemplate:
    """Chat template that renders one prompt at a time, in order. Callers that must not block run
    `render` in its executor `thread`."""

    def __init__(self, path: Path, most: int) -> None:
        """Read the template. `most`: maximum number of characters in a prompt."""
        self.path, self.most = path, most
        self.thread = ThreadPoolExecutor(1, "headway-template")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        """Lock that is held while a child process is started, so that `close` can end that
        process."""

        self.is_closed = False

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the rendered prompt. This blocks for at most the time limits of the child
        process."""
        text = self.path.read_text(encoding="utf-8")
        if len(text) > MOST_BYTES:
            raise FolderError(
                f"the chat template {self.path} has {len(text):,} characters; the limit is "
                f"{MOST_BYTES:,}. Shorten the template."
            )
        asked = {"template": text, "values": dict(values), "most": self.most}
        try:
            process = self._started()
            until = time.monotonic() + RENDER_SECONDS
            _write(process, json.dumps(asked).encode() + b"\n", until)
            found = json.loads(_line(process, until))
        except (OSError, ValueError, TimeoutError) as error:
            self._end()
            raise TemplateError("rendering took too much time or memory") from error
        if "error" in found:
            raise TemplateError(str(found["error"]))
        return str(found["text"])

    def close(self) -> None:
        """Kill the child process, even while it renders. Later calls of `render` fail."""
        with self._lock:
            self.is_closed = True
            if self._process is not None:
                self._process.kill()
        # Killing the process makes a rendering in progress fail at once. The pipes are closed after
        # its thread has ended.
        self.thread.shutdown(cancel_futures=True)
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.is_closed:
                raise OSError("the server is shutting down")
            known = self._process
            if known is not None and known.poll() is None:
                return known
            self._end()
            # The child process is isolated: neither the environment nor the working directory adds
            # modules.
            self._process = made = subprocess.Popen(
                [sys.executable, "-I", render_template.__file__], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, env={},
            )  # fmt: skip
            assert made.stdin is not None
            os.set_blocking(made.stdin.fileno(), False)
        _line(made, time.monotonic() + START_SECONDS)
        return made

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _write(process: subprocess.Popen[bytes], data: bytes, until: float) -> None:
    assert process.stdin is not None
    place, left = process.stdin.fileno(), memoryview(data)
    while left:
        _wait_for(place, selectors.EVENT_WRITE, until)
        left = left[os.write(place, left[:PIECE]) :]


def _line(process: subprocess.Popen[bytes], until: float) -> bytes:
    assert process.stdout is not None
    place, parts = process.stdout.fileno(), [b""]
    while not parts[-1].endswith(b"\n"):
        _wait_for(place, selectors.EVENT_READ, until)
        parts.append(os.read(place, PIECE))
        if not parts[-1]:
            raise OSError("the process that renders chat templates exited unexpectedly")
    return b"".join(parts)


def _wait_for(place: int, event: int, until: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(place, event)
        if not selector.select(max(0.0, until - time.monotonic())):
            raise TimeoutError
