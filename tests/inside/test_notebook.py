"""A page in a notebook: a frame of its own, however many there are, that can reach nothing."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from headway.inside.page.look import Page, look

from ..interop.padded_runs import tiny_run
from .browser import browser as browser


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return look(tiny_run(tmp_path_factory.mktemp("runs") / "lm", "complete"), 'ba de "fi" <b>')


def test_it_is_one_sandboxed_frame_that_holds_the_page(made: Page) -> None:
    shown = made._repr_html_()
    sandbox = re.search(r'sandbox="([^"]*)"', shown)
    assert sandbox is not None
    assert sorted(sandbox[1].split()) == ["allow-downloads", "allow-scripts"]
    inside = re.search(r'srcdoc="([^"]*)"', shown)
    assert inside is not None
    assert html.unescape(inside[1]) == made.html
    assert shown.count("<") == 2  # the frame and its end: nothing of the page is outside


def test_two_on_one_page_share_nothing(browser: Any, made: Page, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{made._repr_html_()}{made._repr_html_()}")
    context = browser.new_context(viewport={"width": 1000, "height": 1600})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    first, second = (page.frame_locator("iframe").nth(number) for number in (0, 1))
    for frame in (first, second):
        frame.locator("#root[data-drawn=overview]").wait_for()
    first.locator("[data-tab=attention]").click()
    first.locator("#root[data-drawn=attention]").wait_for()
    assert second.locator("#root").get_attribute("data-drawn") == "overview"
    assert page.locator("[id]").count() == 0  # ids live in the frames alone
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "about:", "data:", "blob:"))] == []
