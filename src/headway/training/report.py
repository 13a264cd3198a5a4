"""`report.html`: the progress and result of a run, as data for the panels of `web/`.

It is made only from the files of the run folder. It can therefore be written at any time, even
while a run continues or after a crash. Values that are missing, damaged or not finite are left out.
"""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from headway import __version__
from headway.data.check_report import Report as DataReport
from headway.errors import UserError
from headway.progress import duration
from headway.settings.folder import CONFIG
from headway.settings.model import family_of
from headway.settings.overrides import flatten
from headway.settings.run import ASKED, CHOSEN, RunSettings, load_run_settings
from headway.settings.task_rows import spec_of
from headway.settings.toml import comments_of, toml_value
from headway.specs.metrics import METRICS, Metric, custom_metrics_of
from headway.specs.tasks import Spec
from headway.storage import replace_text
from headway.tasks.history import (
    LOG,
    History,
    LogEntry,
    StepValue,
    finite,
    mean,
    named_scores,
    number,
    read_history,
)
from headway.web.html import page_data, page_html
from headway.web.pack import pack

CARD = "card.json"
"""Name of the file in a run folder with facts from the start of training that no other file
stores."""

CHECK = "data/report.json"
REPORT = "report.html"
PANELS = ("summary", "curves", "answers", "samples", "data", "settings", "log")
"""Tabs of the report, in order."""

MOST_SAMPLES, MOST_MOMENTS = 12, 5
"""Maximum number of examples in the tab of samples, and maximum number of evaluations whose outputs
are shown for each. More would be too long a page to scroll through."""

MOST_EVENTS = 200
"""Maximum number of events in the tab of the log. A run has far fewer unless an event repeats."""

MOST_LINES = 3
"""Maximum number of lines in one chart, so that labels and colours can be told apart."""

MOST_POINTS = 400
"""Maximum number of points of a line, because a chart is only a few hundred pixels wide."""

MOST_COST = 0.02
"""Maximum fraction of the training time that may be spent on writing reports."""

PanelData = dict[str, object]


def write_report(folder: Path) -> Path:
    """Write the `report.html` of a run folder and return its path."""
    report = RunReport(folder)
    made: dict[str, PanelData] = {name: getattr(report, name)() for name in PANELS}
    sections = {name: section for name, section in made.items() if section}
    name = folder.absolute().name
    look = {"label": name, "streams": {}, "outputs": [], "sections": sections}
    about = {"name": name, "facts": report.facts}
    title = f"{name}: training report"
    packed = pack(page_data(title, [look], {}, about, PANELS))
    replace_text(folder / REPORT, page_html(title, packed, sections))
    return folder / REPORT


class Throttled:
    """Writes reports, but not too often. A call does nothing if writing would exceed the fraction
    `MOST_COST` of the time."""

    def __init__(self, write: Callable[[], object]) -> None:
        self.write, self.due = write, -math.inf

    def __call__(self) -> None:
        begun = time.monotonic()
        if begun >= self.due:
            self.write()
            done = time.monotonic()
            self.due = done + (done - begun) / MOST_COST


@dataclass(frozen=True)
class RunReport:
    """Report of a run folder. Each public method returns the data of one tab, or an empty dict if
    there is none."""

    folder: Path

    @cached_property
    def run(self) -> RunSettings | None:
        """Settings of the run, or None if they cannot be read."""
        with suppress(UserError):
            return load_run_settings(self.folder / CONFIG, [])
        return None

    @cached_property
    def spec(self) -> Spec | None:
        return spec_of(self.run) if self.run else None

    @cached_property
    def history(self) -> History:
        found = read_history(self.folder)
        found.scores = METRICS | custom_metrics_of(self.run.asked if self.run else {})
        return found

    @cached_property
    def card(self) -> LogEntry:
        return _read(self.folder / CARD)

    @cached_property
    def metrics(self) -> list[Metric]:
        """Metrics that were logged, in the order of the table of metrics."""
        found = {name for entry in self.history.valid for name in entry} | set(
            self.history.kept_scores
        )
        return [one for one in self.history.scores.values() if one.name in found]

    @property
    def facts(self) -> list[str]:
        """Names and values for the header of the page."""
        sizes = self.run.model.size_facts if self.run and self.run.model else []
        parameters = number(self.card.get("parameters"))
        known = [f"{parameters:,.0f} parameters"] if math.isfinite(parameters) else []
        return ["training report", *([self.run.task] if self.run else []), *sizes, *known]

    # -- the tab "summary"

    def summary(self) -> PanelData:
        return {
            "status": self._status(),
            "said": [str(self.history.last[name]) for name in ("text", "advice")
                     if self.history.last.get(name)],
            "tiles": [*self._score_tiles(), *self._other_tiles()],
            "compared": self._compared(),
            "few": self._few_labels(),
            "scores": self._scores(),
            "card": self._model_card(),
        }  # fmt: skip

    def _status(self) -> str:
        """Return the progress of a run that has not ended; empty for other runs."""
        if self.history.end:
            return ""
        moment = time.strftime("%Y-%m-%d %H:%M")
        step, steps = self._last_step, self.run.train.steps if self.run else None
        if step is None:
            return f"No measurements yet ({moment})."
        of = f" of {steps:,}" if steps else ""
        return (
            f"Step {step:,}{of} at {moment}. The run has not ended. This file is updated after "
            "evaluations: reload the page to see new results."
        )

    @property
    def _last_step(self) -> int | None:
        entries = [*self.history.train, *self.history.valid]
        return max((entry["step"] for entry in entries), default=None)

    def _score_tiles(self) -> list[PanelData]:
        tiles: list[PanelData] = []
        losses = dict(self.history.points("valid", "loss"))
        for metric in self.metrics:
            name, kept = metric.name, number(self.history.kept_scores.get(metric.name))
            best = _best(metric, self.history.points("valid", name), losses)
            if name == "loss":  # shown as a curve, not as a score
                continue
            if math.isfinite(kept):
                rivals = [(0.0, number(one.get(name))) for one in self._baselines.values()]
                rival = _best(metric, rivals)
                note = f"; baseline {_digits(rival[1], metric)}" if rival else ""
                tiles.append(_tile(metric, kept, f"validation, final model{note}"))
            elif best:
                tiles.append(_tile(metric, best[1], f"best validation, step {best[0]:,}"))
        return tiles

    def _other_tiles(self) -> list[PanelData]:
        history = self.history
        tiles: list[PanelData] = []
        if self._last_step is not None:
            epochs = [value for _, value in finite(history.points("train", "epoch"))]
            note = f"in epoch {max(epochs) + 1:g}" if epochs else ""
            tiles.append({"name": "steps", "value": f"{self._last_step:,}", "note": note})
        if speeds := finite(history.points("train", "tokens_per_s")):
            note = "median" + "".join(
                f", {mean(points):.1%} {text}"
                for name, text in (("padding", "padding"), ("stall", "waiting for data"))
                if (points := finite(history.points("train", name)))
            )
            middle = median(speed for _, speed in speeds)
            tiles.append({"name": "tokens/s", "value": f"{middle:,.0f}", "note": note})
        seconds = number(history.last.get("seconds"))
        if math.isfinite(seconds):
            checks = sum(value for _, value in finite(history.points("valid", "seconds")))
            note = f"{duration(checks)} of it evaluating" if checks else ""
            tiles.append({"name": "time", "value": duration(seconds), "note": note})
        return tiles

    @cached_property
    def _baselines(self) -> dict[str, dict[str, float]]:
        return named_scores(self.history.last.get("baselines"))

    def _scores(self) -> PanelData:
        """Return the table of all metrics. It compares the final weights with other candidates and
        baselines. For a run that has not ended, it compares the evaluations."""
        last, metrics, valid = self.history.last, self.metrics, self.history.valid
        found: list[tuple[str, Mapping[str, object], PanelData]] = []
        for name, scores in named_scores(last.get("scores")).items():
            found.append((name, scores, {"kept": name == last.get("kept")}))
        for name, scores in named_scores(last.get("members")).items():
            found.append((name, scores, {}))
        for name, scores in self._baselines.items():
            found.append((name, scores, {"baseline": True}))
        if not found and valid:
            best = {one.name: _best(one, self.history.points("valid", one.name)) for one in metrics}
            reached = {name: point[1] for name, point in best.items() if point}
            found.append(("best so far", reached, {}))
            found.append((f"step {valid[-1]['step']:,}", valid[-1], {}))
        columns = [
            {"name": name, **what, "values": [_known(number(one.get(m.name))) for m in metrics]}
            for name, one, what in found
        ]
        return {"rows": list(map(_about, metrics)), "columns": columns} if found and metrics else {}

    def _compared(self) -> PanelData:
        """Return the scores of the final model and its baselines, with their intervals."""
        found = self.history.last.get("compared")
        found = found if isinstance(found, dict) else {}
        metric = self.history.scores.get(str(found.get("metric")))
        rows = [
            {"name": str(one.get("name")), **{key: _known(number(one.get(key)))
                                              for key in ("value", "low", "high")}}
            for one in _dicts(found.get("rows")) if math.isfinite(number(one.get("value")))
        ]  # fmt: skip
        return {"metric": _about(metric), "rows": rows} if metric and len(rows) > 1 else {}

    def _few_labels(self) -> PanelData:
        """Return the learning curves of cheap classifiers on fewer labels, with the score of the
        final model on all labels for comparison."""
        rows = [
            (number(row.get("each")), row["right"])
            for row in _dicts(self.history.last.get("few")) if isinstance(row.get("right"), dict)
        ]  # fmt: skip
        own = self._compared().get("rows")
        if not rows or not isinstance(own, list):
            return {}
        names = dict.fromkeys(str(name) for _, right in rows for name in right)
        lines = [
            _series(name, [(each, number(right.get(name))) for each, right in rows])
            for name in names
        ]
        point = rows[-1][0], own[-1]["value"]
        return {"lines": [*lines, _series(own[-1]["name"], [point])]}

    def _model_card(self) -> list[tuple[str, str]]:
        """Return the model card: facts for users of the model."""
        card, run = self.card, self.run
        rows: list[tuple[str, object]] = []
        if run is not None:
            rows.append(("task", run.task))
            if run.model is not None:
                rows.append(("model", ", ".join([family_of(run.model), *run.model.size_facts])))
            rows.append(("started from", run.parent))
        n, learning = card.get("parameters"), card.get("learning")
        if isinstance(n, int) and isinstance(learning, int):
            some = f", of which {learning:,} are trainable" * (learning < n)
            rows.append(("parameters", f"{n:,}{some}"))
        tables = {Path(str(one["file"])).name for one in _dicts(card.get("tables"))}
        names = sorted(name for name in tables if Path(name).suffix)  # data in memory has no name
        files = [f"from {', '.join(names)}"] if names else []
        rows.append(("trained on", ", ".join([*filter(None, [card.get("data")]), *files])))
        rows += [(name, card.get(name, "")) for name in ("device", "precision")]
        rows.append(("weights", self.history.last.get("kept", "")))
        rows.append(("temperature", self._temperature()))
        fitted = self.history.last.get("fitted")
        if isinstance(fitted, dict):
            rows += [(key, f"{number(value):.3g}, fitted on the validation data")
                     for key, value in fitted.items()]  # fmt: skip
        for metric in self.metrics:
            value = number(self.history.kept_scores.get(metric.name))
            if math.isfinite(value):
                beside = self._baseline_note(metric)
                rows.append((metric.label, metric.shown(value) + (beside and f" ({beside})")))
        rows.append(("licence", _licence(self.folder)))
        rows += [("date", card.get("date", "")), ("headway", card.get("headway", __version__))]
        return [(name, str(value)) for name, value in rows if value not in ("", None)]

    def _temperature(self) -> str:
        """Return a description of the calibration temperature of the final model; empty if none was
        fitted."""
        found = self.history.last.get("temperature")
        if isinstance(found, dict) and not found.get("likely", True):
            return ""
        value, n, share = (number(found.get(name)) if isinstance(found, dict) else math.nan
                           for name in ("value", "examples", "share"))  # fmt: skip
        if not math.isfinite(value + n):
            return ""
        text = f"{value:.2f}, fitted on {n:,.0f} validation examples and stored in the weights"
        return text + f"; n-grams have a weight of {share:.0%}" * math.isfinite(share)

    def _baseline_note(self, metric: Metric) -> str:
        """Return the values of one metric for all baselines, as one line."""
        found = [(name, number(one.get(metric.name))) for name, one in self._baselines.items()]
        return ", ".join(f"{name} {_digits(y, metric)}" for name, y in found if math.isfinite(y))

    # -- the other tabs

    def curves(self) -> PanelData:
        history = self.history

        def lines(kind: str, *names: tuple[str, str]) -> list[PanelData]:
            found = [(label, history.points(kind, name)) for name, label in names]
            return [_series(label, points) for label, points in found if finite(points)]

        unit = self.spec.counts if self.spec else "target"
        # Without label smoothing and auxiliary losses, loss and likelihood are equal, so one line
        # is enough.
        training = lines("train", ("loss", "training objective"), ("nll", "training"))
        if len(training) == 2 and training[0]["points"] == training[1]["points"]:
            training = training[1:]
        speed = lines("train", ("tokens_per_s", "tokens/s"))
        charts: list[PanelData] = [
            {"title": f"Loss per {unit}", "better": "lower",
             "series": training + lines("valid", ("loss", "validation"))},
            *(self._quality(alike) for alike in _alike(self.metrics)),
            {"title": "Learning rate", "series": lines("train", ("lr", "learning rate"))},
            {"title": "Gradient norm", "log": True,
             "series": lines("train", ("grad_norm", "gradient norm"))},
            {"title": "Tokens per second", "zero": True, "series": speed},
        ]  # fmt: skip
        charts = [chart for chart in charts if chart["series"]]
        return {"charts": charts} if charts else {}

    def _quality(self, metrics: Sequence[Metric]) -> PanelData:
        """Return a chart of metrics with a common scale. It marks the best value of the first
        metric, and the baselines of that metric."""
        first = metrics[0]
        points = [self.history.points("valid", one.name) for one in metrics]
        best = _best(first, points[0], dict(self.history.points("valid", "loss")))
        unit = f", {first.unit}" if first.unit else ""
        levels = [
            (name, one[first.name]) for name, one in self._baselines.items()
            if len(metrics) == 1 and math.isfinite(number(one.get(first.name)))
        ]  # fmt: skip
        return {
            "title": f"Validation {_listed([one.label for one in metrics])}{unit}",
            "better": "lower" if first.lower else "higher",
            "series": [_series(one.label, found) for one, found in zip(metrics, points, strict=True)
                       if finite(found)],
            "log": first.name == "ppl",
            "most": first.most,
            "best": None if best is None else [*best, f"best {_digits(best[1], first)}"],
            "levels": levels,
        }  # fmt: skip

    def answers(self) -> PanelData:
        """Return figures about the predictions of the final model. Without a final model, the
        figures are from the last evaluation that has any."""
        for entry in [*reversed(self.history.end), *reversed(self.history.valid)]:
            figures = entry.get("figures")
            if isinstance(figures, dict) and figures:
                of = "the final model" if entry["kind"] == "end" else f"step {entry['step']:,}"
                return {"of": of, "figures": figures}
        return {}

    def samples(self) -> PanelData:
        """Return the outputs for some examples at several evaluations, including the first and the
        last, so that progress is visible."""
        seen = [entry for entry in self.history.valid if _dicts(entry.get("samples"))]
        if not seen:
            return {}
        n = min(MOST_MOMENTS, len(seen))
        places = sorted({round(i * (len(seen) - 1) / max(1, n - 1)) for i in range(n)})
        moments = [seen[place] for place in places]
        said = [{str(one.get("source")): one.get("output") for one in _dicts(entry["samples"])}
                for entry in moments]  # fmt: skip
        return {
            "names": self.spec.sample if self.spec else ("source", "reference"),
            "steps": [entry["step"] for entry in moments],
            "samples": [
                {"source": one.get("source"), "target": one.get("target"),
                 "outputs": [then.get(str(one.get("source"))) for then in said]}
                for one in _dicts(seen[-1]["samples"])[:MOST_SAMPLES]
            ],
        }  # fmt: skip

    def data(self) -> PanelData:
        """Return the columns of the data with their roles, and the findings of the data check."""
        found: PanelData = {"tables": _dicts(self.card.get("tables"))}
        check = _read(self.folder / CHECK)
        if isinstance(check.get("findings"), list):
            found["findings"] = _dicts(check["findings"])
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            known = DataReport.from_dict(check)
            found["counts"] = known.counts()
            found["labels"] = [[name, *counts] for name, counts in known.labels.items()]
        return found if found["tables"] or len(found) > 1 else {}

    def settings(self) -> PanelData:
        """Return all settings, each with its origin."""
        path = self.folder / CONFIG
        if not path.is_file():
            return {}
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError):
            return {"text": text}
        comments = {f"{section}.{name}": said for section, found in comments_of(text).items()
                    for name, said in found.items()}  # fmt: skip
        for name in ("asked", "format", "fingerprint", "task", "labels"):
            values.pop(name, None)
        rows = []
        for key, value in flatten(values).items():
            said = comments.get(key, "")
            how = next((how for how in (CHOSEN, ASKED) if said.startswith(how)), "")
            rows.append([key, toml_value(value), how.rstrip(": "), said.removeprefix(how)])
        return {"rows": rows}

    def log(self) -> PanelData:
        """Return all evaluations and other events."""
        evaluations = [
            [entry["step"], *(_known(number(entry.get(one.name))) for one in self.metrics)]
            for entry in self.history.valid
        ]
        events = [[one["step"], str(one.get("text", ""))] for one in self.history.event]
        left = len(events) - MOST_EVENTS
        more = f"and {left:,} more in {LOG}" if left > 0 else ""
        if not evaluations and not events:
            return {}
        return {
            "metrics": [_about(metric) for metric in self.metrics],
            "evaluations": evaluations, "events": events[:MOST_EVENTS], "more": more,
        }  # fmt: skip


def _about(metric: Metric) -> PanelData:
    return {"label": metric.label, "unit": metric.unit, "lower": metric.lower,
            "digits": metric.digits}  # fmt: skip


def _tile(metric: Metric, value: float, note: str) -> PanelData:
    arrow = "↓" if metric.lower else "↑"
    return {"name": f"{metric.axis} {arrow}", "value": _digits(value, metric), "note": note}


def _digits(value: float, metric: Metric) -> str:
    return f"{value:.{metric.digits}f}" if math.isfinite(value) else "–"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _series(name: str, points: Sequence[StepValue]) -> PanelData:
    """Return a chart line of at most `MOST_POINTS` points. Each point is the mean of a group of
    neighbours. A group without finite values becomes a gap."""
    size = math.ceil(len(points) / MOST_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    drawn = [[group[-1][0], _short(known)] for group in groups
             for known in [[y for _, y in finite(group)]]]  # fmt: skip
    return {"name": name, "points": drawn}


def _short(values: Sequence[float]) -> float | None:
    return float(f"{sum(values) / len(values):.6g}") if values else None


def _best(
    metric: Metric, points: Sequence[StepValue], loss: Mapping[float, float] | None = None
) -> StepValue | None:
    """Return the point of the evaluation with the best metric. Ties are broken by the lowest loss,
    as in training."""
    sign = 1 if metric.lower else -1
    return min(
        finite(points),
        key=lambda point: (sign * point[1], (loss or {}).get(point[0], math.inf)),
        default=None,
    )


def _alike(metrics: Sequence[Metric]) -> list[list[Metric]]:
    """Group the metrics that can share a chart, because they have the same unit and the same
    direction (higher or lower is better).

    Among metrics without a unit, BLEU and chrF share a scale up to 100. Perplexity, bits per byte
    and custom metrics have a chart each. The loss has its own chart, shared with the training loss.
    """
    groups: dict[tuple[str, bool], list[Metric]] = {}
    for metric in metrics:
        if metric.name != "loss":
            alone = metric.name not in ("bleu", "chrf")
            scale = metric.unit or (metric.name if alone else "of 100")
            groups.setdefault((scale, metric.lower), []).append(metric)
    return [
        group[first : first + MOST_LINES]
        for group in groups.values()
        for first in range(0, len(group), MOST_LINES)
    ]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _dicts(found: object) -> list[LogEntry]:
    listed = found if isinstance(found, list) else []
    return [one for one in listed if isinstance(one, dict)]


def _read(path: Path) -> LogEntry:
    """Read a JSON object from a file. Return an empty object if the file is missing or invalid."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _licence(folder: Path) -> str:
    """Return the licence of a run, from the README header that the Hugging Face Hub uses, or from
    the first line of LICENSE."""
    with suppress(OSError):
        head = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
        for line in head.split("\n---", 1)[0].splitlines() if head.startswith("---") else ():
            if line.startswith("license:"):
                return line.removeprefix("license:").strip()
    with suppress(OSError):
        text = (folder / "LICENSE").read_text(encoding="utf-8", errors="replace")
        return text.strip().partition("\n")[0].strip()
    return ""


def model_card(
    parameters: int, learning: int, data: str, tables: Sequence[Mapping[str, object]],
    device: str, precision: str,
) -> str:  # fmt: skip
    """Return the text of `card.json`, which is written when training begins."""
    return json.dumps({
        "parameters": parameters, "learning": learning, "data": data, "tables": list(tables),
        "device": device, "precision": precision, "date": time.strftime("%Y-%m-%d"),
        "headway": __version__,
    }, ensure_ascii=False, indent=1)  # fmt: skip
