"""Images of `docs/built/life-of-an-example.md`, from a training run.

They come from the program of the page, which writes the table `sentences.csv`, and from a
classifier trained on it in about ten seconds: what each stage makes of one row.
"""

from __future__ import annotations

import html
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import headway
from headway.data.store import PreparedData, load_prepared
from headway.inside import Trace, load, trace
from headway.tasks.dataset import Batch
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.objective import Objective
from headway.tasks.task import find_task

from .browser import card

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "built" / "life-of-an-example.md"
FOLLOWED = "Ruft Tom an!"
SETTINGS = {"model.ngrams": 0}
"""Small text datasets get a table of n-grams beside the Transformer, which the page leaves out."""

TOGETHER = 3
"""Number of examples in the batch that is drawn."""

DIMENSIONS = 48
"""Number of dimensions drawn of each hidden state."""

COLOURS = ("#dbe6fb", "#fbe6d4", "#dcf0e0")


def write_table(folder: Path) -> Path:
    """Run the program of the page, which writes the table, in a folder."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (folder / "examples").symlink_to(ROOT / "examples")
    with chdir(folder):
        exec(program, {})
    return folder / "sentences.csv"


@cache
def bodies() -> dict[str, str]:
    """The HTML of each image. One training serves all of them."""
    with tempfile.TemporaryDirectory() as name:
        table, folder = write_table(Path(name)), Path(name) / "run"
        headway.train("classify", table, out=folder, start="none", settings=SETTINGS, quiet=True)
        return dict(cards(table, folder))


def stage(name: str, browser: Any) -> NDArray[np.uint8]:
    return card(browser, bodies()[name])


STAGES = ("file", "columns", "split", "tokens", "batch", "model", "loss", "answer")
FIGURES = {
    f"life-{number}-{name}": partial(stage, name) for number, name in enumerate(STAGES, start=1)
}


def cards(table: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the body of the card of each stage."""
    lines = table.read_text("utf-8").splitlines()
    run, prepared = load(folder), load_prepared(folder)
    objective = find_task(run.settings).objective(run.settings, prepared)
    row = next(i for i, one in enumerate(prepared.valid_examples) if one["text"] == FOLLOWED)
    rows = np.arange(row, row + TOGETHER)
    batch = objective.valid_dataset.batch(rows, torch.device("cpu"))
    seen = trace(run, FOLLOWED)
    yield "file", file_card(lines)
    yield "columns", columns_card(json.loads((folder / "card.json").read_text("utf-8")))
    yield "split", split_card(prepared)
    yield "tokens", tokens_card(prepared, row)
    yield "batch", batch_card(prepared, batch)
    yield "model", model_card(seen)
    yield "loss", loss_card(run, objective, batch, folder)
    yield "answer", answer_card(headway.load(folder), temperature_of(folder))


def file_card(lines: Sequence[str]) -> str:
    at = next(i for i, line in enumerate(lines) if line.startswith(FOLLOWED))
    shown = [0, *range(at - 2, at + 3)]
    body = [(str(i + 1), lines[i]) for i in shown]
    body.insert(1, ("…", ""))
    return "<h1>sentences.csv</h1>" + rows_table(("line", "text"), body, followed=FOLLOWED)


def columns_card(card: dict[str, Any]) -> str:
    (table,) = card["tables"]
    return (
        f"<h1>{escape(table['file'])}: {escape(table['form'])}</h1>"
        + rows_table(("column", "is the", "kind", "holds"), table["columns"])
    )  # fmt: skip


def split_card(prepared: PreparedData) -> str:
    report = prepared.report
    findings = "".join(f'<p class="note">{escape(one.text)}</p>' for one in report.findings)
    labels = [(name, str(sum(counts))) for name, counts in report.labels.items()]
    split = [
        ("training", f"{len(prepared.train['label']):,}", "the weights are fitted to them"),
        ("validation", f"{len(prepared.valid['label']):,}", f"among them “{FOLLOWED}”"),
    ]
    return (
        "<h1>Scan and split</h1>"
        + rows_table(("label", "rows"), labels)
        + findings
        + "<h2>split</h2>"
        + rows_table(("set", "rows", ""), split, followed=FOLLOWED)
    )


def tokens_card(prepared: PreparedData, row: int) -> str:
    texts, labels = prepared.valid["text"], prepared.valid["label"]
    assert prepared.vocab is not None
    ids = texts[row].tolist()
    before = sum(len(texts[i]) for i in range(row))
    end = before + len(ids)
    stored = [
        ("valid.text.tokens", f"values {before} to {end - 1}", " ".join(map(str, ids))),
        ("valid.text.lengths", f"value {row}", str(len(ids))),
        ("valid.label", f"value {row}",
         f"{int(labels[row])}, which is {prepared.labels[int(labels[row])]}"),
    ]  # fmt: skip
    return (
        f"<h1>“{FOLLOWED}” as tokens</h1>{tokens(prepared.vocab.source.tokens(ids), ids)}"
        f"<h2>stored in the run's folder data/</h2>{rows_table(('file', '', 'holds'), stored)}"
    )


def batch_card(prepared: PreparedData, batch: Batch[Any]) -> str:
    values, layout = batch.streams[0].values, batch.streams[0].layout
    assert prepared.vocab is not None
    parts = []
    for number, (start, length) in enumerate(
        zip(layout.starts_B.tolist(), layout.lengths_B.tolist(), strict=True)
    ):
        ids = values[start : start + length].tolist()
        parts.append(tokens(prepared.vocab.source.tokens(ids), ids, COLOURS[number]))
    facts = [
        ("values", "token ids", f"{len(values)} numbers, no padding"),
        ("layout.starts_B", "where a sequence begins", str(layout.starts_B.tolist())),
        ("layout.lengths_B", "its length", str(layout.lengths_B.tolist())),
        ("targets", "labels", str(batch.targets.tolist())),
    ]
    return (
        f"<h1>{TOGETHER} examples, one flat batch</h1>{''.join(parts)}"
        f"<h2>tensors</h2>{rows_table(('name', 'is', 'value'), facts)}"
    )


def model_card(seen: Trace) -> str:
    (stream,) = seen.reading.streams.values()
    (states,), (layers,) = seen.states.values(), seen.attention.values()
    names = ["embeddings", *(f"after layer {i}" for i in range(1, len(states)))]
    vectors = "".join(
        f"<h2>{name}: {len(state)} × {state.shape[1]}, the first {DIMENSIONS} dimensions</h2>"
        + heat(stream.pieces, state[:, :DIMENSIONS].numpy())
        for name, state in zip(names, states, strict=True)
    )
    weights = "".join(
        f'<td><div class="note">layer {number}</div>'
        + heat(stream.pieces, layer.mean(0).numpy(), width=20, height=20, columns=stream.pieces)
        + "</td>"
        for number, layer in enumerate(layers, start=1)
    )
    return (
        f"<h1>Hidden states and attention of “{FOLLOWED}”</h1>{vectors}"
        f"<h2>attention weights, mean of the {len(layers[0])} heads</h2>"
        '<p class="note">The token of a row attends to the tokens of the columns.</p>'
        f"<table><tr>{weights}</tr></table>"
    )


def loss_card(run: LoadedRun, objective: Objective[Any], batch: Batch[Any], folder: Path) -> str:
    run.model.eval()
    with torch.inference_mode():
        read = objective.read(run.model, objective.augment(run.model, batch))
        logits = read.logits_RC[0] * temperature_of(folder)
    probabilities = logits.softmax(-1)
    labels = run.settings.labels
    right = int(batch.targets[0])
    body = [
        (label, f"{logits[i]:.2f}", f"{probabilities[i]:.4f}", bar(float(probabilities[i])))
        for i, label in enumerate(labels)
    ]
    losses = [(one["step"], one["nll"]) for one in log_of(folder) if one["kind"] == "train"]
    return (
        f"<h1>Logits and loss of “{FOLLOWED}” before calibration</h1>"
        + rows_table(("label", "logit", "softmax", ""), body, raw=True)
        + f'<p class="note">cross-entropy = −log p({escape(labels[right])}) = '
        f"−log {probabilities[right]:.4f} = {-float(probabilities[right].log()):.4f}</p>"
        "<h2>mean cross-entropy of a training step</h2>" + curve(losses)
    )


def answer_card(run: headway.Run, temperature: float) -> str:
    answer = run(FOLLOWED)
    body = [
        (label, f"{value:.4f}", bar(value))
        for label, value in sorted(answer.probabilities.items(), key=lambda one: -one[1])
    ]
    return (
        f"<h1>run(“{FOLLOWED}”) is {escape(answer.label)}</h1>"
        + rows_table(("label", "probability", ""), body, raw=True)
        + f'<p class="note">softmax of the logits divided by the temperature {temperature:.2f}</p>'
    )


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def temperature_of(folder: Path) -> float:
    """The fitted temperature. The stored weights give logits that are divided by it already."""
    (end,) = (one for one in log_of(folder) if one["kind"] == "end")
    return float(end["temperature"]["value"])


def escape(text: object) -> str:
    return html.escape(str(text))


def rows_table(
    head: Sequence[str], body: Iterable[Sequence[str]], *, followed: str = "", raw: bool = False
) -> str:
    """Return an HTML table; the row with the text `followed` is marked."""
    lines = ["<tr>" + "".join(f"<th>{escape(one)}</th>" for one in head) + "</tr>"]
    for row in body:
        marked = (
            ' class="followed"' if followed and any(followed in str(one) for one in row) else ""
        )
        cells = "".join(f"<td>{one if raw else escape(one)}</td>" for one in row)
        lines.append(f"<tr{marked}>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def tokens(pieces: Sequence[str], ids: Sequence[int], colour: str = COLOURS[0]) -> str:
    return "".join(
        f'<span class="token" style="background: {colour}">{escape(piece)}'
        f"<small>{one}</small></span>"
        for piece, one in zip(pieces, ids, strict=True)
    )


def bar(share: float) -> str:
    return f'<span class="bar" style="width: {max(1, round(200 * share))}px"></span>'


def heat(
    pieces: Sequence[str], values_TC: np.ndarray[Any, Any], *, width: int = 12, height: int = 17,
    columns: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return a grid with a row for each token. Positive values are blue, negative ones orange."""
    most = float(np.abs(values_TC).max()) or 1.0
    names = "".join(f'<td class="column">{escape(one)}</td>' for one in columns)
    lines = [f'<tr style="vertical-align: bottom"><td></td>{names}</tr>'] if columns else []
    for piece, row in zip(pieces, values_TC, strict=True):
        cells = "".join(
            f'<td style="padding: 0; width: {width}px; height: {height}px; background: '
            f'{shade(float(one) / most)}"></td>'
            for one in row
        )
        lines.append(
            f'<tr><td style="padding: 0 8px 0 0; line-height: {height}px; font-size: 12px; '
            f'text-align: right; min-width: 46px">{escape(piece)}</td>{cells}</tr>'
        )
    return f"<table>{''.join(lines)}</table>"


def shade(share: float) -> str:
    red, green, blue = (42, 98, 201) if share >= 0 else (194, 87, 26)
    mix = min(1.0, abs(share))
    return "#{:02x}{:02x}{:02x}".format(*(round(255 + mix * (c - 255)) for c in (red, green, blue)))


def curve(points: Sequence[tuple[int, float]], width: int = 440, height: int = 110) -> str:
    last, top = points[-1][0], max(value for _, value in points)
    line = " ".join(
        f"{width * step / last:.1f},{height * (1 - value / top):.1f}" for step, value in points
    )
    return (
        f'<svg width="{width + 60}" height="{height + 30}" style="font: 12px sans-serif">'
        f'<g transform="translate(40 8)">'
        f'<path d="M0 0v{height}h{width}" fill="none" stroke="#999"/>'
        f'<text x="-6" y="4" text-anchor="end" fill="#556070">{top:.2f}</text>'
        f'<text x="-6" y="{height + 4}" text-anchor="end" fill="#556070">0</text>'
        f'<text x="{width}" y="{height + 16}" text-anchor="end" fill="#556070">step {last}</text>'
        f'<polyline points="{line}" fill="none" stroke="#2a62c9" stroke-width="2"/></g></svg>'
    )
