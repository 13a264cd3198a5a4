"""The report of a run: whole HTML whatever the files hold, and nothing of theirs becomes markup."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headway.tasks.specs import METRICS
from headway.training.chart import Series, chart, linear_axis, log_axis, short, thinned
from headway.training.history import read_history
from headway.training.report import write_report

VOID = {"meta", "br", "line", "circle", "path", "link", "img"}


class Page(HTMLParser):
    """Checks that every tag is closed, and collects what a reader would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def entries(n: int = 4) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for step in range(1, n + 1):
        found.append(
            {"kind": "train", "step": 10 * step, "epoch": 0, "loss": 9 / step, "nll": 8 / step}
            | {"lr": 1e-4 * step, "grad_norm": 1.0 / step, "tokens_per_s": 1000.0, "stall": 0.01}
        )
        samples = [{"source": "ein Hund", "target": "a dog", "output": f"output {step}"}]
        found.append(
            {"kind": "valid", "step": 10 * step, "loss": 8 / step, "ppl": math.exp(8 / step)}
            | {"bleu": 10.0 * step, "chrf": 12.0 * step, "seconds": 1.5, "samples": samples}
        )
    found.append({"kind": "event", "step": 20, "text": "1 step skipped"})
    scores = {"best": {"bleu": 40.0, "loss": 2.0}, "average": {"bleu": 41.25, "loss": 1.9}}
    end = {"kind": "end", "step": 10 * n, "seconds": 75.0, "kept": "average", "scores": scores}
    return [*found, {**end, "text": "kept: average (averaging gains +1.25)"}]


def written(folder: Path, lines: list[dict[str, Any]], tail: str = "") -> tuple[str, Page]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + tail)
    path = write_report(folder)
    assert path == folder / "report.html"
    html = path.read_text(encoding="utf-8")
    return html, Page(html)


def test_it_shows_curves_scores_samples_events_and_settings(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('task = "translate"\n')
    (tmp_path / "data").mkdir()
    example = {"place": "a.de:17", "source": "", "target": "Hello"}
    finding = {"level": "warning", "text": "3 empty lines", "examples": [example]}
    (tmp_path / "data" / "report.json").write_text(json.dumps({"findings": [finding]}))
    html, page = written(tmp_path, entries())
    text = " ".join(page.text)
    for wanted in (
        "41.25",  # the final score
        "1m 15s",
        "averaging gains +1.25",
        "✓ average",
        "best 40.0",
        "1 step skipped",
        "3 empty lines",
        "a.de:17",
        'task = "translate"',
    ):
        assert wanted in text, wanted
    # The first, the middle and the last evaluation.
    assert [number for number in range(1, 5) if f"output {number}" in text] == [1, 3, 4]
    assert page.tags.count("svg") == 6
    assert "ein Hund" in text
    assert "prefers-color-scheme: dark" in html


def test_it_needs_nothing_from_outside(tmp_path: Path) -> None:
    html, page = written(tmp_path, entries())
    assert not re.search(r"https?://|//\w+\.\w+|@import|url\(", html)
    assert not [name for _, name, _ in page.attributes if name in ("src", "href", "srcset")]


def test_text_from_data_is_never_markup(tmp_path: Path) -> None:
    evil = "</pre></script><script>alert('x')</script><img src=x onerror=\"y\"> {{title}} &amp;"
    lines = entries(2)
    for line in lines:
        if "text" in line:
            line["text"] = evil
        for sample in line.get("samples", []):
            sample.update(source=evil, target=evil, output=evil)
        if "scores" in line:
            line["scores"], line["kept"] = {evil: {evil: 3.0, "bleu": 1.0}}, evil
    (tmp_path / "config.toml").write_text(evil)
    (tmp_path / "data").mkdir()
    finding = {"level": evil, "text": evil, "examples": [{"place": evil, "source": evil}, evil]}
    (tmp_path / "data" / "report.json").write_text(json.dumps({"findings": [finding]}))
    folder = tmp_path / "<b>{{body}}"
    folder.mkdir()
    for name in ("config.toml", "data"):
        (tmp_path / name).rename(folder / name)
    _, page = written(folder, lines)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "".join(page.text).count(evil) >= 9
    assert "<b>{{body}}" in page.text


@pytest.mark.parametrize("tail", ["", '{"kind": "trai', "\x00\x00", "[1, 2]\n7\nnull\n", "\n\n"])
def test_a_torn_or_foreign_line_is_passed_over(tmp_path: Path, tail: str) -> None:
    whole, _ = written(tmp_path, entries())
    torn, _ = written(tmp_path, entries(), tail)
    assert torn == whole


@pytest.mark.parametrize("lines", [[], entries(1), entries(1)[:1], entries(1)[1:2]])
def test_no_line_and_one_line_are_enough(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    html, page = written(tmp_path, lines)
    assert ("Nothing was measured yet" in html) == (not lines)
    assert "nan" not in html.replace("finance", "").lower().split("<script>")[0]
    assert ("svg" in page.tags) == bool(lines)


def test_an_empty_folder_has_a_report_too(tmp_path: Path) -> None:
    assert "Nothing was measured yet" in write_report(tmp_path).read_text()


def test_what_is_not_a_number_leaves_a_gap(tmp_path: Path) -> None:
    lines = entries(5)
    lines[4] |= {"loss": math.nan, "grad_norm": math.inf}
    lines[5] |= {"loss": math.nan, "ppl": math.inf, "bleu": math.nan, "chrf": None}
    html, page = written(tmp_path, lines)
    drawn = [value for _, name, value in page.attributes if name in ("d", "cx", "cy", "x", "y")]
    assert not [value for value in drawn if re.search("nan|inf", value)]
    losses = next(value for _, name, value in page.attributes if name == "d")
    assert losses.count("M") == 2
    assert "NaN" not in html.split("<script>")[0]  # which no JSON.parse would take
    for _, name, value in page.attributes:
        if name == "data-series":
            json.loads(value, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "end", [{}, {"scores": None, "kept": 3}, {"scores": {"a": 1}}, {"scores": {}, "seconds": "x"}]
)
def test_an_unusual_end_breaks_nothing(tmp_path: Path, end: dict[str, Any]) -> None:
    written(tmp_path, [*entries()[:-1], {"kind": "end", "step": 40, **end}])


def test_lines_come_in_the_order_of_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in reversed(entries())))
    assert [entry["step"] for entry in read_history(path.parent).train] == [10, 20, 30, 40]


def test_a_long_run_draws_few_points_with_the_same_mean() -> None:
    points = [(step, math.sin(step)) for step in range(100_000)]
    few = thinned(points)
    assert len(few) <= 400
    assert few[-1][0] == 99_999
    assert sum(y for _, y in few) / len(few) == pytest.approx(
        sum(y for _, y in points) / len(points), abs=1e-3
    )
    assert thinned([(1, math.nan), (2, 3.0)]) != []


def test_a_value_lies_where_its_axis_says() -> None:
    html = chart("t", [Series("a", [(0, 0.0), (50, 2.5), (100, 10.0)])])
    path = re.search(r' d="M(.*?)"', html)
    assert path is not None
    places = [tuple(map(float, place.split())) for place in path[1].split("L")]
    ticks = {
        float(value): float(y) - 4
        for y, value in re.findall(r'y="([\d.]+)" class="end">(\d+)', html)
    }
    assert places[0][1] == pytest.approx(ticks[0], abs=0.1)
    assert places[2][1] == pytest.approx(ticks[10], abs=0.1)
    assert places[2][1] < places[0][1]  # more is higher up
    assert places[1][1] == pytest.approx(0.75 * ticks[0] + 0.25 * ticks[10], abs=0.2)
    assert places[1][0] == pytest.approx((places[0][0] + places[2][0]) / 2, abs=0.2)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1),
        (0.00012, 0.0007),
        (-3, 17),
        (5, 5),
        (0, 0),
        (1e6, 3e6),
        (1.9, 2.0),
        (100, 100.00000000000003),
    ],
)
def test_round_ticks_hold_the_data(low: float, high: float) -> None:
    axis = linear_axis(low, high, 5)
    assert axis.low <= low <= high <= axis.high
    assert 3 <= len(axis.ticks) <= 9
    assert len({short(tick) for tick in axis.ticks}) == len(axis.ticks)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (0.3, 0.31), (4, 150), (1, 1e12), (1e-9, 1e9)])
def test_logarithmic_ticks_hold_the_data(low: float, high: float) -> None:
    axis = log_axis(low, high)
    assert axis.low <= low * 1.001
    assert axis.high >= high * 0.999
    assert axis.low < axis.high
    assert 2 <= len(axis.ticks) <= 8
    assert axis.share(low) >= -0.01
    assert axis.share(high) <= 1.01


def test_numbers_on_an_axis_are_short() -> None:
    values = [0, 0.5, 12, 999, 1000, 1500, 999_999, 1e6, 2.5e7, 5e-4, 7e-5, -2000]
    wanted = ["0", "0.5", "12", "999", "1k", "1.5k", "1000k", "1M", "25M", "5e-4", "7e-5", "-2k"]
    assert [short(value) for value in values] == wanted


def test_a_small_range_is_not_drawn_on_a_logarithmic_scale() -> None:
    def ticks(high: float) -> list[str]:
        html = chart("t", [Series("a", [(0, 300.0), (1, high)])], log=True)
        return re.findall(r'class="end">([^<]+)', html)

    assert ticks(366.0)[:2] == ["300", "320"]
    assert ticks(3000.0) == ["200", "500", "1k", "2k", "5k"]


# Figures

FIGURES: dict[str, Any] = {
    "confusion": {"labels": ["<neg>", "pos"], "counts": [[40, 10], [5, 45]]},
    "classes": [{"label": "<neg>", "precision": 0.9, "recall": 0.8, "f1": 0.85, "support": 50}],
    "calibration": {
        "bins": [{"low": 0.8, "high": 1.0, "count": 100, "confidence": 0.9, "accuracy": 0.85}],
        "ece": 0.05,
        "temperature": 1.25,
        "ece_after": 0.01,
    },
}


def classified(folder: Path, figures: Any, end_figures: Any = None) -> tuple[str, Page]:
    (folder / "config.toml").write_text('task = "classify"\n')
    valid = {"kind": "valid", "step": 5, "loss": 0.5, "accuracy": 80.0, "f1": 79.0}
    sample = {"source": "a text", "target": "pos", "output": "pos (0.93)"}
    train = {"kind": "train", "step": 5, "loss": 0.6, "nll": 0.6, "tokens_per_s": 100.0}
    lines: list[dict[str, Any]] = [train, {**valid, "samples": [sample], "figures": figures}]
    if end_figures is not None:
        lines.append({"kind": "end", "step": 5, "figures": end_figures})
    return written(folder, lines)


def test_a_classifier_has_its_own_figures(tmp_path: Path) -> None:
    html, page = classified(tmp_path, FIGURES)
    text = " ".join(page.text)
    for shown in ("Confusion matrix", "<neg>", "40", "Reliability", "calibration error 5.0 %",
                  "1.0 % at a temperature of 1.25", "85.0",
                  "Loss per text", "Validation accuracy and F1", "tokens/s", "label"):  # fmt: skip
        assert shown in text, shown
    assert "<neg>" not in html
    assert "--share:80%" in html
    assert "BLEU" not in text
    assert "as optimised" not in text  # the same line as the likelihood


def test_the_figures_of_the_model_that_was_kept_come_first(tmp_path: Path) -> None:
    kept = {"confusion": {"labels": ["neg", "pos"], "counts": [[1234, 0], [0, 1]]}}
    _, page = classified(tmp_path, FIGURES, kept)
    text = " ".join(page.text)
    assert "1,234" in text
    assert "Reliability" not in text


def test_many_classes_are_shown_by_their_mistakes(tmp_path: Path) -> None:
    n = 60
    counts = [[3 if i == j else 7 if (i, j) == (4, 9) else 0 for j in range(n)] for i in range(n)]
    labels = [f"class {i}" for i in range(n)]
    html, page = classified(tmp_path, {"confusion": {"labels": labels, "counts": counts}})
    assert "class 9" in " ".join(page.text)
    assert "class 30" not in " ".join(page.text)
    assert len(html) < 30_000


@pytest.mark.parametrize(
    "broken",
    [
        {"confusion": {"labels": ["a"], "counts": [[1, 2]]}},
        {"confusion": {"labels": ["a"], "counts": [["x"]]}},
        {"confusion": [1]},
        {"calibration": {"bins": [{"low": 0.1}], "ece": 0.1, "temperature": 1.0}},
        {"calibration": {"bins": [], "ece": None, "temperature": None}},
        {"calibration": 3},
        {"classes": [3, {"label": None}]},
        {"classes": {"a": 1}},
        "nothing",
    ],
)
def test_broken_figures_are_left_out(tmp_path: Path, broken: Any) -> None:
    _, page = classified(tmp_path, broken)
    assert "Validation accuracy and F1" in " ".join(page.text)


@pytest.mark.parametrize("name", list(METRICS))
def test_every_score_has_its_tile_curve_and_column(tmp_path: Path, name: str) -> None:
    metric = METRICS[name]
    values = [40.0, 20.0, 30.0]
    lines: list[dict[str, Any]] = [
        {"kind": "valid", "step": 10 * n, "loss": 1.0, "seconds": 1.0} | {name: value}
        for n, value in enumerate(values, 1)
    ]
    html, _ = written(tmp_path, lines)
    best = min(values) if metric.lower else max(values)
    assert f"<th>{metric.axis}</th>" in html
    if name != "loss":  # which has its own chart, together with that of training
        assert f"<span>{metric.axis}</span><b>{best:.{metric.digits}f}</b>" in html
        assert f"best {best:.1f}" in html
        unit = f", {metric.unit}" if metric.unit else ""
        assert f"<b>Validation {metric.label}{unit}</b>" in html


def test_scores_that_fall_and_scores_that_rise_have_charts_of_their_own(tmp_path: Path) -> None:
    names = ("wer", "cer", "accuracy", "f1", "precision", "recall", "bleu", "ppl", "bits_per_byte")
    lines = [{"kind": "valid", "step": n, **dict.fromkeys(names, 10.0 * n)} for n in (1, 2)]
    html, _ = written(tmp_path, lines)
    titles = re.findall(r"<figcaption><b>Validation ([^<]*)</b>", html)
    assert titles == [
        "accuracy, F1 and precision, %", "recall, %", "BLEU", "WER and CER, %", "perplexity",
        "bits per byte",
    ]  # fmt: skip


def test_baselines_stand_beside_the_scores(tmp_path: Path) -> None:
    baselines = {
        "majority class": {"accuracy": 50.0, "loss": 0.69},
        "bag of words": {"accuracy": 79.5},
    }
    end: dict[str, Any] = {
        "kind": "end", "step": 5, "kept": "best", "text": "kept: best", "advice": "more <data>",
        "scores": {"best": {"accuracy": 78.0, "loss": 0.5}}, "baselines": baselines,
    }  # fmt: skip
    html, page = written(tmp_path, [end])
    text = " ".join(page.text)
    assert "more <data>" in text
    assert "final model; baseline 79.50" in text
    rows = [re.findall(r"<td>([^<]*)</td>", row) for row in re.findall(r"<tr[^>]*>.*?</tr>", html)]
    assert ["✓ best", "78.00", "0.500"] in rows
    assert ["baseline: majority class", "50.00", "0.690"] in rows
    assert ["baseline: bag of words", "79.50", "–"] in rows


@pytest.mark.parametrize("broken", [3, {"majority": 3}, {"majority": {"accuracy": "much"}}, None])
def test_broken_baselines_are_left_out(tmp_path: Path, broken: Any) -> None:
    end = {"kind": "end", "step": 5, "kept": "best", "scores": {"best": {"accuracy": 78.0}}}
    _, page = written(tmp_path, [{**end, "baselines": broken}])
    assert "78.00" in " ".join(page.text)
