"""Every test of this folder that takes `tiny` runs for each row of the table of tasks; one that
takes `asked` for those whose runs answer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from headway.tasks.specs import Spec

from .tiny import ANSWERING, ROWS, Tiny, made, named


@pytest.fixture(scope="session")
def tiny_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda row: made(row, tmp_path_factory))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, rows in (("tiny", ROWS), ("asked", ANSWERING)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, rows, ids=named, indirect=True)


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tiny_of: Any) -> Tiny:
    row: Spec = request.param
    found: Tiny = tiny_of(row)
    return found


asked = tiny
