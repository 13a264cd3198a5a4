"""How much a request may ask, and how long: what keeps one caller from being all callers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headway.errors import ConfigError
from headway.settings.body import check_values
from headway.settings.made import Made


@dataclass(frozen=True, kw_only=True)
class Limits(Made):
    """Said as `serve.NAME=VALUE` on the command line."""

    body: int = 2_000_000
    """Bytes of a request of text; more: 413."""

    media: int = 25_000_000
    """Bytes of a request that may have pictures, videos or recordings in it (a form with files, or
    JSON for `/v1/predict`), where a model is served that reads them; more: 413."""

    bodies: int = 256_000_000
    """Bytes of all requests that are being answered; more: 429. Those whose key is still to be
    found in them have a quarter of it."""

    inputs: int = 32
    """Inputs of one request; more: 413."""

    characters: int = 20_000
    """Of one text; more: 413."""

    audio_seconds: float = 600.0
    """Of one recording; more: 413."""

    n: int = 8
    """Answers to one input (`n`, `n_best`, `alternatives`); more: 422."""

    beams: int = 16
    """Hypotheses of a search; more: 422."""

    tokens: int = 2048
    """Tokens of one output; more: 422. The model's own limit comes first."""

    queue: int = 128
    """Requests that a model has accepted and not answered; more: 429, with the seconds after which
    to come again."""

    seconds: float = 60.0
    """From the whole request to the whole answer; longer: 504, and the work is given up."""

    collect_ms: float = 3.0
    """How long requests wait for others to be computed with, where there were others lately."""

    batch: int = 256
    """Inputs that are computed together at most."""

    rows: int = 64
    """Texts that grow together, a token each at a time."""

    looks: int = 4
    """Pages of `/v1/look` that wait for the one that is made; more: 429."""

    drain: float = 30.0
    """Seconds that accepted requests have after SIGTERM; the process ends at most half a second
    later."""

    header_seconds: float = 15.0
    """In which a connection must have sent the header of a request; later it is closed."""

    keep_alive_seconds: float = 75.0
    """Seconds after which an idle connection is closed: more than the 60 of common clients and
    proxies, so that they close it first."""

    body_seconds: float = 25.0
    """In which the body of a request must be there; later: 408."""

    send_seconds: float = 20.0
    """Seconds after which a client that takes nothing of its answer is disconnected."""

    connections: int = 4096
    """At a time; more: 503."""

    def __post_init__(self) -> None:
        check_values(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if value < (0 if one.name in ("collect_ms", "looks") else 1):
                raise ConfigError(f"serve.{one.name}={value:g} leaves nothing. Give more.")
