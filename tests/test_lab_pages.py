"""docs/lab is what docs/lab_pages.py makes from the results that are kept there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made() -> Any:
    spec = importlib.util.spec_from_file_location("lab_pages", ROOT / "docs" / "lab_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lab_pages"] = module
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_that_the_results_make(made: Any) -> None:
    for path, text in made.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run docs/lab_pages.py for {path.name}"
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert made.with_nav(nav) == nav
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert made.with_list(first) == first


def test_a_table_is_written_as_people_read_it(made: Any) -> None:
    lines = made.table(["what", "n", "x"], [["a", 3, 0.12345], ["b", 1200, None]])
    assert lines == ["| what | n | x |", "|---|---:|---:|", "| a | 3 | 0.123 |", "| b | 1,200 |  |"]
