"""What the tests of training share: one process that starts commands quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fork_server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its imports take seconds, so there is one for all."""
    server = Server(tmp_path_factory.mktemp("server") / "log")
    yield server
    server.close()
