"""One server for all tests of the service: shipped models, on 127.0.0.1, in a thread.

Packages of the extra `serve` are imported where they are used: without them the test files are
skipped, and a conftest cannot be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import headway
from headway.run import Run

if TYPE_CHECKING:
    from headway.serve.limits import Limits
    from headway.serve.service import Service

NAMES = ("tatoeba-de-en", "stories", "digits", "shapes", "base-en")


@pytest.fixture(scope="session")
def runs() -> dict[str, Run]:
    return {name: headway.load(name, device="cpu") for name in NAMES}


class Here:
    """A server that runs: its address, a client, and what is inside."""

    def __init__(self, url: str, service: Service) -> None:
        self.url, self.service = url, service
        import httpx2

        # A connection of its own for each request: tests count them.
        fresh = httpx2.Limits(max_keepalive_connections=0)
        self.client = httpx2.Client(base_url=url, timeout=60, limits=fresh)

    def get(self, path: str, **more: Any) -> Any:
        return self.client.get(path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        return self.client.post(path, json=body, **more) if body is not None else (
            self.client.post(path, **more)
        )  # fmt: skip


@contextmanager
def serving(*runs: Run, limits: Limits | None = None, **more: Any) -> Iterator[Here]:
    from headway.serve.application import create_app, service_of
    from headway.serve.server import running

    app = create_app(list(runs), limits=limits, **more)
    with running(app) as url:
        here = Here(url, service_of(app))
        with here.client:
            yield here


@pytest.fixture(scope="session")
def here(runs: dict[str, Run]) -> Iterator[Here]:
    with serving(*runs.values()) as found:
        yield found


def wait_for(what: Callable[[], object], seconds: float = 30.0) -> None:
    """Until it is so; a test that waits for something that does not come fails, and ends."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain"
        time.sleep(0.005)
