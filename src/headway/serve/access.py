"""Access checks that run before routing: the Host header, the origin and the API key.

The module also protects against overload: if every queue is full, requests are rejected before they
are parsed. Under overload, rejections are most of the work and compete with the models for the CPU.
Rejection responses are therefore built only once, and the event loop pauses between batches of
them. At ten times its capacity on two cores, the shipped translator keeps 82 % of its peak
throughput, against 31 % without this path (`python -m benchmarks.serve --only overload`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.serve.errors import RequestRejected
from headway.serve.routes.route import Route
from headway.serve.service import Service, to_json

log = logging.getLogger("headway.serve")

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
LONGEST_ID = 128
"""Maximum number of characters in a request id that a client chooses: enough for a UUID with a
prefix."""

HEAD = re.compile(
    rb"POST (/[\w/.-]{1,100}) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9-]+: ?[\x21-\x7e][\x20-\x7e]*\r\n){1,64})\r\n"
)
"""Pattern of a request head as common clients write it. Requests that do not match are parsed by
the HTTP server."""

SLOW_PATH_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"connection"})
"""Headers that only the HTTP server can handle. `Connection: keep-alive` is an exception."""

REST = 0.025
"""Maximum pause of the event loop, in seconds, while it rejects requests, so that it handles
several at once."""

KEPT_HEADS, LONGEST_HEAD = 256, 2048
"""Limits of the cache of request heads: maximum number of heads, and maximum size of a head in
bytes."""


@dataclass(frozen=True)
class RequestHead:
    """Parsed head of a request that passed all checks and needs only a place in a queue."""

    path: str
    length: int
    key: str | None
    request_id: str
    """Request id that the client chose (`X-Request-Id`); empty if there is none."""


class AccessControl:
    def __init__(
        self, service: Service, table: Sequence[Route], hosts: Sequence[str] | None
    ) -> None:
        self.service, self.hosts = service, hosts
        self.public_routes = {(one.method, one.path) for one in table if one.is_public}
        self.public_routes |= {("HEAD", path) for _, path in self.public_routes}
        self.routes_with_body_key = {(one.method, one.path) for one in table if one.key_in_body}
        self.known_paths = {one.path for one in table}
        self.plain_error_paths = {one.path for one in table if one.plain_errors}
        self.queued_paths = {one.path for one in table if one.queues}
        self._heads: dict[bytes, RequestHead] = {}
        """Cache of parsed heads, keyed by their bytes. A client usually sends the same bytes with
        every request."""

        self._rejection_bytes: dict[tuple[bool, int], tuple[bytes, bytes]] = {}
        """Bytes of a rejection before and after the request id, keyed by error format and
        `Retry-After` in seconds."""

        self._rejected: Counter[str] = Counter()
        """Number of rejected requests by path, since the last pause of the event loop."""

        self._admitted = 0
        """Number of requests that passed the checks but are not in a queue yet."""

    def check(
        self, where: tuple[str, str], headers: Iterable[tuple[bytes, bytes]],
        given: Mapping[str, str],
    ) -> tuple[RequestRejected | None, str | None]:  # fmt: skip
        """Check a request. Return its rejection (None if it is allowed) and the name of its API key
        (None without a key)."""
        hosts = [value for name, value in headers if name == b"host"]
        if self.hosts is not None:
            name = _without_port(hosts[0].decode("latin-1")) if len(hosts) == 1 else ""
            if name not in self.hosts:
                return RequestRejected(
                    403, f"the Host header must be {' or '.join(self.hosts)}."
                ), None
        origin = given.get("origin")
        own = hosts[0].decode("latin-1") if hosts else ""
        if origin is not None and origin.partition("://")[2] != own:
            return RequestRejected(403, "requests from other sites are rejected."), None
        navigates = where == ("GET", "/") and given.get("sec-fetch-mode") == "navigate"
        if given.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and (
            not navigates  # a link to the page, which holds no data
        ):
            return RequestRejected(403, "requests from other sites are rejected."), None
        if self.service.keys is None or where in self.public_routes:
            return None, None
        scheme, _, key = given.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and key:
            known = self.service.keys.name_of(key.strip())
            return (None if known is not None else key_required()), known
        if where in self.routes_with_body_key and "authorization" not in given:
            return None, None  # the route looks for the key in the body
        return key_required(), None

    def record(
        self, where: tuple[str, str], status: int, began: float, key: str | None, number: str
    ) -> None:
        """Record an answered request in the metrics and in the log."""
        took = time.perf_counter() - began
        path = where[1] if where[1] in self.known_paths else "other"
        path = "/v1/models/{model}" if where[1].startswith("/v1/models/") else path
        self.service.requests(path=path, status=str(status))
        self.service.latency(took, path=path)
        if where not in self.public_routes:
            _log(where[0], path, status, took, key, number)

    def reject_early(self, data: bytes) -> bytes | None:
        """Return the rejection of a complete request to a model, if every queue is full.

        Returns None if the HTTP server must handle the bytes.
        """
        room = self.service.free_slots
        if room is None:
            return None
        end = data.find(b"\r\n\r\n") + 4
        head = self._heads.get(data[:end]) or self._parse_head(data[:end])
        if head is None or head.length != len(data) - end:
            return None
        loop = asyncio.get_running_loop()
        if self._admitted < room:
            if not self._admitted:
                loop.call_soon(self._reset_admitted)
            self._admitted += 1
            return None
        if not self._rejected:
            loop.call_later(0, self.pause)  # a timer: data that has arrived comes first
        self._rejected[head.path] += 1
        number = head.request_id or secrets.token_hex(8)
        if log.isEnabledFor(logging.INFO):
            _log("POST", head.path, 429, 0.0, head.key, number)
        before, after = self._rejection(head.path in self.plain_error_paths)
        return b"%b%b%b" % (before, number.encode(), after)

    def _parse_head(self, text: bytes) -> RequestHead | None:
        """Parse a request head. Return None if the request would fail a check or needs the HTTP
        server."""
        found = HEAD.fullmatch(text)
        if found is None or (path := found[1].decode()) not in self.queued_paths:
            return None
        headers = []
        for line in found[2].split(b"\r\n")[:-1]:
            name, _, value = line.partition(b":")
            headers.append((name.lower(), value.strip()))
        known = dict(headers)
        if known.get(b"connection", b"").lower() == b"keep-alive":
            del known[b"connection"]
        if len({name for name, _ in headers}) < len(headers) or not SLOW_PATH_HEADERS.isdisjoint(
            known
        ):
            return None
        length = known.get(b"content-length", b"")
        if not length.isdigit() or len(length) > 15 or length != b"%d" % int(length):
            return None
        given = {name.decode(): value.decode() for name, value in headers}
        problem, key = self.check(("POST", path), headers, given)
        if problem is not None or (self.service.keys is not None and key is None):
            return None
        own = request_id_of(given) if "x-request-id" in given else ""
        head = RequestHead(path, int(length), key, own)
        if not own and len(text) <= LONGEST_HEAD:
            if len(self._heads) >= KEPT_HEADS:
                self._heads.clear()
            self._heads[text] = head
        return head

    def _rejection(self, plain: bool) -> tuple[bytes, bytes]:
        worker = next(iter(self.service.workers.values()))
        wait = worker.retry_after()
        if (plain, wait) not in self._rejection_bytes:
            problem = worker.rejection(worker.limits.queue, wait)
            body = to_json(problem.body(plain=plain))
            said = {**HEADERS, **problem.headers, "Content-Type": "application/json",
                    "Content-Length": str(len(body)), "X-Request-Id": ""}  # fmt: skip
            lines = "\r\n".join(f"{name.lower()}: {value}" for name, value in said.items())
            start = f"HTTP/1.1 {problem.status} Too Many Requests\r\n{lines}"
            self._rejection_bytes[plain, wait] = (start.encode(), b"\r\n\r\n" + body)
        return self._rejection_bytes[plain, wait]

    def _reset_admitted(self) -> None:
        """Reset the count of admitted requests. A request with a complete body enters a queue in
        its first step, so all admitted requests are in a queue by now."""
        self._admitted = 0

    def pause(self) -> None:
        """Pause the event loop after rejections until a worker has results, for at most `REST`
        seconds.

        Each time the event loop wakes, it takes CPU time from the models. A slightly delayed
        rejection does no harm.
        """
        for path, times in self._rejected.items():
            self.service.requests(times, path=path, status="429")
            self.service.latency(0.0, times, path=path)
        self._rejected.clear()
        if self.service.free_slots == 0 and not self.service.n_thread_calls:
            self.service.wakeup.wait(REST)
        self.service.wakeup.clear()


def _log(
    method: str, path: str, status: int, took: float, key: str | None, number: str
) -> None:  # fmt: skip
    log.info(
        "%s %s %d %.0f ms key=%s id=%s", method, path, status, 1000 * took, key or "-", number
    )  # fmt: skip


def request_id_of(given: Mapping[str, str]) -> str:
    """Return the request id that the client chose, or a new one."""
    own = given.get("x-request-id", "")
    plain = 0 < len(own) <= LONGEST_ID and own.isascii() and own.isprintable()
    return own if plain else secrets.token_hex(8)


def key_required() -> RequestRejected:
    return RequestRejected(
        401,
        "a valid API key is required. Send the header Authorization: Bearer KEY.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
