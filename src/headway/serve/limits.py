"""Limits on the size, cost and duration of requests, so that no client can monopolize the
server."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, fields

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_values

MAX_RETRY_AFTER = 30
"""Maximum value of `Retry-After` in the rejection of a request, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Limits(TracksExplicit):
    """Limits of the server. On the command line they are set as `serve.NAME=VALUE`."""

    body: int = 2_000_000
    """Maximum size in bytes of the body of a text request. Larger bodies are rejected with status
    413."""

    media: int = 25_000_000
    """Maximum size in bytes of a body that may contain images, video or audio. This applies to
    forms with files, and to JSON for `/v1/predict` if a served model reads media. Larger bodies are
    rejected with status 413."""

    bodies: int = 256_000_000
    """Maximum size in bytes of all request bodies in progress together. Further requests are
    rejected with status 429. Bodies whose API key is not checked yet may use a quarter of it."""

    inputs: int = 32
    """Maximum number of inputs in a request. Requests with more are rejected with status 413."""

    characters: int = 20_000
    """Maximum number of characters in an input text. Longer texts are rejected with status 413."""

    audio_seconds: float = 600.0
    """Maximum duration in seconds of an audio input. Longer audio is rejected with status 413."""

    n: int = 8
    """Maximum number of outputs for an input (`n`, `n_best`, `alternatives`). Requests for more are
    rejected with status 422."""

    beams: int = 16
    """Maximum beam width. Requests for a larger one are rejected with status 422."""

    tokens: int = 2048
    """Maximum number of tokens in an output. Requests for more are rejected with status 422. A
    lower limit of the model still applies."""

    queue: int = 128
    """Maximum number of requests per model that are queued or running. Further requests are
    rejected with status 429, with the seconds to wait before the next attempt."""

    seconds: float = 60.0
    """Maximum time in seconds from the complete request to the complete response. Slower requests
    get status 504, and their computation is cancelled."""

    collect_ms: float = 3.0
    """Maximum time in milliseconds that a request waits for others to share its batch. Requests
    wait only if the last batch had several."""

    batch: int = 256
    """Maximum number of inputs in a batch."""

    rows: int = 64
    """Maximum number of sequences that are generated together, one token each per step (continuous
    batching)."""

    looks: int = 4
    """Maximum number of requests to `/v1/look` that wait while one is computed. Further requests
    are rejected with status 429."""

    drain: float = 30.0
    """Maximum time in seconds for accepted requests to finish after SIGTERM. The process ends at
    most half a second later."""

    header_seconds: float = 15.0
    """Maximum time in seconds for a client to send the complete header of a request. After that the
    connection is closed."""

    keep_alive_seconds: float = 75.0
    """Time in seconds after which an idle connection is closed. The default is longer than the 60 s
    of common clients and proxies, so that they close it first."""

    body_seconds: float = 25.0
    """Maximum time in seconds for a client to send the body of a request. After that the request is
    rejected with status 408."""

    send_seconds: float = 20.0
    """Time in seconds after which a client that reads nothing of its response is disconnected."""

    connections: int = 4096
    """Maximum number of open connections. Further connections are rejected with status 503."""

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
    """Computes the `Retry-After` of rejections so that clients that retry find a place in the
    queue. With a shorter time they would be rejected repeatedly."""

    def __init__(self) -> None:
        self._seconds = 1
        self._rejections: deque[float] = deque()
        """Times of the rejections whose clients should not have retried yet."""

    def seconds(self, accepted: int, seconds_per_request: float) -> int:
        """Count a rejection and return its `Retry-After`.

        Args:
            accepted: Number of requests that are queued or running.
            seconds_per_request: Recent computation time of one request in a batch with others.
        """
        now = time.perf_counter()
        self._rejections.append(now)
        while self._rejections[0] < now - self._seconds:
            self._rejections.popleft()
        needed = (accepted + len(self._rejections)) * seconds_per_request
        self._seconds = min(MAX_RETRY_AFTER, max(1, math.ceil(needed)))
        return self._seconds
