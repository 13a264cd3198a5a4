"""How large the pages of `headway look` are, and how quick they are in a real browser.

`python -m benchmarks.page`. It opens pages from disk in chromium and times the page's own drawing:
opening (from the address to the first picture), a tab (from the click until the next frame), and
hovering a row of the large map (from the pointer's event until everything is drawn again).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import save
from headway.inside.capture.streams import Reading, Stream
from headway.inside.capture.trace import Trace
from headway.inside.page.look import Looked, Page, look
from headway.inside.page.sections import SECTIONS, look_of
from headway.web.html import scripts
from tests.inside.browser import chromium, launched

DRAW = """async (tab) => {
  const begun = performance.now();
  document.querySelector(`[data-tab=${tab}]`).click();
  const drawn = performance.now();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return [drawn - begun, performance.now() - begun];
}"""

HOVER = """(count) => {
  const canvas = document.querySelector(".map canvas"), box = canvas.getBoundingClientRect();
  const [left, top, cell] = ["left", "top", "cell"].map((name) => Number(canvas.dataset[name]));
  const rows = Math.floor((box.height - top) / cell), times = [];
  for (let i = 0; i < count; i++) {
    const clientX = box.left + left + cell * (0.5 + (7 * i) % rows);
    const clientY = box.top + top + cell * (0.5 + (11 * i) % rows);
    const begun = performance.now();
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
    times.push(performance.now() - begun);
  }
  return times;
}"""


def invented(layers: int, heads: int, tokens: int) -> Trace:
    """Attention as trained models have it: most of the weight on a few tokens."""
    generator = torch.Generator().manual_seed(0)
    weights = [
        (2 * torch.randn(heads, tokens, tokens, generator=generator)).softmax(-1)
        for _ in range(layers)
    ]
    places = tuple(range(tokens))
    stream = Stream("text", places, tuple(f"w{i}" for i in places), places, (False,) * tokens)
    return Trace(Reading("invented", "complete", {"text": stream}, ()), {"self": weights})


def page_of(trace: Trace) -> str:
    shown = look_of("one", Looked(trace=trace), ("overview", "attention"))
    return Page("invented", [shown], {}, {}).html


def measure(browser: Any, html: str, rounds: int) -> dict[str, Any]:
    """Medians over fresh pages, in milliseconds."""
    opened, drawn, shown, hovered = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(html, encoding="utf-8")
        for _ in range(rounds):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            begun = time.perf_counter()
            tab.goto(file.as_uri())
            tab.wait_for_selector("#root[data-drawn]")
            opened.append(1000 * (time.perf_counter() - begun))
            one, two = tab.evaluate(DRAW, "attention")
            drawn.append(one)
            shown.append(two)
            hovered += tab.evaluate(HOVER, 100)
            tab.close()
    hovered.sort()
    return {
        "bytes": len(html.encode()),
        "open_ms": statistics.median(opened),
        "draw_attention_ms": statistics.median(drawn),
        "draw_attention_until_frame_ms": statistics.median(shown),
        "hover_ms": statistics.median(hovered),
        "hover_99_of_100_ms": hovered[int(0.99 * len(hovered))],
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="of the largest page")
    parser.add_argument("--sentence", default="Der alte Mann liest ein Buch.", help="to translate")
    args = parser.parse_args(words)
    path = chromium()
    assert path is not None, "no chromium here: see `make browser`"
    texts = [text for _, text in scripts(SECTIONS)]
    found: dict[str, Any] = {"script_bytes": sum(len(text.encode()) for text in texts)}
    pages = {
        f"{layers} × {heads} heads, {n} tokens": page_of(invented(layers, heads, n))
        for layers, heads, n in ((24, 16, args.tokens), (12, 12, args.tokens // 2))
    }
    pages |= {
        "tatoeba-de-en, all panels": look("tatoeba-de-en", args.sentence).html,
    }
    browser = launched(path)
    found["chromium"] = browser.version
    for name, html in pages.items():
        found[name] = measure(browser, html, args.rounds)
        print(name, {key: round(value, 2) for key, value in found[name].items()}, flush=True)
    print(f"script: {found['script_bytes']:,} bytes")
    print(save("page", torch.device("cpu"), found))


if __name__ == "__main__":
    main()
