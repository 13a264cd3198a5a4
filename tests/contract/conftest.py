"""Every test of this folder that takes `tiny` runs for each row of the table of tasks; one that
takes `asked` for those whose runs answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.data.media.open_item import OPENERS
from headway.data.sniff import EXTENSIONS
from headway.specs.metrics import METRICS
from headway.specs.tasks import SECTIONS, SPECS, Spec

from . import longer
from .gaps import GAPS
from .tiny import ANSWERING, ROWS, Tiny, made, named


@pytest.fixture(scope="session")
def parser() -> None:
    """Made once a process, with a help of the tasks that are known then: the package's own."""
    main._parser()


@pytest.fixture(autouse=True)
def known(parser: None) -> Iterator[None]:
    """The task and the files from outside the package, as long as a test of this folder runs."""
    tables: list[dict[Any, Any]] = [SPECS, SECTIONS, METRICS, EXTENSIONS, OPENERS]
    before = [dict(table) for table in tables]
    longer.register()
    yield
    for table, held in zip(tables, before, strict=True):
        table.clear()
        table.update(held)


@pytest.fixture(scope="session")
def tiny_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda row: made(row, tmp_path_factory))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, rows in (("tiny", ROWS), ("asked", ANSWERING)):
        marked = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
        if name in metafunc.fixturenames and not any(name in names for names in marked):
            metafunc.parametrize(name, rows, ids=named, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in GAPS and item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xfail(reason=GAPS[item.name], strict=True))


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tiny_of: Any) -> Tiny:
    row: Spec = request.param
    found: Tiny = tiny_of(row)
    return found


asked = tiny
