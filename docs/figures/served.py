"""Images of the page of `headway serve`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .browser import pixels_of
from .panels import GERMAN


def translator(browser: Any, text: str = GERMAN) -> NDArray[np.uint8]:
    """The page of `headway serve`, with an answer."""
    import headway
    from headway.serve.application import create_app
    from headway.serve.server import running

    with running(create_app([headway.load("tatoeba-de-en", device="cpu")])) as url:
        page = browser.new_page(viewport={"width": 900, "height": 640}, device_scale_factor=2)
        page.goto(f"{url}/")
        page.fill("[data-serve=input]", text)
        page.click("summary")
        page.fill("[data-option=n_best]", "3")
        page.click("[data-serve=go]")
        page.wait_for_selector("[data-serve=text]")
        page.click("summary >> nth=0")
        page.wait_for_timeout(200)
        clip = {"x": 0, "y": 0, "width": 900, "height": 640}
        taken = page.screenshot(full_page=True, clip=clip)
        page.close()
    blank = browser.new_page()  # our page lets nothing be evaluated, nor fetched from elsewhere
    pixels_YXC = pixels_of(blank, taken)
    blank.close()
    return pixels_YXC


FIGURES = {"readme-serve": translator}
