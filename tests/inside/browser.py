"""A real browser for tests of the page: Debian's chromium, driven by playwright, without a network.

`browser` is a fixture of all tests in this folder (`conftest.py`):

    from tests.inside.browser import open_page

    def test_something(browser, tmp_path):
        page = open_page(browser, html, tmp_path)
        assert page.locator("[data-value]").first.get_attribute("data-value") == "0.5"
        page.close()

`open_page` waits until the page is drawn. `page.complaints` has what the console and the page
complained about, `page.asked` every request that was made (all are refused, except the file
itself); `close()` of a page that complained or asked for anything fails the test.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.inside.page.look import Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PLACES = ("left", "top", "cell")
VALUES = "(nodes) => nodes.map((node) => Number(node.dataset.value))"
"""The numbers that elements stand for, in one question to the browser."""

MISSING = (
    "BROWSER TESTS SKIPPED: no chromium on this machine. `make test` installs it where apt-get "
    "may; or set CHROMIUM=/path/to/chromium."
)


def chromium() -> str | None:
    """Where the browser is: $CHROMIUM, or the first known name on the path."""
    given = os.environ.get("CHROMIUM")
    return given or next((path for path in map(shutil.which, NAMES) if path), None)


@functools.cache
def launched(path: str) -> Any:
    """One browser for a process: playwright allows no second one beside it."""
    from playwright.sync_api import sync_playwright

    driver = sync_playwright().start()
    # A microphone that beeps, for pages that ask for one.
    beeps = "--use-fake-device-for-media-stream"
    opened = driver.chromium.launch(
        executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", beeps]
    )

    def stop() -> None:
        opened.close()
        driver.stop()

    atexit.register(stop)
    return opened


@pytest.fixture(scope="session")
def browser() -> Any:
    """A browser; without one the tests are skipped, loudly."""
    path = chromium()
    if path is None:
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # a line in the summary, not an error
            warnings.warn(MISSING, UserWarning, stacklevel=1)
        pytest.skip(MISSING)
    return launched(path)


def page(
    title: str,
    looks: Sequence[dict[str, Any]],
    shared: dict[str, Any] | None = None,
    *,
    run: dict[str, Any] | None = None,
    live: bool = False,
) -> str:
    """The HTML of a page with these looks."""
    made = Page(title, list(looks), shared or {}, run or {})
    return made.live_html if live else made.html


class OpenPage:
    """A playwright page (every attribute of it is here) that remembers complaints and requests."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.listeners: dict[str, Callable[[Any], None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def tab(self, name: str) -> None:
        """Goes to a tab and waits until it is drawn."""
        self.page.locator(f"[data-tab={name}]").click()
        self.page.wait_for_selector(f"#root[data-drawn={name}]")

    def values(self, selector: str) -> list[float]:
        """The numbers that elements stand for."""
        found: list[float] = self.page.locator(selector).evaluate_all(VALUES)
        return found

    def click_cell(self, selector: str, row: int, column: int) -> None:
        """Clicks a cell of a heatmap."""
        canvas = self.page.locator(selector)
        left, top, cell = (float(canvas.get_attribute(f"data-{name}")) for name in PLACES)
        at = {"x": left + (column + 0.5) * cell, "y": top + (row + 0.5) * cell}
        canvas.click(position=at)

    def state(self) -> dict[str, str]:
        """What stands in the `#` of the address."""
        hashed = self.page.evaluate("location.hash.slice(1)")
        return dict(part.split("=", 1) for part in hashed.split("&") if part)

    def close(self) -> None:
        """Leaves it for the next test."""
        self.page.evaluate("0")  # what the page still has to say comes before the answer
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        self.page.context.unroute_all()
        self.page.mouse.move(-1, -1)
        IDLE.append(self.page)
        assert self.complaints == []
        assert self.asked == []

    def listen(self, event: str, listener: Callable[[Any], None]) -> None:
        self.listeners[event] = listener
        self.page.on(event, listener)


IDLE: list[Any] = []
"""Pages of the browser that their tests have closed. A new one costs twice what a page of ours
takes to be drawn; ours keep nothing but what is in their address."""


def open_page(
    browser: Any,
    html: str,
    folder: Path,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    state: str = "",
) -> OpenPage:
    """The page from a file, with every request refused and recorded. `state` is put after `#`."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    address = file.resolve().as_uri()
    page = OpenPage(IDLE.pop() if IDLE else browser.new_page(accept_downloads=True))
    if page.url.split("#")[0] == address:
        page.goto("about:blank")  # another `#` alone would not load it again
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(media="null", color_scheme="dark" if dark else "light")
    page.context.set_default_timeout(120_000)  # milliseconds; other work may hold all cores

    def block(route: Any) -> None:
        if route.request.url.split("#")[0] == address or route.request.url.startswith("data:"):
            route.continue_()
        else:
            page.asked.append(route.request.url)
            route.abort()

    def complain(said: Any) -> None:
        if said.type in ("error", "warning"):
            page.complaints.append(said.text)

    page.context.route("**/*", block)
    page.listen("pageerror", lambda error: page.complaints.append(str(error)))
    page.listen("console", complain)
    page.goto(address + ("#" + state if state else ""))
    page.wait_for_selector("#root[data-drawn], .failed")
    return page
