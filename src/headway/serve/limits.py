"""Limits on the size, cost and time of requests, so that no client takes the whole server."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, fields

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_values

MAX_RETRY_AFTER = 30
"""Largest `Retry-After` of a rejected request, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Limits(TracksExplicit):
    """Limits of the server, set as `serve.NAME=VALUE` on the command line."""

    body: int = 2_000_000
    """Largest body of a text request in bytes; more: 413."""

    media: int = 25_000_000
    """Largest body in bytes of a request that may contain images, video or audio (a form with
    files, or JSON for `/v1/predict`), if a served model reads them; more: 413."""

    bodies: int = 256_000_000
    """Bytes of the bodies of all running requests together; more: 429. Requests whose API key is in
    the body, and not checked yet, are rejected above a quarter of it."""

    inputs: int = 32
    """Most inputs of one request; more: 413."""

    characters: int = 20_000
    """Most characters of one input text; more: 413."""

    audio_seconds: float = 600.0
    """Longest audio input in seconds; more: 413."""

    n: int = 8
    """Most outputs for one input (`n`, `n_best`, `alternatives`); more: 422."""

    beams: int = 16
    """Largest beam width; more: 422."""

    tokens: int = 2048
    """Most tokens of one output; more: 422. A lower limit of the model still applies."""

    queue: int = 128
    """Most requests per model that are queued or running; more: 429, with the seconds to wait
    before the next attempt."""

    seconds: float = 60.0
    """Longest time in seconds from the complete request to the complete response; longer: 504, and
    the computation is cancelled."""

    collect_ms: float = 3.0
    """Milliseconds that a request waits for others to share its batch, if the last batch had
    several requests."""

    batch: int = 256
    """Most inputs in one batch."""

    rows: int = 64
    """Most sequences that are generated together, one token each per step (continuous batching)."""

    looks: int = 4
    """Most requests to `/v1/look` that wait while one is computed; more: 429."""

    drain: float = 30.0
    """Seconds that accepted requests have to finish after SIGTERM; the process ends at most half a
    second later."""

    header_seconds: float = 15.0
    """Seconds in which a client must send the complete header of a request; later the connection is
    closed."""

    keep_alive_seconds: float = 75.0
    """Seconds after which an idle connection is closed. The default is longer than the 60 s of
    common clients and proxies, so that they close it first."""

    body_seconds: float = 25.0
    """Seconds in which the body of a request must arrive; later: 408."""

    send_seconds: float = 20.0
    """Seconds after which a client that reads nothing of its response is disconnected."""

    connections: int = 4096
    """Most open connections; more: 503."""

    def __post_init__(self) -> None:
        check_values(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if value < (0 if one.name in ("collect_ms", "looks") else 1):
                raise ConfigError(
                    f"serve.{one.name}={value:g} is too small: it must be at least "
                    f"{0 if one.name in ('collect_ms', 'looks') else 1}."
                )


class RetryAfter:
    """Computes the `Retry-After` of rejections, so that all rejected clients find a place when they
    retry.

    After a shorter time they would be rejected again and again.
    """

    def __init__(self) -> None:
        self._seconds = 1
        self._rejections: deque[float] = deque()
        """Times of the rejections whose clients have not retried yet."""

    def seconds(self, accepted: int, seconds_per_request: float) -> int:
        """Count a rejection and return its `Retry-After`.

        Args:
            accepted: number of requests that are queued or running.
            seconds_per_request: recent time of one request in a batch with others.
        """
        now = time.perf_counter()
        self._rejections.append(now)
        while self._rejections[0] < now - self._seconds:
            self._rejections.popleft()
        needed = (accepted + len(self._rejections)) * seconds_per_request
        self._seconds = min(MAX_RETRY_AFTER, max(1, math.ceil(needed)))
        return self._seconds
