"""The reference of the Python API: arguments are documented, and examples print what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headway
from headway import inside

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("python_api")


def arguments(function: Any) -> list[str]:
    """Names of the arguments with the stars of a signature."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(function).parameters.values()
    return [stars.get(one.kind, "") + one.name for one in found if one.name not in ("self", "cls")]


def test_public_functions_document_each_argument(pages: ModuleType) -> None:
    described = list(pages.functions())
    assert len(described) > 30
    for one in described:
        assert list(pages.parsed(one.function).arguments) == arguments(one.function), one.name


def test_every_public_name_is_on_the_page(pages: ModuleType) -> None:
    headings = set(re.findall(r"^##+ `(.*)`$", pages.python_api_page(), re.MULTILINE))
    for name in set(headway.__all__) - {"UserError"}:
        assert f"headway.{name}" in headings
    for name in set(inside.__all__) - {"maps"}:
        assert f"headway.inside.{name}" in headings
    methods = {
        name for name, one in vars(headway.Run).items()
        if inspect.isfunction(one) and not name.startswith("_")
    }  # fmt: skip
    assert methods == {*pages.METHODS, *pages.HELPERS} - {"run"}


def examples() -> list[Any]:
    """The examples of the page that can be run: those with prompts."""
    sys.path.insert(0, str(DOCS))
    try:
        pages = importlib.import_module("python_api")
    finally:
        sys.path.remove(str(DOCS))
    described = [*pages.functions(), *((one.__name__, one) for one in pages.CLASSES)]
    described += [(one.__name__, one) for one in pages.OF_INSIDE]
    finder = doctest.DocTestFinder(recurse=False)
    return [
        pytest.param(test, id=name)
        for name, thing in described
        for test in finder.find(thing, name, globs={})
        if test.examples
    ]


@pytest.mark.parametrize("example", examples())
def test_an_example_prints_the_output_shown(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example.globs |= {"headway": headway, "run": headway.load("tatoeba-de-en", device="cpu")}
    printed: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=printed.append)
    assert result.failed == 0, "".join(printed)
