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
    """Limit on the bytes of the body of a text request. Larger ones are rejected with status
    413."""

    media: int = 25_000_000
    """Limit on the bytes of a body that may contain images, video or audio: a form with files, or
    JSON for `/v1/predict`, if a served model reads media. Larger ones are rejected with status
    413."""

    bodies: int = 256_000_000
    """Limit on the bytes of all request bodies in progress; further requests are rejected with
    status 429. Bodies with an API key that is not checked yet may take a quarter of it."""

    inputs: int = 32
    """Limit on the inputs of one request. More are rejected with status 413."""

    characters: int = 20_000
    """Limit on the characters of one input text. Longer texts are rejected with status 413."""

    audio_seconds: float = 600.0
    """Limit on the seconds of one audio input. Longer audio is rejected with status 413."""

    n: int = 8
    """Limit on the outputs for one input (`n`, `n_best`, `alternatives`). More are rejected with
    status 422."""

    beams: int = 16
    """Limit on the beam width. Larger ones are rejected with status 422."""

    tokens: int = 2048
    """Limit on the tokens of one output. Higher requests are rejected with status 422. A lower
    limit of the model still applies."""

    queue: int = 128
    """Limit on the requests per model that are queued or running. Further requests are rejected
    with status 429 and the seconds to wait before the next attempt."""

    seconds: float = 60.0
    """Time limit in seconds from the complete request to the complete response. Slower requests get
    status 504, and their computation is cancelled."""

    collect_ms: float = 3.0
    """Milliseconds that a request waits for others to share its batch, if the last batch had
    several requests."""

    batch: int = 256
    """Limit on the inputs in one batch."""

    rows: int = 64
    """Limit on the sequences that are generated together, one token each per step (continuous
    batching)."""

    looks: int = 4
    """Limit on the requests to `/v1/look` that wait while one is computed. Further ones are
    rejected with status 429."""

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
    """Seconds in which the body of a request must arrive. Later the request is rejected with status
    408."""

    send_seconds: float = 20.0
    """Seconds after which a client that reads nothing of its response is disconnected."""

    connections: int = 4096
    """Limit on the open connections. Further ones are rejected with status 503."""

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
