"""The look pages of `docs/look/examples` are those of the current code, and need no network."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.web.html import scripts
from headway.web.pack import unpack
from tests.inside.browser import open_page

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 600_000


def program() -> Any:
    spec = importlib.util.spec_from_file_location("make_pages", DOCS / "make_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAM = program()
NAMES = sorted(PROGRAM.EXAMPLES)


def structure(node: Any, path: str = "") -> set[str]:
    """Every path of keys in the data. Values and lengths of lists may differ from one processor to
    another."""
    if isinstance(node, dict):
        parts = [structure(value, f"{path}.{key}") for key, value in node.items()]
    elif isinstance(node, list):
        parts = [structure(value, f"{path}[]") for value in node]
    elif isinstance(node, np.ndarray):
        return {f"{path}: array of {node.ndim} axes"}
    else:
        return {path}
    return set().union({path}, *parts)


def outputs(data: dict[str, Any]) -> list[Any]:
    return [look["outputs"] for look in data["looks"]]


def test_the_folder_has_the_pages_of_the_program() -> None:
    assert sorted(path.stem for path in PROGRAM.FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_page_has_the_structure_that_the_code_makes(name: str) -> None:
    """Else run `python docs/make_pages.py`."""
    html = (PROGRAM.FOLDER / f"{name}.html").read_text("utf-8")
    assert len(html.encode()) <= MOST_BYTES
    page = PROGRAM.EXAMPLES[name].page()
    kept, made = unpack(html), unpack(page.html)
    assert structure(kept) == structure(made)
    assert outputs(kept) == outputs(made)
    found = re.findall(r'<script data-panel="(\w+)">', html)
    assert found == [panel for panel, _ in scripts(page._panels) if panel] != []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_page_opens_every_tab_without_a_request(
    name: str, browser: Any, tmp_path: Path
) -> None:
    """`close` fails if the page complained or asked for anything."""
    page = open_page(browser, (PROGRAM.FOLDER / f"{name}.html").read_text("utf-8"), tmp_path)
    tabs = [node.get_attribute("data-tab") for node in page.locator("[data-tab]").all()]
    assert {"attention", "beam", "lens", "image" if name == "image" else "saliency"} <= set(tabs)
    for tab in tabs:
        page.tab(tab)
        assert page.locator(".failed").count() == 0, tab
    page.close()
