"""Images of `headway serve`: its page, its output and its measurements."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headway
from headway.serve.application import create_app
from headway.serve.server import running
from headway.settings.folder import SHIPPED

from .browser import ROOT, console, pixels_of
from .curves import RESULTS, drawn
from .panels import GERMAN

SHOWN_AS = "http://127.0.0.1:8080"
"""Address in images. The server of an image listens on any free port."""

WATCHED = ("requests_total", "request_seconds_sum", "request_seconds_count", "tokens_total")
"""Metrics in the image, without the prefix `headway_`."""

OURS = "#2a62c9"
PEERS = ("#c2571a", "#d9a441", "#767f8f")
"""Colours of other servers, in the order of the results."""


# The page


def page_of(
    browser: Any, models: Sequence[str], act: Callable[[Any], None], width: int, height: int
) -> NDArray[np.uint8]:
    """The page of a server of these models, after `act` used it."""
    runs = [headway.load(name, device="cpu") for name in models]
    with running(create_app(runs)) as url:
        page = browser.new_page(
            viewport={"width": width, "height": height}, device_scale_factor=2, color_scheme="light"
        )
        page.goto(f"{url}/")
        act(page)
        page.wait_for_timeout(300)
        taken = page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height})
        page.close()
    blank = browser.new_page()  # the page itself may fetch nothing
    pixels_YXC = pixels_of(blank, taken)
    blank.close()
    return pixels_YXC


def translator(browser: Any, text: str = GERMAN) -> NDArray[np.uint8]:
    """A translation with its alternatives."""

    def act(page: Any) -> None:
        page.fill("[data-serve=input]", text)
        page.click("summary")
        page.fill("[data-option=n_best]", "3")
        page.click("[data-serve=go]")
        page.wait_for_selector("[data-serve=text]")
        page.click("summary >> nth=0")

    return page_of(browser, ["tatoeba-de-en"], act, 900, 640)


def transcriber(browser: Any) -> NDArray[np.uint8]:
    """A recording that was uploaded, with its transcript and the time of each word."""

    def act(page: Any) -> None:
        page.set_input_files("[data-serve=file]", SHIPPED / "digits" / "example.wav")
        page.click("[data-serve=go]")
        page.wait_for_selector("[data-serve=text]")

    return page_of(browser, ["digits", "tatoeba-de-en"], act, 900, 662)


def api(browser: Any) -> NDArray[np.uint8]:
    """The tab with the routes, one of them open."""

    def act(page: Any) -> None:
        page.click("text=API")
        page.wait_for_selector("[data-serve=openapi]")

    return page_of(browser, ["tatoeba-de-en", "stories"], act, 900, 640)


# Terminals


def started(browser: Any) -> NDArray[np.uint8]:
    """The command that starts a server, and what it prints."""
    command = "headway serve tatoeba-de-en stories digits"
    words = [sys.executable, "-m", *command.split(), "--port", "0", "--device", "cpu"]
    lines: list[str] = []
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stderr
        for line in server.stderr:
            lines.append(re.sub(r"http://127\.0\.0\.1:\d+", SHOWN_AS, line.rstrip()))
            if "browser" in line:
                break
        server.terminate()
    return console(browser, [(command, lines)], width=820)


def metrics(browser: Any) -> NDArray[np.uint8]:
    """Counters of a server that was used, and the error of a request that it rejected."""
    with running(create_app([headway.load("tatoeba-de-en", device="cpu")])) as url:
        for text in ("Guten Morgen.", "Wo wohnst du?", "Danke."):
            post(url, {"input": text})
        rejected = post(url, {"input": "Ja.", "options": {"beam": 99}})
        post(url, {"input": "Ja.", "model": "nowhere"})
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            found = answer.read().decode().splitlines()
    kept = [line for line in found if re.match(rf"headway_({'|'.join(WATCHED)})", line)]
    asked = json.dumps({"input": "Ja.", "options": {"beam": 99}})
    header = "-H 'Content-Type: application/json'"
    return console(
        browser,
        [
            (f"curl {SHOWN_AS}/v1/predict {header} \\\n    -d '{asked}'", [rejected, ""]),
            (f"curl {SHOWN_AS}/metrics | grep -E \\\n    '{'|'.join(WATCHED)}'", kept),
        ],
        width=800,
    )


def post(url: str, body: dict[str, Any]) -> str:
    """The response to a request to `/v1/predict`, an error too."""
    request = urllib.request.Request(
        f"{url}/v1/predict", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


# Measurements


def throughput(browser: Any) -> NDArray[np.uint8]:
    """Tokens per second of 1, 8 and 64 clients, beside other servers, with mixed lengths."""
    found = json.loads((RESULTS / "serve-cpu.json").read_text("utf-8"))
    panels = [
        ("decoder-mixed", "a decoder of GPT-2's size"),
        ("translator-mixed", "a translator of transformer-base's size"),
    ]
    body = "".join(
        f'<g transform="translate({14 + 400 * number} 30)">'
        f"{bars(title, found[part]['servers'])}</g>"
        for number, (part, title) in enumerate(panels)
    )
    style = "font: 12px sans-serif; background: white"
    return drawn(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="316" style="{style}">{body}'
        "</svg>",
        browser,
    )


def bars(title: str, servers: dict[str, Any]) -> str:
    """SVG of one panel: for each number of clients a bar per server."""
    names = list(servers)
    most = max(servers[name][n]["tokens_per_s"] for name in names for n in servers[name])
    parts = [f'<text x="0" y="-10" font-weight="bold">{title}, tokens per second</text>']
    y = 0
    colours = dict(zip(names, (OURS, *PEERS), strict=False))
    for clients in servers[names[0]]:
        label = f"{clients} client{'s' * (clients != '1')}"
        parts.append(f'<text x="58" y="{y + 13}" text-anchor="end">{label}</text>')
        for name, colour in colours.items():
            value = servers[name][clients]["tokens_per_s"]
            width = 250 * value / most
            parts.append(
                f'<rect x="64" y="{y + 2}" width="{width:.1f}" height="13" fill="{colour}"/>'
                f'<text x="{70 + width:.1f}" y="{y + 13}" fill="#556070">{value:.0f}</text>'
            )
            y += 16
        y += 10
    for number, (name, colour) in enumerate(colours.items()):
        at = y + 10 + 16 * number
        parts.append(
            f'<rect x="64" y="{at - 9}" width="10" height="10" fill="{colour}"/>'
            f'<text x="80" y="{at}">{name}</text>'
        )
    return "".join(parts)


FIGURES = {
    "serve-start": started,
    "serve-transcribe": transcriber,
    "serve-api": api,
    "serve-metrics": metrics,
    "serve-throughput": throughput,
}
