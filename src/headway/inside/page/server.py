"""`headway look RUN --serve`: the same page, served on this machine alone, and answers to it.

Only 127.0.0.1 is listened on. A browser that has another site open could still reach it, so every
request must name this very server: `Host` keeps out names that were pointed here (DNS rebinding),
`Origin` the pages of other sites, and the type `application/json` their forms.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headway.errors import UserError
from headway.inside.capture.interventions import NO_CHANGE, Change
from headway.inside.capture.media import Media
from headway.inside.capture.reading import PLAINLY, Ask
from headway.inside.page.look import Extras
from headway.inside.page.server_page import Live, request_of
from headway.inside.page.server_request import Request, parse
from headway.tasks.opened import Opened

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
MOST_BYTES = 200_000
"""Of the body of a request."""

MOST_WAITING = 4
"""Requests that wait for the one that is computed; more are turned away."""

MOST_OPEN = 64
"""Connections at a time, each of which has a thread; more are closed at once."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}

Answer = Callable[[Request], str]
"""From a request to the packed data of a page."""


GREETING = "Hello."
"""Where no text is given to begin with."""

EVERYTHING = Extras()


def serve(
    run: Opened,
    text: str | Media | None = None,
    ask: Ask = PLAINLY,
    change: Change = NO_CHANGE,
    *,
    extras: Extras = EVERYTHING,
    port: int = 0,
    note: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve the page of a run until Ctrl-C. `note` is told the address."""
    media = text if isinstance(text, Media) else None
    live = Live.of(run, ask, extras, media)
    server = LiveServer(port, "", lambda request: live.page(request).packed)
    try:
        first = media.name if media is not None else text or GREETING
        assert isinstance(first, str)
        server.html = live.page(request_of(first, ask, change)).live_html
        note(f"serving {run.folder.name} at {server.url} (Ctrl-C ends it)")
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


class Refused(Exception):
    """A request that gets no answer: the status and one sentence."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class LiveServer(ThreadingHTTPServer):
    """Computes one answer at a time, whatever the number of connections."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, html: str, answer: Answer) -> None:
        self.html, self._answer = html, answer
        self._turn, self._count = threading.Lock(), threading.Lock()
        self.open = 0
        self.free = 1 + MOST_WAITING
        """Places for requests that are computed or wait."""
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OverflowError as error:
            raise UserError(f"port {port} does not exist; they go from 0 to 65535.") from error
        except OSError as error:
            raise UserError(
                f"port {port} cannot be used: {error.strerror}. Give another with --port, or "
                "--port 0 for any that is free."
            ) from error

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/"

    def answer(self, request: Request) -> str:
        with self._count:
            if not self.free:
                raise Refused(
                    HTTPStatus.TOO_MANY_REQUESTS, "too many requests wait already. Try again soon."
                )
            self.free -= 1
        try:
            with self._turn:
                return self._answer(request)
        finally:
            with self._count:
                self.free += 1

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._count:
            self.open += 1
            too_many = self.open > MOST_OPEN
        if not too_many:
            super().process_request(request, client_address)
            return
        self.shutdown_request(request)
        with self._count:
            self.open -= 1

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._count:
                self.open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news; all else was answered where it happened."""


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "headway", ""
    protocol_version = "HTTP/1.1"
    timeout = 30
    """Seconds that a silent connection is held."""

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses: lines that are no HTTP, methods other than the two."""
        self._error(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""

    def _get(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/favicon.ico":  # which browsers ask for by themselves
            self._send(HTTPStatus.NO_CONTENT, "image/x-icon", "")
        elif path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.html)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "there is only the page / and POST /look.")

    def _post(self) -> None:
        body = self._body()
        if self.path != "/look":
            raise Refused(HTTPStatus.NOT_FOUND, "there is only the page / and POST /look.")
        packed = self.server.answer(parse(body))
        self._send(HTTPStatus.OK, "application/json", json.dumps({"packed": packed}))

    def _respond(self, act: Callable[[], None]) -> None:
        try:
            self._check()
            act()
        except Refused as error:
            self._error(error.status, str(error))
        except UserError as error:
            self._error(HTTPStatus.BAD_REQUEST, str(error))
        except OSError:
            self.close_connection = True  # the browser is gone
        except Exception as error:  # the page says it; nobody reads the terminal
            self._error(HTTPStatus.INTERNAL_SERVER_ERROR, f"a bug in headway: {error!r}.")

    def _check(self) -> None:
        """Before anything is read: is it meant for this server, and from a page of its own?"""
        names = {f"{name}:{self.server.port}" for name in NAMES}
        if self.headers.get_all("Host", []) not in [[name] for name in names]:
            raise Refused(HTTPStatus.FORBIDDEN, f"this server answers to {self.server.url} only.")
        origins = {f"http://{name}" for name in names}
        if any(origin not in origins for origin in self.headers.get_all("Origin", [])):
            raise Refused(HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused.")

    def _body(self) -> bytes:
        if self.headers.get_content_type() != "application/json":
            raise Refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON with Content-Type: application/json."
            )
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "say how long the body is: Content-Length.")
        if len(length) > 12 or int(length) > MOST_BYTES:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MOST_BYTES:,} bytes are read."
            )
        return self.rfile.read(int(length))

    def _error(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True  # a body that was not read must not be taken for a request
        line = " ".join(message.split())
        with contextlib.suppress(OSError):  # the browser is gone
            self._send(status, "application/json", json.dumps({"error": line}))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode("utf-8")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
