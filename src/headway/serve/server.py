"""uvicorn with what it lacks: it closes connections that are slow, drains, and exits with 0."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from headway.errors import FolderError, UserError, visible
from headway.serve.application import service_of
from headway.serve.door import Door
from headway.serve.limits import Limits
from headway.serve.service import Service

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
FILES = 65_536
"""Descriptors that are asked for: each connection has one."""

UNSENT = 16_384
"""Bytes of answers that the kernel takes ahead of what the network does. Without a limit it takes
megabytes, and a reader that is slow looks like one that does not read."""

LEAST_SENT = 512
"""Bytes that a client must take every `send_seconds` while an answer waits for it."""

GRACE = 0.2
"""Seconds after the drain for sending errors to requests that were not answered."""

log = logging.getLogger("headway.serve")


class Patient(H11Protocol):
    """HTTP/1.1 connection that is closed when its client stays idle, or is too slow, for too long.

    Between requests it lives for `keep_alive_seconds`. A header that was begun must be complete
    within `header_seconds`, and an answer must make progress every `send_seconds`.
    """

    limits = Limits()
    door: Door | None = None
    """Who may refuse before a request is read."""

    _timer: asyncio.TimerHandle | None = None
    _deadline = 0.0
    """When an idle connection is closed; `_timer` may fire earlier and is then set again."""

    _in_header = True
    """Part of a header was received, or the connection is new."""

    _sending: asyncio.TimerHandle | None = None
    _unsent = 0
    """Bytes that waited for the client when `_sending` was set."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Any byte that waits is reported by `pause_writing`, not only more than 64 KiB.
        transport.set_write_buffer_limits(high=0)
        self._close_after(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._cancel_sending()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.door is not None and self._is_between:
            said = self.door.early(data)
            if said is not None:
                self._in_header = False
                self._close_after(self.limits.keep_alive_seconds)
                self.transport.write(said)
                return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's own timer, which also outlives a header
        if not self.transport.is_closing():
            self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._sending is None:
            self._expect_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_sending()

    def _expect_progress(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._sending = self.loop.call_later(self.limits.send_seconds, self._check_progress)

    def _check_progress(self) -> None:
        self._sending = None
        if self.transport.get_write_buffer_size() > self._unsent - LEAST_SENT:
            self.transport.abort()
        else:
            self._expect_progress()

    def _cancel_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _watch(self) -> None:
        """Set the limit of an idle connection; requests have limits of their own."""
        if not self._is_idle:
            self._in_header = False
            self._cancel_timer()
        elif self._is_between:
            self._in_header = False
            self._close_after(self.limits.keep_alive_seconds)
        elif not self._in_header:
            self._in_header = True
            self._close_after(self.limits.header_seconds)

    def _close_after(self, seconds: float) -> None:
        """Close the connection then if it is still idle. A timer that fires earlier is kept: to set
        one for each request that is refused would take longer than to refuse it."""
        self._deadline = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._cancel_timer()
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._check_idle)

    def _check_idle(self) -> None:
        self._timer = None
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._check_idle)
        elif self.transport.is_closing() or not self._is_idle:
            return
        elif self._in_header:
            self.transport.abort()
        else:
            self.timeout_keep_alive_handler()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _is_between(self) -> bool:
        """There is no request here, and nothing of one."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        return theirs is ours is h11.IDLE and not self.conn.trailing_data[0]

    @property
    def _is_idle(self) -> bool:
        """There is no request yet, or the rest of one that was refused already."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        return theirs is h11.IDLE or (
            theirs is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE)
        )


class Server(uvicorn.Server):
    """Drains on the first signal, ends at once on the second."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service, self.signals = service, 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.drained: asyncio.Task[None] | None = None
        self._close_at: float | None = None
        """When connections are closed, sent or not; by the clock of the event loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = (signal.SIGTERM, signal.SIGINT)
        before = {sig: signal.signal(sig, self.handle_exit) for sig in wanted}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals += 1
        if self.signals > 1:
            os._exit(128 + sig)
        self.service.draining = True
        assert self.loop is not None, "signals are heard while it serves"
        self.loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self.drained = asyncio.ensure_future(self.drain())

    async def drain(self) -> None:
        """Accepted requests finish, or are told that they do not; then connections are closed."""
        self.service.draining = True
        log.info("draining: %d requests are being answered", self.service.in_flight)
        until = asyncio.get_running_loop().time() + self.service.limits.drain
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.service.in_flight or any(
                    worker.accepted for worker in self.service.workers.values()
                ):
                    await asyncio.sleep(0.02)
        self.service.cut_off()
        self._close_at = until + GRACE
        self.should_exit = True

    async def _wait_tasks_to_complete(self) -> None:
        """Wait until responses are sent, at most until `_close_at`."""
        close_at = self._close_at or asyncio.get_running_loop().time() + GRACE
        async with asyncio.timeout_at(close_at):
            await super()._wait_tasks_to_complete()


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens, or the reason in words."""
    if not 0 <= port <= 65535:
        raise UserError(f"port {port} does not exist; they go from 0 to 65535.")
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Named as TCP: only of such sockets does asyncio switch Nagle's waiting off, and an answer
        # in two pieces would take 40 ms longer.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # inherited by connections
            with contextlib.suppress(OSError):
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        found.bind(address)
        found.listen(2048)
        found.setblocking(False)
    except OSError as error:
        raise UserError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}. Give another with "
            "--port, or --port 0 for any that is free."
        ) from error
    return found


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name, and of names one alone is this machine everywhere
        return host == "localhost"


def own_names(host: str) -> tuple[str, ...]:
    """What requests may be addressed to, where only this machine is served."""
    return (*LOOPBACK, f"[{host}]" if ":" in host else host)


def url_of(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(
    app: Starlette,
    listening: socket.socket,
    *,
    started: Callable[[], None] = lambda: None,
    ready: Callable[[], None] = lambda: None,
) -> Server:
    """Until it is told to stop. `started` is called when connections are answered, `ready` when
    the models are read. A model that cannot be read ends it."""
    server = _server(app)
    asyncio.run(_serve(server, listening, started, ready))
    return server


def _server(app: Starlette) -> Server:
    service = service_of(app)
    _more_files()
    protocol = type("PatientHere", (Patient,), {"limits": service.limits, "door": app.state.door})
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, http=protocol, ws="none",
        lifespan="on", limit_concurrency=service.limits.connections,
        h11_max_incomplete_event_size=65_536,
    )  # fmt: skip
    # Its tracebacks may hold what a user said; errors are logged by the application, without.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return Server(config, service)


async def _serve(
    server: Server,
    listening: socket.socket,
    started: Callable[[], None],
    ready: Callable[[], None],
) -> None:
    server.loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(server.serve([listening]))
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    if not task.done():
        started()
    workers, trouble = server.service.workers.values(), ""
    while not task.done() and not trouble and not all(one.is_open.is_set() for one in workers):
        trouble = next((one.trouble for one in workers if one.trouble), "")
        await asyncio.sleep(0.01)
    if trouble:
        server.should_exit = True
    elif not task.done():
        ready()
    await task
    if trouble:
        raise FolderError(trouble)


@contextlib.contextmanager
def running(app: Starlette, host: str = LOOPBACK[0], port: int = 0) -> Iterator[str]:
    """The application in a thread of this process; where it answers. For tests and notebooks."""
    listening = bind(host, port)
    server = _server(app)
    thread = threading.Thread(target=asyncio.run, args=(server.serve([listening]),))
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        for worker in service_of(app).workers.values():
            worker.is_open.wait(60)
        yield url_of(host, listening)
    finally:
        server.should_exit = True
        thread.join()


def _more_files() -> None:
    """As many connections as the system lets a process have."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Visible(logging.Formatter):
    """Log formatter that escapes control characters, which names of folders may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def log_to_stderr(debug: bool = False) -> None:
    """A line a request, without any text of users."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible("%(asctime)s %(message)s"))
    logger: Any = logging.getLogger("headway.serve")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False
