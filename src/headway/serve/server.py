"""Extensions of uvicorn: close slow connections, finish requests on SIGTERM, and exit with status
0."""

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
from headway.serve.access import AccessControl
from headway.serve.application import service_of
from headway.serve.limits import Limits
from headway.serve.service import Service

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
FILES = 65_536
"""Number of file descriptors to request from the system. Each connection needs one."""

UNSENT = 16_384
"""Maximum number of bytes of a response that the kernel buffers before the network takes them.

By default it buffers megabytes, so that a slow reader looks like a client that does not read at
all.
"""

LEAST_SENT = 512
"""Minimum number of bytes that a client must read in every interval of `send_seconds` while part of
a response is waiting."""

GRACE = 0.2
"""Time in seconds after the drain deadline for sending error responses to unanswered requests."""

log = logging.getLogger("headway.serve")


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 connection that is closed if its client is idle or too slow.

    Between requests it stays open for `keep_alive_seconds`. A header must be complete within
    `header_seconds`, and a response must make progress in every `send_seconds`.
    """

    limits = Limits()
    access: AccessControl | None = None
    """Object that rejects requests under overload before they are parsed; None: requests are never
    rejected early."""

    _timer: asyncio.TimerHandle | None = None
    _deadline = 0.0
    """Event-loop time at which an idle connection is closed. If `_timer` fires earlier, it is set
    again."""

    _in_header = True
    """Whether part of a header was received, or the connection is new."""

    _progress_timer: asyncio.TimerHandle | None = None
    _unsent = 0
    """Number of bytes of the response that were unsent when `_progress_timer` was set."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # With this limit, `pause_writing` is called for any unsent byte, not only for more than 64
        # KiB.
        transport.set_write_buffer_limits(high=0)
        self._close_after(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._cancel_sending()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.access is not None and self._is_between_requests:
            said = self.access.reject_early(data)
            if said is not None:
                self._in_header = False
                self._close_after(self.limits.keep_alive_seconds)
                self.transport.write(said)
                return
        super().data_received(data)
        self._update_idle_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's own timer, which also outlives a header
        if not self.transport.is_closing():
            self._update_idle_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._progress_timer is None:
            self._expect_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_sending()

    def _expect_progress(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._progress_timer = self.loop.call_later(self.limits.send_seconds, self._check_progress)

    def _check_progress(self) -> None:
        self._progress_timer = None
        if self.transport.get_write_buffer_size() > self._unsent - LEAST_SENT:
            self.transport.abort()
        else:
            self._expect_progress()

    def _cancel_sending(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    def _update_idle_timer(self) -> None:
        """Set the timeout of an idle connection. Requests in progress have their own limits."""
        if not self._is_idle:
            self._in_header = False
            self._cancel_timer()
        elif self._is_between_requests:
            self._in_header = False
            self._close_after(self.limits.keep_alive_seconds)
        elif not self._in_header:
            self._in_header = True
            self._close_after(self.limits.header_seconds)

    def _close_after(self, seconds: float) -> None:
        """Close the connection after this time if it is still idle.

        A timer that fires earlier is kept and set again later, because setting a timer for each
        rejected request would take longer than the rejection.
        """
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
    def _is_between_requests(self) -> bool:
        """Whether no part of the next request has been received."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        return theirs is ours is h11.IDLE and not self.conn.trailing_data[0]

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress, or only the unread rest of a rejected request."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        return theirs is h11.IDLE or (
            theirs is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE)
        )


class Server(uvicorn.Server):
    """uvicorn server that finishes its requests on the first signal (drains), and exits immediately
    on the second."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service, self.signals = service, 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.drained: asyncio.Task[None] | None = None
        self._close_at: float | None = None
        """Event-loop time at which connections are closed, even if their responses are not
        complete; None before shutdown."""

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
        assert self.loop is not None, "signals are handled only while the server runs"
        self.loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self.drained = asyncio.ensure_future(self.drain())

    async def drain(self) -> None:
        """Let accepted requests finish until the drain deadline, fail the remaining ones, then
        close connections."""
        self.service.draining = True
        log.info("shutting down: waiting for %d requests in progress", self.service.in_flight)
        until = asyncio.get_running_loop().time() + self.service.limits.drain
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.service.in_flight or any(
                    worker.accepted for worker in self.service.workers.values()
                ):
                    await asyncio.sleep(0.02)
        self.service.abort_requests()
        self._close_at = until + GRACE
        self.should_exit = True

    async def _wait_tasks_to_complete(self) -> None:
        """Wait until all responses are sent, at most until `_close_at`."""
        close_at = self._close_at or asyncio.get_running_loop().time() + GRACE
        async with asyncio.timeout_at(close_at):
            await super()._wait_tasks_to_complete()


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. If it cannot be opened, the error names the host, the port and the
    reason."""
    if not 0 <= port <= 65535:
        raise UserError(f"port {port} is out of range. Choose a port from 0 to 65535.")
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # IPPROTO_TCP is explicit, because asyncio disables Nagle's algorithm only for sockets with
        # it. Otherwise a response in two pieces would take 40 ms longer.
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
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another port with "
            "--port, or use --port 0 for any free port."
        ) from error
    return found


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: only localhost is always this machine
        return host == "localhost"


def loopback_hosts(host: str) -> tuple[str, ...]:
    """Return the allowed Host headers of a server without API keys, which serves only this
    machine."""
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
    """Run the server until a signal stops it.

    `started`: called when connections are accepted. `ready`: called when all models are loaded. If
    a model cannot be loaded, the server stops.
    """
    server = _server(app)
    asyncio.run(_serve(server, listening, started, ready))
    return server


def _server(app: Starlette) -> Server:
    service = service_of(app)
    _raise_file_limit()
    protocol = type(
        "ServerProtocol", (TimeoutProtocol,), {"limits": service.limits, "access": app.state.access}
    )
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, http=protocol, ws="none",
        lifespan="on", limit_concurrency=service.limits.connections,
        h11_max_incomplete_event_size=65_536,
    )  # fmt: skip
    # uvicorn's tracebacks may contain user text. The application logs errors without it.
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
    while not task.done() and not trouble and not all(one.ready.is_set() for one in workers):
        trouble = next((one.load_error for one in workers if one.load_error), "")
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
    """Context manager that serves the application in a thread of this process, and yields its URL.
    Used in tests and notebooks."""
    listening = bind(host, port)
    server = _server(app)
    thread = threading.Thread(target=asyncio.run, args=(server.serve([listening]),))
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        for worker in service_of(app).workers.values():
            worker.ready.wait(60)
        yield url_of(host, listening)
    finally:
        server.should_exit = True
        thread.join()


def _raise_file_limit() -> None:
    """Raise the limit on open files to the maximum of the system, up to `FILES`."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _EscapingFormatter(logging.Formatter):
    """Log formatter that escapes control characters, because folder names may contain them."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def log_to_stderr(debug: bool = False) -> None:
    """Write one log line per request to standard error, without any user text."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EscapingFormatter("%(asctime)s %(message)s"))
    logger: Any = logging.getLogger("headway.serve")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False
