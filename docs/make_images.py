"""Make the images of the documentation: panels of `headway look` pages of the shipped models, and
curves of what benchmarks measured.

    .venv/bin/python docs/make_images.py [NAME …]

It needs playwright and chromium ($CHROMIUM, or one on the path). Images are light, at twice the
size of the screen, and have 256 colours at most, so that they stay small.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGES = Path(__file__).parent / "images"
GERMAN = "Ich habe gestern ein altes Buch gelesen."
STORY = "Once upon a time, there was a little girl named Lily. She loved to play in the garden."
KITE = "Tom was sad because his kite was stuck in the tall tree."
DOG = "Ein Hund hat ihr ins Bein gebissen."
MARGIN, COLOURS = 10, 256


@dataclass(frozen=True)
class Image:
    name: str
    run: str
    text: str
    view: str
    """The state of the page, as behind the `#` of its address."""

    parts: tuple[str, ...]
    """What is to be seen: the smallest box around these elements."""

    width: int = 760
    below: int = MARGIN
    new: int = 24
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def page(self) -> tuple[object, ...]:
        """Images with the same one come from one page."""
        return self.run, self.text, self.new, str(self.extras)


def card(number: int) -> str:
    return f".card >> nth={number - 1}"


def steps(first: int, last: int) -> tuple[str, ...]:
    return tuple(f".step >> nth={number - 1}" for number in range(first, last + 1))


HABE = {"walk": ("encoder", 1, 1, 1)}
TABLE = (
    Image("01-soft-lookup", "tatoeba-de-en", GERMAN,
            "tab=attention&kind=cross&layer=1&head=1&row=5", (card(2),), width=820),
    Image("02-queries-keys-values", "tatoeba-de-en", GERMAN, "tab=walk", steps(3, 5), below=0,
            extras=HABE),
    Image("03-why-one-over-root-d", "tatoeba-de-en", GERMAN, "tab=walk", steps(6, 7), below=0,
            extras=HABE),
    Image("04-many-heads", "stories", STORY, "tab=attention&kind=self&layer=2&head=0",
            (card(1),), width=480),
    Image("05-order-and-positions", "tatoeba-en-de", "The dog bites the man.", "tab=positions",
            (card(1),)),
    Image("06-masks", "stories", "The cat sat on the mat and slept.",
            "tab=attention&kind=self&layer=2&head=0&row=7", (card(2),), width=820, new=1),
    Image("07-cross-attention", "tatoeba-de-en", GERMAN,
            "tab=attention&kind=cross&layer=0&head=1&row=1", (card(2),), width=820),
    Image("08-residuals-and-norms", "stories", KITE, "tab=lens&row=12", (card(1),), width=700,
            new=1),
    Image("09-all-positions-at-once", "stories",
            "Once upon a time, there was a little girl with a purple nose.",
            "tab=overview&overview_item=10", (card(1),), new=1),
    Image("10-decoding-and-beams", "tatoeba-de-en", DOG, "tab=beam", (card(1),), width=900),
    Image("readme-attention", "tatoeba-de-en", GERMAN,
            "tab=attention&kind=cross&layer=1&head=3&row=1", (card(1),), width=960),
    Image("readme-beam", "tatoeba-de-en", DOG, "tab=beam&beamShow=kept", (card(1),), width=960),
    Image("readme-lens", "stories", "The little dog was hungry. He wanted to", "tab=lens",
            (card(1),), width=700, new=8),
    Image("look-ngrams", "runs/sst", "the plot is not good but the acting is wonderful",
            "tab=ngrams", (card(1), card(2)), width=820, extras={"checkpoints": False}),
)  # fmt: skip
"""Without names, images of a run in a folder are made if it is there. `docs/look/page.md` has the
command that trains it."""


CURVES = "few-texts"
"""The curves of this result: `benchmarks/results/few-texts-cpu.json`."""

LINES = {
    "tuned": ("base-en, tuned", "#1f5fbf"),
    "neighbours": ("neighbours of base-en's vectors", "#c2571a"),
    "tf-idf": ("tf-idf, logistic regression", "#767676"),
}


GROWTH = {"bodies": "cuda", "bodies-cpu": "growth-cpu"}
"""Images of the growth with length, and the device of the result that each is drawn from."""

BODIES = {
    "transformer": "#2a62c9",
    "transformer, written out": "#8fb0ea",
    "lstm": "#c2571a",
    "gru": "#d9a441",
    "convolution": "#3a8f4d",
    "sha-rnn": "#7a4fb5",
}
"""Lines of the growth with length, and their colours."""

SERVED = "readme-serve"
"""The page of `headway serve`, with an answer."""


def served(browser: Any) -> NDArray[np.uint8]:
    import headway
    from headway.serve.application import create_app
    from headway.serve.server import running

    with running(create_app([headway.load("tatoeba-de-en", device="cpu")])) as url:
        page = browser.new_page(viewport={"width": 900, "height": 640}, device_scale_factor=2)
        page.goto(f"{url}/")
        page.fill("[data-serve=input]", GERMAN)
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


def main(names: list[str]) -> None:
    chosen = [
        image for image in TABLE
        if image.name in names
        or (not names and ("/" not in image.run or Path(image.run).is_dir()))
    ]  # fmt: skip
    results = IMAGES.parents[1] / f"benchmarks/results/{CURVES}-cpu.json"
    with_curves = (not names or CURVES in names) and results.is_file()
    IMAGES.mkdir(exist_ok=True)
    with browsing() as browser, tempfile.TemporaryDirectory() as folder:
        pages: dict[tuple[object, ...], Path] = {}
        for image in chosen:
            if image.page not in pages:
                pages[image.page] = Path(folder) / f"{len(pages)}.html"
                write_page(image, pages[image.page])
            put(image.name, shot(browser, image, pages[image.page]))
        if not names or SERVED in names:
            put(SERVED, served(browser))
        if with_curves:
            page = Path(folder) / "curves.html"
            page.write_text(curves(json.loads(results.read_text())["sets"]), "utf-8")
            put(CURVES, shot(browser, Image(CURVES, "", "", "", ("svg",)), page))
        for name, device in GROWTH.items():
            result = IMAGES.parents[1] / f"benchmarks/results/bodies-{device}.json"
            grown = json.loads(result.read_text())["growth"] if result.is_file() else {}
            if grown and (not names or name in names):
                page = Path(folder) / f"{name}.html"
                page.write_text(growth(grown), "utf-8")
                put(name, shot(browser, Image(name, "", "", "", ("svg",), width=900), page))


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


def curves(sets: dict[str, Any], width: int = 220, height: int = 150, columns: int = 3) -> str:
    """A page with a panel for each set: per cent right over labels a class, the spread as a bar."""
    parts = []
    for number, (name, found) in enumerate(sets.items()):
        left = (number % columns) * (width + 44) + 30
        top = (number // columns) * (height + 56) + 26
        parts.append(
            f'<g transform="translate({left} {top})">{panel(name, found, width, height)}</g>'
        )
    below = -(-len(sets) // columns) * (height + 56) + 20
    for number, (label, colour) in enumerate(LINES.values()):
        x = 30 + 245 * number
        parts.append(f'<path d="M{x} {below}h22" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="{below + 4}">{label}</text>')
    size = f'width="{columns * (width + 44) + 20}" height="{below + 16}"'
    style = "font: 12px sans-serif; background: white"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{"".join(parts)}</svg>'


def panel(name: str, found: dict[str, Any], width: int, height: int) -> str:
    numbers = [int(n) for n in found["scores"]]
    across = {n: (i + 0.5) * width / len(numbers) for i, n in enumerate(sorted(numbers))}
    parts = [f'<text x="0" y="-9" font-weight="bold">{name}, {found["labels"]} labels</text>']
    for percent in range(0, 101, 25):
        y = height * (1 - percent / 100)
        parts.append(f'<path d="M0 {y}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="-6" y="{y + 4}" text-anchor="end" fill="#555">{percent}</text>')
    for n, x in across.items():
        parts.append(f'<text x="{x}" y="{height + 17}" text-anchor="middle" fill="#555">{n}</text>')
    for system, (_, colour) in LINES.items():
        points = []
        for n, x in across.items():
            if system in found["scores"][str(n)]:
                value = found["scores"][str(n)][system]
                y, spread = (height * z / 100 for z in (100 - value["mean"], value["deviation"]))
                points.append(f"{x:.1f},{y:.1f}")
                parts.append(
                    f'<path d="M{x:.1f} {y - spread:.1f}v{2 * spread:.1f}" stroke="{colour}"/>'
                )
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        line = f'fill="none" stroke="{colour}" stroke-width="2.5"'
        parts.append(f'<polyline points="{" ".join(points)}" {line}/>')
    return "".join(parts)


def growth(found: dict[str, Any], width: int = 300, height: int = 230) -> str:
    """A page with two panels, time and memory of a step over the length, both axes by powers."""
    parts = []
    panels = (("seconds", "milliseconds", 1e3), ("bytes", "MB", 1e-6))
    for number, (key, unit, scale) in enumerate(panels):
        lines = {body: {int(n): one[key] * scale for n, one in found[body].items()}
                 for body in BODIES if body in found}  # fmt: skip
        inner = growth_panel(f"{unit} of a step", lines, width, height)
        parts.append(f'<g transform="translate({60 + number * (width + 80)} 28)">{inner}</g>')
    below = height + 72
    shown = [(body, colour) for body, colour in BODIES.items() if body in found]
    for number, (body, colour) in enumerate(shown):
        x = 60 + 100 * number + 70 * (number > 1)
        parts.append(f'<path d="M{x} {below}h22" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="{below + 4}">{body}</text>')
    size = f'width="{2 * (width + 80) + 20}" height="{below + 16}"'
    style = "font: 12px sans-serif; background: white"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{"".join(parts)}</svg>'


def growth_panel(title: str, lines: dict[str, dict[int, float]], width: int, height: int) -> str:
    lengths = sorted({n for line in lines.values() for n in line})
    values = [value for line in lines.values() for value in line.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    span = max(1.0, math.log2(lengths[-1] / lengths[0]))

    def at(n: int, value: float) -> tuple[float, float]:
        across = math.log2(n / lengths[0]) / span
        return across * width, height * (1 - (math.log10(value) - low) / max(1, high - low))

    parts = [f'<text x="0" y="-10" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        y = at(lengths[0], 10.0**power)[1]
        parts.append(f'<path d="M0 {y:.1f}h{width}" stroke="#ddd"/>')
        label = f"{10.0**power:,.10g}"
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end" fill="#555">{label}</text>')
    for number, n in enumerate(lengths):
        x = at(n, 10.0**low)[0]
        if len(lengths) > 5 and number % 2:
            continue  # there is no room for all
        parts.append(
            f'<text x="{x:.1f}" y="{height + 17}" text-anchor="middle" fill="#555">{n}</text>'
        )
    parts.append(f'<text x="{width / 2}" y="{height + 34}" text-anchor="middle">tokens</text>')
    for body, line in lines.items():
        points = " ".join("{:.1f},{:.1f}".format(*at(n, line[n])) for n in sorted(line))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{BODIES[body]}" stroke-width="2.5"/>'
        )
    return "".join(parts)


def write_page(image: Image, path: Path) -> None:
    from headway.inside.capture.reading import GenerationOptions
    from headway.inside.page.look import look

    look(image.run, image.text, GenerationOptions(max_new_tokens=image.new), **image.extras).save(
        path
    )


def shot(browser: Any, image: Image, path: Path) -> NDArray[np.uint8]:
    """The pixels (height × width × red, green, blue) of the elements of an image."""
    size = {"width": image.width, "height": 800}
    page = browser.new_page(viewport=size, device_scale_factor=2, color_scheme="light")
    page.goto(f"{path.as_uri()}#{image.view}")
    page.wait_for_selector(image.parts[0])
    page.wait_for_timeout(500)
    page.add_style_tag(content=".menu { visibility: hidden }")
    boxes = [page.locator(part).bounding_box() for part in image.parts]
    left = max(0, min(box["x"] for box in boxes) - MARGIN)
    top = max(0, min(box["y"] for box in boxes) - MARGIN)
    right = max(box["x"] + box["width"] for box in boxes) + MARGIN
    bottom = max(box["y"] + box["height"] for box in boxes) + image.below
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
    found_UC, inverse, counts = np.unique(
        pixels_YXC.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True
    )
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


if __name__ == "__main__":
    main(sys.argv[1:])
