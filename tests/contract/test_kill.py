"""Every row, killed for real while its data is prepared, in a step, in a save and while it is
stopped: the same call goes on, and ends with the same bytes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..training.fork_server import Server, hook
from .tiny import ROWS, Tiny, named

PLACES = (
    ("headway.storage:sync", 2, signal.SIGKILL),
    ("headway.training.step:Step.finish", 3, signal.SIGKILL),
    ("headway.training.checkpoint:write_snapshot", 1, signal.SIGKILL),
    ("headway.training.step:Step.finish", 2, signal.SIGTERM),
)

CODE = f"""
import os
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from headway.errors import Stopped
from tests.contract import longer, tiny
longer.register()
row = next(row for row in tiny.ROWS if tiny.named(row) == {{name!r}})
try:
    tiny.train(row, Path({{files!r}}), Path({{out!r}}), settings={{{{"train.save_every": 1}}}})
except Stopped:
    os._exit(75)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server") / "log")
    yield found
    found.close()


@pytest.mark.slow
def test_killed_and_stopped_it_ends_with_the_same_bytes(
    tiny: Tiny, server: Server, tmp_path: Path
) -> None:
    name = named(tiny.row)
    assert name in map(named, ROWS)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    code = CODE.format(name=name, files=str(tiny.files), out=str(straight))
    server.start(code)
    assert server.wait() == 0, server.said()
    code = CODE.format(name=name, files=str(tiny.files), out=str(killed))
    for place, count, number in PLACES:
        server.start(code, hook(place, count, signal=number))
        ended = server.wait()
        assert ended == (75 if number == signal.SIGTERM else -number), (place, server.said())
    server.start(code)
    assert server.wait() == 0, server.said()
    file = "model.safetensors"
    assert (killed / file).read_bytes() == (straight / file).read_bytes()
