"""Bar charts of measured accuracy and speed, drawn from benchmarks/results."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .browser import ROOT
from .curves import drawn

RESULTS = ROOT / "benchmarks" / "results"
OURS, PEER, BASELINE = "#2a62c9", "#c2571a", "#9aa3b0"
"""Colours of headway, of its peers, and of baselines that learn little or nothing."""

WIDTH, NAMES, NUMBERS = 760, 285, 110
"""Widths in pixels: of a chart, of the names of its bars and of the numbers after them."""

LINE, BAR = 22, 14
"""Height of a row, and of the bar in it."""


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    text: str
    colour: str = ""
    """Empty: that of headway for systems of that name, else that of peers."""

    spread: float = 0.0
    """Standard deviation over seeds, drawn as a thin line."""


@dataclass(frozen=True)
class Panel:
    title: str
    bars: Sequence[Bar]
    most: float = 0.0
    """Value at the right end. 0: the largest of the bars."""

    mark: float = 0.0
    """Value at which a vertical line is drawn. 0: none."""


def chart(panels: Sequence[Panel], note: str = "") -> str:
    """The panels one below the other, each with a title and a row per bar."""
    parts: list[str] = []
    y = 8.0
    for panel in panels:
        parts += [
            written(8, y + 14, panel.title, "start", "font-weight='bold'"),
            *rows(panel, y + 26),
        ]
        y += 38 + LINE * len(panel.bars)
    if note:
        parts.append(written(8, y + 8, note, "start", "fill='#556070'"))
        y += 22
    style = "font: 13px system-ui, sans-serif; background: white; fill: #1b2330"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" style="{style}">'
        f"{''.join(parts)}</svg>"
    )


def rows(panel: Panel, top: float) -> list[str]:
    """The bars of a panel with their names and numbers, and its vertical line."""
    parts = []
    scale = (WIDTH - NAMES - NUMBERS) / (panel.most or max(bar.value for bar in panel.bars))
    mark = NAMES + scale * panel.mark
    for number, bar in enumerate(panel.bars):
        middle, end = top + LINE * (number + 0.5), NAMES + scale * bar.value
        colour = bar.colour or (OURS if bar.name.startswith("headway") else PEER)
        parts.append(written(NAMES - 8, middle + 4.5, bar.name, "end"))
        parts.append(
            f'<rect x="{NAMES}" y="{middle - BAR / 2}" width="{end - NAMES:.1f}" height="{BAR}" '
            f'rx="2" fill="{colour}"/>'
        )
        if bar.spread:
            half = scale * bar.spread
            line = f'd="M{end - half:.1f} {middle}h{2 * half:.1f}" stroke="#111"'
            parts.append(f'<path {line} stroke-width="1.5"/>')
            end += half
        # The number is not written across the vertical line.
        parts.append(
            written(max(end, mark if panel.mark else 0) + 7, middle + 4.5, bar.text, "start")
        )
    if panel.mark:
        line = f'd="M{mark:.1f} {top - 3}v{LINE * len(panel.bars) + 5}" stroke="#111"'
        parts.append(f'<path {line} stroke-dasharray="4 3"/>')
    return parts


def written(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(text)}</text>'


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def rates(systems: dict[str, dict[str, float]]) -> dict[str, float]:
    """Speed of each system, the fastest first."""
    units = ("target_tokens_per_s", "tokens_per_s", "images_per_s")
    found = {
        name: next(row[unit] for unit in units if unit in row) for name, row in systems.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def panel(title: str, systems: dict[str, dict[str, float]]) -> Panel:
    """Speeds, with their ratio to the fastest peer."""
    found = rates(systems)
    best = max(rate for name, rate in found.items() if not name.startswith("headway"))
    return Panel(
        title,
        [Bar(name, rate, f"{rate:,.0f}  ({rate / best:.2f}×)") for name, rate in found.items()],
    )


# -- speed

COMPARED = (
    ("Transformer-base trains, H200, CUDA graphs", "train-step-graphs-cuda", ""),
    ("Transformer-base trains, H200, eager", "train-step-base-cuda", "eager"),
    ("ViT-B/16 trains, H200", "vit-speed-cuda", "training"),
    ("ViT-B/16 reads, H200", "vit-speed-cuda", "inference"),
    ("GPT-2 trains, H200", "gpt2-train-cuda", ""),
    ("GPT-2 writes 1 text, H200", "gpt2-decode-cuda", "greedy, batch 1, bf16"),
    ("GPT-2 writes 64 texts, H200", "gpt2-decode-cuda", "greedy, batch 64, bf16"),
    ("Transformer-base translates, H200", "decode-base-cuda", "beam 4, batch 32"),
    ("BERT-base reads, H200", "encode-bert-base-cuda", ""),
    ("small Transformer trains, two cores", "train-step-small-cpu", ""),
    ("GPT-2 writes 1 text, two cores", "gpt2-decode-cpu", "greedy, batch 1, fp32"),
    ("BERT-base reads, two cores", "encode-bert-base-cpu", ""),
    ("Transformer-base translates, two cores", "decode-base-cpu", "beam 4, batch 32"),
    ("BERT-base reads in int8, two cores", "int8-cpu", "BERT-base, ragged sentences"),
)
"""Rows of the overview: its name, a result file, and the case in it, or the kind of systems."""


def overview(browser: Any) -> NDArray[np.uint8]:
    bars = []
    for name, file, case in COMPARED:
        result = read(file)
        rows = result["cases"][case] if "cases" in result else result.get(case, result)["systems"]
        kept = {key: row for key, row in rows.items() if case != "eager" or key.endswith(case)}
        found = rates(kept)
        ours = max(rate for key, rate in found.items() if key.startswith("headway"))
        peer = max(
            (key for key in found if not key.startswith("headway")), key=lambda key: found[key]
        )
        ratio = ours / found[peer]
        colour = OURS if ratio >= 1 else PEER
        known = re.sub(r"(,| eager| compiled).*", "", peer)
        bars.append(Bar(name, ratio, f"{ratio:.2f}×  {known}", colour))
    note = "Dashed: as fast as the fastest peer, which is named after the ratio."
    return drawn(
        chart([Panel("Speed of headway relative to its fastest peer", bars, 3.4, 1.0)], note),
        browser,
    )


def training(browser: Any) -> NDArray[np.uint8]:
    base = {**read("train-step-base-cuda")["systems"], **read("train-step-graphs-cuda")["systems"]}
    return drawn(
        chart([
            panel("Transformer-base: target tokens per second", base),
            panel("GPT-2 124M: tokens per second", read("gpt2-train-cuda")["systems"]),
            panel("ViT-B/16: images per second", read("vit-speed-cuda")["training"]["systems"]),
        ]), browser,
    )  # fmt: skip


def memory(browser: Any) -> NDArray[np.uint8]:
    panels = []
    works = {
        "train-step-base-cuda": "Transformer-base, 25,088 target tokens",
        "gpt2-train-cuda": "GPT-2 124M, 32 sequences of 1,024 tokens",
    }
    for file, title in works.items():
        rows = read(file)["systems"]
        used = {name: row["peak_memory_bytes"] / 2**30 for name, row in rows.items()}
        ordered = sorted(used.items(), key=lambda item: item[1])
        bars = [Bar(name, value, f"{value:.1f} GiB") for name, value in ordered]
        panels.append(Panel(f"{title}: peak memory of a training step", bars))
    return drawn(chart(panels), browser)


def cases(file: str, unit: str = "tokens per second") -> list[Panel]:
    """A panel for each case of a result."""
    found = read(file)["cases"]
    return [panel(f"{case}: {unit}", rows) for case, rows in found.items()]


def writing(browser: Any) -> NDArray[np.uint8]:
    return drawn(chart(cases("gpt2-decode-cuda")), browser)


def on_two_cores(browser: Any) -> NDArray[np.uint8]:
    encode = panel("BERT-base reads ragged sentences, fp32: tokens per second",
                   read("encode-bert-base-cpu")["systems"])  # fmt: skip
    step = panel("small Transformer trains, fp32: target tokens per second",
                 read("train-step-small-cpu")["systems"])  # fmt: skip
    translate = panel("Transformer-base translates, fp32, beam 4, batch 32: tokens per second",
                      read("decode-base-cpu")["cases"]["beam 4, batch 32"])  # fmt: skip
    return drawn(chart([encode, step, translate]), browser)


def int8(browser: Any) -> NDArray[np.uint8]:
    return drawn(chart(cases("int8-cpu")), browser)


def whisper(browser: Any) -> NDArray[np.uint8]:
    panels = []
    for title, part in (
        ("prompts of 2 seconds", "prompts"),
        ("30 seconds of speech", "full windows"),
    ):
        rows = read("whisper-speed-cpu")[part]["systems"]
        ordered = sorted(rows.items(), key=lambda item: item[1]["real_time_factor"])
        bars = [Bar(name, row["real_time_factor"], f"{row['real_time_factor']:.3f}")
                for name, row in ordered]  # fmt: skip
        panels.append(Panel(f"{title}: seconds of computing per second of audio", bars))
    return drawn(chart(panels), browser)


# -- accuracy

TEXTS = {
    "sst2": "SST-2, 2 labels", "mr": "MR, 2 labels", "sections": "sections, 19 labels",
    "manuals": "manuals, 7 labels", "comments": "comments, 10 labels",
    "licences": "licences, 11 labels", "fortunes": "fortunes, 20 labels",
}  # fmt: skip


def texts(browser: Any) -> NDArray[np.uint8]:
    baselines, tuned = read("texts-cpu")["sets"], read("texts-cuda")["sets"]
    panels = []
    for name, title in TEXTS.items():
        row, ours = baselines[name], tuned[name]["encoder"]
        others = {"bag of words": row["bag of words"],
                  "tf-idf, logistic regression": row["tf-idf"]["score"]}  # fmt: skip
        mean = ours["mean"]
        bars = [Bar("headway, from base-en", mean, f"{mean:.1f}", spread=ours["deviation"])]
        bars += [Bar(key, value, f"{value:.1f}", BASELINE) for key, value in others.items()]
        panels.append(Panel(f"{title}: test accuracy, %", bars, most=100.0))
    return drawn(chart(panels), browser)


def few_labels(browser: Any) -> NDArray[np.uint8]:
    (row,) = read("few-labels-mnist-cuda")["table"].values()
    named = {"scratch": "from scratch", "tuned": "after learning to fill patches"}
    bars = [Bar(named[arm], one["mean"], f"{one['mean']:.1f} %",
                OURS if arm == "tuned" else BASELINE, one["deviation"])
            for arm, one in row.items()]  # fmt: skip
    return drawn(
        chart([Panel("MNIST, 10 labels per class: test accuracy", bars, most=100.0)]), browser
    )


FIGURES = {
    "speed-overview": overview,
    "speed-training": training,
    "speed-memory": memory,
    "speed-writing": writing,
    "speed-two-cores": on_two_cores,
    "speed-int8": int8,
    "speed-whisper": whisper,
    "results-texts": texts,
    "results-few-labels": few_labels,
}
