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

log = logging.getLogger("headway.serve")


class Patient(H11Protocol):
    """Not without end: a header that does not come and a reader that does not read are cut off."""

    limits = Limits()
    door: Door | None = None
    """Who may refuse before a request is read."""

    _waits: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _heard = 0.0
    """When a request was refused before it was read, last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._waits, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.door is not None and self._is_between:
            said = self.door.early(data)
            if said is not None:
                self._unset_keepalive_if_required()
                self._heard = self.loop.time()
                if self._waits is None:
                    self._expect()  # the next one
                self.transport.write(said)
                return
        super().data_received(data)
        if self._is_idle:
            if self._waits is None:
                self._expect()
        elif self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _expect(self) -> None:
        self._waits = self.loop.call_later(self.limits.header_seconds, self._late)

    def _late(self) -> None:
        """Later where a request was refused since: to set a new timer for each would take longer
        than to refuse it."""
        self._waits = None
        until = self._heard + self.limits.header_seconds
        if self.loop.time() < until:
            self._waits = self.loop.call_at(until, self._late)
            return
        if self._is_idle and not self.transport.is_closing():
            self.transport.abort()

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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.service.limits.drain):
                while self.service.in_flight or any(
                    worker.accepted for worker in self.service.workers.values()
                ):
                    await asyncio.sleep(0.02)
        self.service.cut_off()
        self.should_exit = True


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
        lifespan="on", timeout_keep_alive=10, limit_concurrency=service.limits.connections,
        timeout_graceful_shutdown=2, h11_max_incomplete_event_size=65_536,
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
    """Log formatter that escapes control characters: a path is the client's text."""

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
