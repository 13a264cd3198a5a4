"""Screenshots: a browser, parts of a page as pixels, pixels as a small PNG file."""

from __future__ import annotations

import base64
import html
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
MARGIN, COLOURS = 10, 256


@dataclass(frozen=True)
class View:
    """What of a page an image shows."""

    parts: tuple[str, ...]
    """Selectors of elements: the image is the smallest box around them."""

    width: int = 760
    """Width of the window in CSS pixels; images have twice as many."""

    state: str = ""
    """The state of the page, as after the `#` of its address."""

    below: int = MARGIN

    around: int = MARGIN
    """Margin at the other sides."""


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1b2330; margin: 0; background: white }
.card { display: inline-block; box-sizing: border-box; max-width: 740px; padding: 16px 20px;
  border: 1px solid #d5dbe5; border-radius: 10px }
h1 { font-size: 15px; margin: 0 0 10px } h2 { font-size: 13px; margin: 14px 0 4px; color: #556070 }
code, td, th, .token { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace }
table { border-collapse: collapse } td, th { padding: 2px 12px 2px 0; text-align: left }
th { color: #556070; font-weight: normal } tr.followed td { background: #fff3c4 }
.token { display: inline-block; padding: 2px 6px; margin: 0 4px 4px 0; border-radius: 5px;
  text-align: center } .token small { display: block; color: #556070; font-size: 11px }
.note { color: #556070; font-size: 13px; margin: 8px 0 0 }
.column { writing-mode: vertical-rl; transform: rotate(180deg); font-size: 12px; padding: 4px 0 }
.bar { display: inline-block; height: 14px; background: #2a62c9; vertical-align: middle }
.terminal { background: #10151f; color: #e6e9ef; border: 0 }
.terminal pre { font: 13px/1.45 "DejaVu Sans Mono", ui-monospace, monospace; margin: 0;
  white-space: pre-wrap }
.terminal .prompt { color: #7fb4ff }
"""


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def put(name: str, pixels_YXC: NDArray[np.uint8]) -> None:
    place = IMAGES / f"{name}.png"
    place.write_bytes(png(pixels_YXC))
    size = place.stat().st_size / 1000
    sys.stdout.write(f"{place.name}: {pixels_YXC.shape[1]} × {len(pixels_YXC)}, {size:.0f} kB\n")


def card(browser: Any, body: str, *, kind: str = "", width: int = 780) -> NDArray[np.uint8]:
    """The pixels of a card with this HTML."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "card.html"
        page.write_text(
            f'<meta charset="utf-8"><style>{STYLE}</style><div class="card {kind}">{body}</div>',
            "utf-8",
        )
        return shot(browser, page, View((".card",), width=width, below=0, around=0))


def terminal(
    browser: Any, command: str, *, text: str = "", cwd: Path = ROOT, columns: int = 88,
    lines: slice = slice(None), width: int = 780,
) -> NDArray[np.uint8]:  # fmt: skip
    """The pixels of a terminal with a `headway` command and what it printed.

    Args:
        text: what the command reads from stdin.
        lines: which of the printed lines are shown.
    """
    typed = f'echo "{text.strip()}" | {command}' if text else command
    printed = output(command, text=text, cwd=cwd, columns=columns)[lines]
    return console(browser, [(typed, printed)], width=width)


def output(
    command: str, *, text: str = "", cwd: Path = ROOT, columns: int = 88, code: int = 0
) -> list[str]:
    """Run a `headway` command and return its lines: those of stderr, then those of stdout.

    Args:
        code: the exit code that the command must have.
    """
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], input=text, capture_output=True, text=True,
        cwd=cwd, env={**os.environ, "COLUMNS": str(columns)}, check=False,
    )  # fmt: skip
    if done.returncode != code:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr}")
    return (done.stderr + done.stdout).rstrip().splitlines()


def console(
    browser: Any, session: Iterable[tuple[str, Sequence[str]]], *, width: int = 780
) -> NDArray[np.uint8]:
    """The pixels of a terminal with these commands, each with the lines below it."""
    body = "\n".join(
        f'<span class="prompt">$</span> {html.escape(typed)}\n' + html.escape("\n".join(lines))
        for typed, lines in session
    )
    return card(browser, f"<pre>{body}</pre>", kind="terminal", width=width)


def shot(browser: Any, path: Path, view: View) -> NDArray[np.uint8]:
    """The pixels (height × width × red, green, blue) of parts of a page."""
    size = {"width": view.width, "height": 800}
    page = browser.new_page(viewport=size, device_scale_factor=2, color_scheme="light")
    page.goto(f"{path.as_uri()}#{view.state}")
    page.wait_for_selector(view.parts[0])
    page.wait_for_timeout(500)
    page.add_style_tag(content=".menu { visibility: hidden }")
    boxes = [page.locator(part).bounding_box() for part in view.parts]
    left = max(0, min(box["x"] for box in boxes) - view.around)
    top = max(0, min(box["y"] for box in boxes) - view.around)
    right = max(box["x"] + box["width"] for box in boxes) + view.around
    bottom = max(box["y"] + box["height"] for box in boxes) + view.below
    clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    taken = page.screenshot(clip=clip, full_page=True)
    page.goto("about:blank")  # the page itself may fetch nothing, not even this
    pixels_YXC = pixels_of(page, taken)
    page.close()
    return pixels_YXC


def pixels_of(page: Any, taken: bytes) -> NDArray[np.uint8]:
    """The browser itself reads the PNG, so that nothing else has to."""
    width, height, data = page.evaluate(
        """async (source) => {
            const image = await createImageBitmap(await (await fetch(source)).blob());
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const bytes = context.getImageData(0, 0, image.width, image.height).data;
            let text = "";
            for (let i = 0; i < bytes.length; i += 32768)
                text += String.fromCharCode(...bytes.subarray(i, i + 32768));
            return [image.width, image.height, btoa(text)];
        }""",
        "data:image/png;base64," + base64.b64encode(taken).decode(),
    )
    flat = np.frombuffer(base64.b64decode(data), np.uint8)
    return flat.reshape(height, width, 4)[:, :, :3]


def png(pixels_YXC: NDArray[np.uint8]) -> bytes:
    """A PNG with a palette: every colour becomes the nearest of 256."""
    height, width, _ = pixels_YXC.shape
    # One number per colour: sorting rows of three takes 28 times as long.
    code_N = pixels_YXC.reshape(-1, 3).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    code_U, inverse, counts = np.unique(code_N, return_inverse=True, return_counts=True)
    found_UC = (code_U[:, None] >> np.array([16, 8, 0], np.uint32)).astype(np.uint8)
    palette_PC = palette(found_UC, counts)
    nearest_U = np.concatenate(
        [
            np.square(part[:, None].astype(int) - palette_PC[None].astype(int)).sum(-1).argmin(1)
            for part in np.array_split(found_UC, len(found_UC) // 1000 + 1)
        ]
    )
    index_YX = nearest_U[inverse.reshape(-1)].astype(np.uint8).reshape(height, width)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), index_YX], axis=1)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": palette_PC.tobytes(),
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks.items()
    )


def palette(found_UC: NDArray[np.uint8], counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Median cut: the box of colours with the most spread is halved until there are enough. Of
    each box its commonest colour stays, so that large areas keep theirs exactly."""
    boxes = [np.arange(len(found_UC))]
    while len(boxes) < COLOURS:
        spans = [np.ptp(found_UC[box], axis=0).max() * len(box) ** 0.5 for box in boxes]
        if max(spans) == 0:
            break
        box = boxes.pop(int(np.argmax(spans)))
        box = box[found_UC[box][:, np.ptp(found_UC[box], axis=0).argmax()].argsort(kind="stable")]
        boxes += [box[: len(box) // 2], box[len(box) // 2 :]]
    return np.stack([found_UC[box[counts[box].argmax()]] for box in boxes])
