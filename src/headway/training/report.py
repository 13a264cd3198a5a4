"""`report.html`: what happened in a run, in one file that needs no network and no script.

Made from the files of the run folder alone, so it can be made again at any time. Whatever is
missing, torn or not a number is left out; all text that came from data is escaped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import median

from headway import __version__
from headway.errors import UserError
from headway.progress import duration
from headway.settings.folder import CONFIG
from headway.settings.run import RunSettings, load_run_settings
from headway.storage import replace_text
from headway.tasks.specs import METRICS as SCORES
from headway.tasks.specs import Metric, metrics_asked, spec_of
from headway.training.chart import Point, Series, chart
from headway.training.figures import figures
from headway.training.history import History, finite, mean, number, read_history
from headway.training.log import METRICS, Entry
from headway.training.page import PAGE

CHECK = "data/report.json"
REPORT = "report.html"
MOST_SAMPLES = 12
MOST_EVENTS = 200
MOST_EXAMPLES = 3
MOST_LINES = 3
"""In one chart."""


def write_report(folder: Path) -> Path:
    """Read the run folder and write its `report.html`."""
    history = read_history(folder)
    run = _run(folder / CONFIG)
    history.scores = SCORES | metrics_asked(run.asked if run else {})
    spec = spec_of(run) if run else None
    unit = spec.counts if spec else "target"
    sections = [
        _tiles(history),
        _kept(history),
        _figures(history),
        _curves(history, unit),
        _samples(history, *(spec.sample if spec else ("source", "reference"))),
        _validations(history),
        _findings(folder / CHECK),
        _events(history),
        _settings(folder / CONFIG),
    ]
    foot = f"<footer>headway {escape(__version__)}</footer>"
    body = "\n".join(filter(None, sections)) or "<p>Nothing was measured yet.</p>"
    filled = {"title": escape(folder.absolute().name), "body": body + foot}
    page = re.sub(r"{{(title|body)}}", lambda match: filled[match[1]], PAGE)
    replace_text(folder / REPORT, page)
    return folder / REPORT


def _run(path: Path) -> RunSettings | None:
    """Its settings, if they can be read."""
    try:
        return load_run_settings(path, [])
    except UserError:
        return None


def _scores(history: History) -> list[Metric]:
    """The scores that the run has, in the order of the table, loss apart."""
    found = {name for entry in history.valid for name in entry} | set(history.kept)
    return [one for one in history.scores.values() if one.name in found and one.name != "loss"]


def _tiles(history: History) -> str:
    """The few numbers that one asks for first."""
    tiles: list[tuple[str, str, str]] = []
    kept = history.kept
    for metric in _scores(history):
        name = metric.name
        if name in kept:
            rivals = [number(values.get(name)) for values in _baselines(history).values()]
            best = _best(metric, [(0.0, rival) for rival in rivals])
            note = f"; baseline {_shown(best[1], metric)}" if best else ""
            tiles.append(
                (metric.axis, _shown(kept[name], metric), f"validation, final model{note}")
            )
        elif best := _best(metric, history.points("valid", name)):
            value = _shown(best[1], metric)
            tiles.append((metric.axis, value, f"best validation, step {best[0]:,}"))
    steps = [entry["step"] for entry in [*history.train, *history.valid]]
    if steps:
        tiles.append(("steps", f"{max(steps):,}", _epochs(history)))
    if speeds := finite(history.points("train", "tokens_per_s")):
        note = "median" + "".join(
            f", {mean(points):.1%} {text}"
            for name, text in (("padding", "padding"), ("stall", "waiting for data"))
            if (points := finite(history.points("train", name)))
        )
        middle = median(speed for _, speed in speeds)
        tiles.append(("tokens/s", f"{middle:,.0f}", note))
    seconds = number(history.end[-1].get("seconds")) if history.end else math.nan
    if math.isfinite(seconds):
        checks = sum(value for _, value in finite(history.points("valid", "seconds")))
        text = f"{duration(checks)} of it evaluating" if checks else ""
        tiles.append(("time", duration(seconds), text))
    parts = [
        f"<div><span>{label}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>"
        for label, value, note in tiles
    ]
    return f'<section class="tiles">{"".join(parts)}</section>' if parts else ""


def _epochs(history: History) -> str:
    epochs = [value for _, value in finite(history.points("train", "epoch"))]
    return f"in epoch {max(epochs) + 1:g}" if epochs else ""


def _baselines(history: History) -> dict[str, Entry]:
    """What one gets for nothing on the validation data, by name."""
    found = history.end[-1].get("baselines") if history.end else None
    every = found if isinstance(found, dict) else {}
    return {str(name): values for name, values in every.items() if isinstance(values, dict)}


def _kept(history: History) -> str:
    """What became model.safetensors, beside what else it could have been."""
    if not history.end or not isinstance(history.end[-1].get("scores"), dict):
        return ""
    end = history.end[-1]
    scores = {name: value for name, value in end["scores"].items() if isinstance(value, dict)}
    measures = list(dict.fromkeys(name for values in scores.values() for name in values))
    named = {("✓ " if name == end.get("kept") else "") + name: one for name, one in scores.items()}
    named |= {f"baseline: {name}": one for name, one in _baselines(history).items()}
    rows = [
        [name, *(_shown(values.get(measure), history.scores.get(measure)) for measure in measures)]
        for name, values in named.items()
    ]
    lines = [str(end[name]) for name in ("text", "advice") if end.get(name)]
    text = "".join(f"<p>{escape(line)}</p>" for line in lines)
    table = _table(
        ["candidate", *(_head(measure, history) for measure in measures)],
        rows,
        marked=str(end.get("kept")),
    )
    return _section("What is in model.safetensors", text + (table if rows else ""))


def _figures(history: History) -> str:
    """Of the model that was kept; else of the last evaluation that has some."""
    every = [entry.get("figures") for entry in [*reversed(history.end), *reversed(history.valid)]]
    seen: list[Entry] = [one for one in every if isinstance(one, dict) and one]
    if not seen:
        return ""
    body = figures(seen[0])
    return _section("Answers", f'<div class="figures">{body}</div>') if body else ""


def _curves(history: History, unit: str) -> str:
    def lines(kind: str, *names: tuple[str, str]) -> list[Series]:
        return [Series(label, history.points(kind, name)) for name, label in names]

    # Where nothing is added to the likelihood the two are the same line.
    training = lines("train", ("loss", "training, as optimised"), ("nll", "training"))
    charts = [
        chart(
            f"Loss per {unit}",
            [one for one in training if one.points != training[1].points or one is training[1]]
            + lines("valid", ("loss", "validation")),
        ),
        *(_quality(history, alike) for alike in _alike(_scores(history))),
        chart("Learning rate", lines("train", ("lr", "learning rate"))),
        chart("Gradient norm", lines("train", ("grad_norm", "gradient norm")), log=True),
        chart(
            "Tokens per second",
            lines("train", ("tokens_per_s", "tokens/s")),
            from_zero=True,
        ),
    ]
    charts = [one for one in charts if one]
    return _section("Curves", f'<div class="charts">{"".join(charts)}</div>') if charts else ""


def _alike(metrics: Sequence[Metric]) -> list[list[Metric]]:
    """Those that can share a chart: of one unit, and better in the same direction. Of those without
    a unit, BLEU and chrF both go to 100; perplexity, bits per byte and metrics of one's own have a
    chart each."""
    groups: dict[tuple[str, str], list[Metric]] = {}
    for metric in metrics:
        alone = metric.lower or SCORES.get(metric.name) != metric
        scale = metric.unit or (metric.name if alone else "of 100")
        groups.setdefault((scale, "down" if metric.lower else "up"), []).append(metric)
    return [
        group[first : first + MOST_LINES]
        for group in groups.values()
        for first in range(0, len(group), MOST_LINES)
    ]


def _quality(history: History, metrics: Sequence[Metric]) -> str:
    """The curves of scores that are alike; the best of the first is marked."""
    series = [Series(one.label, history.points("valid", one.name)) for one in metrics]
    best = _best(metrics[0], series[0].points)
    mark = None if best is None else (best, f"best {best[1]:.1f}")
    unit = f", {metrics[0].unit}" if metrics[0].unit else ""
    title = f"Validation {_listed([one.label for one in metrics])}{unit}"
    return chart(title, series, mark=mark, log=metrics[0].name == "ppl")


def _best(metric: Metric, points: Sequence[Point]) -> Point | None:
    choose = min if metric.lower else max
    return choose(finite(points), key=lambda point: point[1], default=None)


def _head(name: str, history: History) -> str:
    """Over a column of scores."""
    return history.scores[name].axis if name in history.scores else name


def _listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _samples(history: History, source: str, target: str) -> str:
    """The same examples early, half-way and last."""
    seen = [entry for entry in history.valid if _sample_list(entry)]
    if not seen:
        return ""
    chosen = list(dict.fromkeys([0, len(seen) // 2, len(seen) - 1]))
    cards = []
    for sample in _sample_list(seen[-1])[:MOST_SAMPLES]:
        rows = [(source, sample.get("source")), (target, sample.get("target"))]
        for place in chosen:
            same = [
                other.get("output")
                for other in _sample_list(seen[place])
                if other.get("source") == sample.get("source")
            ]
            if same:
                rows.append((f"step {seen[place]['step']:,}", same[0]))
        lines = [
            f'<dt>{label}</dt><dd dir="auto">{escape(str(text)) or "<em>empty</em>"}</dd>'
            for label, text in rows
            if text is not None
        ]
        cards.append(f"<dl>{''.join(lines)}</dl>")
    return _section("Samples over time", f'<div class="samples">{"".join(cards)}</div>')


def _sample_list(entry: Entry) -> list[Entry]:
    samples = entry.get("samples")
    found = samples if isinstance(samples, list) else []
    return [sample for sample in found if isinstance(sample, dict)]


def _validations(history: History) -> str:
    names = [name for name in history.scores if any(name in entry for entry in history.valid)]
    rows = [
        [f"{entry['step']:,}", *(_shown(entry.get(name), history.scores[name]) for name in names)]
        for entry in history.valid
    ]
    return (
        _folded(
            "All evaluations", _table(["step", *(_head(name, history) for name in names)], rows)
        )
        if rows
        else ""
    )


def _findings(path: Path) -> str:
    """What the data check said, if it was kept beside the data."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        findings = [one for one in report["findings"] if isinstance(one, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    items = [
        f'<li><i class="level {escape(str(one.get("level")))}">{escape(str(one.get("level")))}</i> '
        f"{escape(str(one.get('text')))}{_examples(one)}</li>"
        for one in findings
    ]
    body = f"<ul>{''.join(items)}</ul>" if items else "<p>Nothing was found.</p>"
    return _section("Data check", body)


def _examples(finding: Entry) -> str:
    examples = finding.get("examples")
    shown = [one for one in examples if isinstance(one, dict)] if isinstance(examples, list) else []
    lines = [
        f"<small>{escape(str(one.get('place')))}: {escape(str(one.get('source')))} │ "
        f"{escape(str(one.get('target')))}</small>"
        for one in shown[:MOST_EXAMPLES]
    ]
    return "".join(lines)


def _events(history: History) -> str:
    rows = [
        [f"{event['step']:,}", str(event.get("text", ""))] for event in history.event[:MOST_EVENTS]
    ]
    left = len(history.event) - len(rows)
    if left:
        rows.append(["", f"and {left:,} more in {METRICS}"])
    return _section("Events", _table(["step", "what happened"], rows)) if rows else ""


def _settings(path: Path) -> str:
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return _folded(f"Settings ({CONFIG})", f"<pre>{escape(text)}</pre>")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], marked: str = "") -> str:
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(
        f"<tr{' class=kept' * (bool(marked) and marked in row[0])}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _shown(value: object, metric: Metric | None = None) -> str:
    found = number(value)
    digits = ".4g" if metric is None else f".{metric.digits}f"
    return format(found, digits) if math.isfinite(found) else "–"
