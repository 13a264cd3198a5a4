"""How large pages of `headway look` and reports are, and how quick they are in a real browser.

`python -m benchmarks.page`. It opens pages from disk in chromium and times the page's own drawing:
opening (from the address to the first image), a tab (from the click until the next frame), and
hovering a row of the large map (from the pointer's event until everything is drawn again). Of a
report also how long Python takes to write it, which a run does after evaluations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import save
from headway.inside.capture.streams import Reading, TokenStream
from headway.inside.capture.trace import Trace
from headway.inside.page.look import LookInputs, Page, look
from headway.inside.page.sections import SECTIONS, look_data
from headway.tasks.history import LOG
from headway.training.report import write_report
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
    stream = TokenStream("text", places, tuple(f"w{i}" for i in places), places, (False,) * tokens)
    return Trace(Reading("invented", "complete", {"text": stream}, ()), {"self": weights})


def page_of(trace: Trace) -> str:
    shown = look_data("one", LookInputs(trace=trace), ("overview", "attention"))
    return Page("invented", [shown], {}, {}).html


def long_run(folder: Path, steps: int) -> None:
    """What a run of so many logged steps writes of itself, with a hundred evaluations."""
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        known = {"loss": 9 / step, "nll": 8 / step, "lr": 1e-3, "grad_norm": 1.0}
        lines.append({"kind": "train", "step": step, "tokens_per_s": 1e5, **known})
        if step % max(1, steps // 100) == 0:
            lines.append({"kind": "valid", "step": step, "loss": 8 / step, "bleu": 30.0})
    (folder / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))


def measure_report(browser: Any, steps: int, rounds: int) -> dict[str, Any]:
    """Written and opened, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        long_run(Path(folder), steps)
        begun = time.perf_counter()
        path = write_report(Path(folder))
        took = 1000 * (time.perf_counter() - begun)
        html = path.read_text(encoding="utf-8")
    return {"write_ms": took, **measure(browser, html, rounds, tab="curves")}


def measure(browser: Any, html: str, rounds: int, tab: str = "attention") -> dict[str, Any]:
    """Medians over fresh pages, in milliseconds."""
    opened, drawn, shown, hovered = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(html, encoding="utf-8")
        for _ in range(rounds):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            begun = time.perf_counter()
            page.goto(file.as_uri())
            page.wait_for_selector("#root[data-drawn]")
            opened.append(1000 * (time.perf_counter() - begun))
            one, two = page.evaluate(DRAW, tab)
            drawn.append(one)
            shown.append(two)
            if tab == "attention":
                hovered += page.evaluate(HOVER, 100)
            page.close()
    found = {
        "bytes": len(html.encode()),
        "open_ms": statistics.median(opened),
        f"draw_{tab}_ms": statistics.median(drawn),
        f"draw_{tab}_until_frame_ms": statistics.median(shown),
    }
    if hovered:
        hovered.sort()
        found["hover_ms"] = statistics.median(hovered)
        found["hover_99_of_100_ms"] = hovered[int(0.99 * len(hovered))]
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="of the largest page")
    parser.add_argument("--steps", type=int, default=20_000, help="that the report is of")
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
    name = f"report of {args.steps:,} logged steps"
    found[name] = measure_report(browser, args.steps, args.rounds)
    for name, html in pages.items():
        found[name] = measure(browser, html, args.rounds)
    for name in [name for name, one in found.items() if isinstance(one, dict)]:
        print(name, {key: round(value, 2) for key, value in found[name].items()}, flush=True)
    print(f"script: {found['script_bytes']:,} bytes")
    print(save("page", torch.device("cpu"), found))


if __name__ == "__main__":
    main()
