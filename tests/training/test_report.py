"""The report of a run: whole whatever the files hold, drawn in a browser, and nothing of theirs
becomes markup."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.specs.metrics import METRICS
from headway.tasks.history import read_history
from headway.tasks.thumbnails import waveform_peaks
from headway.training.report import Throttled, write_report
from headway.web.pack import unpack
from tests.inside.browser import OpenPage, browser, open_page

__all__ = ["browser"]

PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgAB"
    "SK+kcQAAAABJRU5ErkJggg=="
)


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


def written(folder: Path, lines: list[dict[str, Any]], tail: str = "") -> dict[str, Any]:
    """The sections of the report."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + tail)
    path = write_report(folder)
    assert path == folder / "report.html"
    sections: dict[str, Any] = unpack(path.read_text(encoding="utf-8"))["looks"][0]["sections"]
    return sections


def opened(browser: Any, folder: Path, tab: str = "summary", **how: Any) -> OpenPage:
    """The report that is there, at one of its tabs."""
    html = (folder / "report.html").read_text(encoding="utf-8")
    return open_page(browser, html, folder, state=f"tab={tab}", **how)


def titles(sections: dict[str, Any]) -> list[str]:
    return [one["title"] for one in sections["curves"]["charts"]]


def chart(sections: dict[str, Any], term: str) -> dict[str, Any]:
    """The only chart with this term in its title."""
    [found] = [one for one in sections["curves"]["charts"] if term in one["title"]]
    return found


def test_it_holds_scores_curves_samples_data_settings_and_events(tmp_path: Path) -> None:
    config = "[train]\nlr = 0.1  # asked: --set\nsteps = 40  # chosen: 4 epochs\nclip = 1.0\n"
    (tmp_path / "config.toml").write_text(
        f'task = "translate"\n{config}[asked]\n"train.lr" = 0.1\n'
    )
    (tmp_path / "data").mkdir()
    example = {"place": "a.de:17", "source": "", "target": "Hello"}
    finding = {"level": "warning", "text": "3 empty lines", "examples": [example]}
    (tmp_path / "data" / "report.json").write_text(json.dumps({"findings": [finding]}))
    columns = [["de", "source", "text", '"ein Hund"'], ["id", "", "", "not used"]]
    card = {"parameters": 1234, "learning": 1000, "data": "9 pairs", "date": "2026-01-31",
            "tables": [{"file": "x/a.tsv", "form": "tabs", "columns": columns}]}  # fmt: skip
    (tmp_path / "card.json").write_text(json.dumps(card))
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# mine\n")
    found = written(tmp_path, entries())
    summary, facts = found["summary"], dict(found["summary"]["card"])
    assert summary["status"] == ""
    assert [(one["name"], one["value"]) for one in summary["tiles"]] == [
        ("BLEU ↑", "41.25"), ("chrF ↑", "48.00"), ("perplexity ↓", "7.39"), ("steps", "40"),
        ("tokens/s", "1,000"), ("time", "1m 15s"),
    ]  # fmt: skip
    assert summary["said"] == ["kept: average (averaging gains +1.25)"]
    assert [one["name"] for one in summary["scores"]["columns"] if one.get("kept")] == ["average"]
    assert facts["task"] == "translate"
    assert re.findall(r"[\d,]*\d", facts["parameters"]) == ["1,234", "1,000"]
    assert any("9 pairs" in fact and "a.tsv" in fact for fact in facts.values())
    assert facts["BLEU"] == "41.25"
    assert (facts["licence"], facts["date"]) == ("mit", "2026-01-31")
    for title, term in zip(
        titles(found), ("Loss", "BLEU", "perplexity", "rate", "norm", "Tokens"), strict=True
    ):
        assert term in title
    assert chart(found, "BLEU") == chart(found, "chrF")
    *best, label = chart(found, "BLEU")["best"]
    assert best == [40, 40.0]
    assert "40.00" in label
    assert found["samples"]["names"] == ["source", "reference"]
    assert found["samples"]["steps"] == [10, 20, 30, 40]
    assert found["samples"]["samples"][0]["outputs"] == [f"output {n}" for n in range(1, 5)]
    assert found["data"]["findings"][0]["examples"] == [example]
    assert found["data"]["tables"][0]["columns"] == columns
    assert found["settings"]["rows"] == [
        ["train.lr", "0.1", "asked", "--set"], ["train.steps", "40", "chosen", "4 epochs"],
        ["train.clip", "1.0", "", ""],
    ]  # fmt: skip
    assert found["log"]["events"] == [[20, "1 step skipped"]]
    assert found["log"]["evaluations"][0][:3] == [10, 10.0, 12.0]


def test_of_equal_scores_the_one_that_training_keeps_is_marked(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('task = "translate"\n[train]\nsteps = 90\n')
    lines = [one | {"bleu": 20.0} if one["kind"] == "valid" else one for one in entries()[:-1]]
    found = written(tmp_path, lines)
    assert chart(found, "BLEU")["best"][:2] == [40, 20.0]
    assert "20.00" in chart(found, "BLEU")["best"][2]
    assert "step 40" in found["summary"]["tiles"][0]["note"]


def test_the_report_of_an_unfinished_run_is_readable_and_marked(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('task = "translate"\n[train]\nsteps = 90\n')
    found = written(tmp_path, entries()[:5])
    assert re.search(r"\b30\b.*\b90\b", found["summary"]["status"])
    best, last = (one["name"] for one in found["summary"]["scores"]["columns"])
    assert "best" in best
    assert last == "step 20"
    assert "step 20" in found["summary"]["tiles"][0]["note"]


def test_reports_on_the_way_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = 0.0, []

    def write() -> None:
        nonlocal now
        now += 2.0
        written.append(now)

    clock = SimpleNamespace(monotonic=lambda: now)  # of this module alone: servers go on
    monkeypatch.setattr("headway.training.report.time", clock)
    report = Throttled(write)
    for _ in range(1000):
        now += 1.0
        report()
    assert written[0] == 3.0  # at once
    assert 2.0 * len(written) <= 0.025 * now
    assert len(written) > 5


def test_every_tab_draws_what_the_report_holds(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('task = "translate"\n[train]\nlr = 0.1  # chosen: why\n')
    (tmp_path / "data").mkdir()
    finding = {"level": "warning", "text": "3 empty lines", "examples": []}
    (tmp_path / "data" / "report.json").write_text(json.dumps({"findings": [finding]}))
    written(tmp_path, entries())
    page = opened(browser, tmp_path)
    shown = {}
    for tab in ("summary", "curves", "samples", "data", "settings", "log"):
        page.tab(tab)
        shown[tab] = page.locator("main").inner_text()
    for tab, text in [("summary", "41.25"), ("summary", "↑"), ("summary", "✓ average"),
                      ("curves", "40.00"), ("samples", "output 4"), ("data", "3 empty lines"),
                      ("settings", "chosen: why"), ("log", "1 step skipped")]:  # fmt: skip
        assert text in shown[tab], tab
    page.tab("curves")
    assert page.locator("[data-card] svg.lines").count() == 6
    loss = page.locator("[data-card^=loss] [data-series=validation] circle")
    assert loss.evaluate_all("(all) => all.map((one) => Number(one.dataset.value))") == [
        8, 4, pytest.approx(8 / 3, rel=1e-5), 2
    ]  # fmt: skip
    page.locator("[data-card=learning-rate] summary").click()
    with page.expect_download() as saved:
        page.locator("[data-card=learning-rate] [data-export=csv]").click()
    assert Path(saved.value.path()).read_text().splitlines()[1].endswith(",10,0.0001")
    page.close()


def test_it_fits_a_phone_and_has_a_dark_theme(browser: Any, tmp_path: Path) -> None:
    written(tmp_path, [{**one, "figures": FIGURES} for one in entries()])
    page = opened(browser, tmp_path, width=390, dark=True)
    assert page.locator("html[data-theme=dark]").count() == 1
    for tab in ("summary", "curves", "answers", "samples", "log"):
        page.tab(tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
    page.close()


def test_text_from_data_is_never_markup(browser: Any, tmp_path: Path) -> None:
    evil = "</pre></script><script>alert('x')</script><img src=x onerror=\"y\"> {{title}} &amp; $"
    lines = entries(2)
    for line in lines:
        if "text" in line:
            line["text"] = evil
        for sample in line.get("samples", []):
            sample.update(source=evil, target=evil, output=evil)
        if "scores" in line:
            line["scores"], line["kept"] = {evil: {evil: 3.0, "bleu": 1.0}}, evil
    folder = tmp_path / "<b>{{body}}"
    (folder / "data").mkdir(parents=True)
    (folder / "config.toml").write_text(evil)
    finding = {"level": evil, "text": evil, "examples": [{"place": evil, "source": evil}]}
    (folder / "data" / "report.json").write_text(json.dumps({"findings": [finding]}))
    written(folder, lines)
    page = opened(browser, folder)
    assert page.locator("h1").inner_text() == "<b>{{body}}"
    for tab in ("summary", "samples", "data", "settings", "log"):
        page.tab(tab)
        assert evil in page.locator("main").text_content(), tab
        assert page.locator("main img, main script").count() == 0
    page.close()


@pytest.mark.parametrize("tail", ["", '{"kind": "trai', "\x00\x00", "[1, 2]\n7\nnull\n", "\n\n"])
def test_a_torn_or_foreign_line_is_passed_over(tmp_path: Path, tail: str) -> None:
    whole = written(tmp_path, entries())
    assert written(tmp_path, entries(), tail) == whole


@pytest.mark.parametrize("lines", [[], entries(1), entries(1)[:1], entries(1)[1:2]])
def test_no_line_and_one_line_are_enough(
    browser: Any, tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    found = written(tmp_path, lines)
    ended = bool(lines) and lines[-1]["kind"] == "end"
    assert bool(found["summary"]["status"]) == (not ended)
    steps = re.findall(r"(?i)\bstep (\d+)", found["summary"]["status"])
    assert steps == [str(line["step"]) for line in lines[-1:] if not ended]
    assert ("curves" in found) == bool(lines)
    page = opened(browser, tmp_path)
    assert page.locator(".failed").count() == 0
    assert "NaN" not in page.locator("main").inner_text()
    page.close()


def test_what_is_not_a_number_leaves_a_gap(browser: Any, tmp_path: Path) -> None:
    lines = entries(5)
    lines[4] |= {"nll": math.nan, "grad_norm": math.inf}
    lines[5] |= {"loss": math.nan, "ppl": math.inf, "bleu": math.nan, "chrf": None}
    written(tmp_path, lines)
    page = opened(browser, tmp_path, "curves")
    paths = page.locator("path.line").evaluate_all(
        "(all) => all.map((one) => one.attributes.d.value)"
    )
    assert not [path for path in paths if "NaN" in path or "Infinity" in path]
    assert page.locator("[data-series=training] path").get_attribute("d").count("M") == 2
    page.close()


@pytest.mark.parametrize(
    "end", [{}, {"scores": None, "kept": 3}, {"scores": {"a": 1}}, {"scores": {}, "seconds": "x"}]
)
def test_an_unusual_end_breaks_nothing(tmp_path: Path, end: dict[str, Any]) -> None:
    written(tmp_path, [*entries()[:-1], {"kind": "end", "step": 40, **end}])


def test_lines_come_in_the_order_of_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in reversed(entries())))
    assert [entry["step"] for entry in read_history(path.parent).train] == [10, 20, 30, 40]


def test_a_long_run_draws_few_points_with_the_same_mean(tmp_path: Path) -> None:
    lines = [{"kind": "train", "step": n, "nll": math.sin(n)} for n in range(1, 10_001)]
    few = chart(written(tmp_path, lines), "Loss")["series"][0]["points"]
    assert len(few) <= 400
    assert few[-1][0] == 10_000
    mean = sum(line["nll"] for line in lines) / len(lines)
    assert sum(y for _, y in few) / len(few) == pytest.approx(mean, abs=1e-3)


def test_axes_have_round_ticks_that_hold_the_data(browser: Any, tmp_path: Path) -> None:
    written(tmp_path, entries())
    page = opened(browser, tmp_path)
    code = """([low, high, log]) => { const axis = axisOf({ log }, [low, high], 5);
      return [axis.low, axis.high, axis.ticks.map(([v]) => short(v))]; }"""
    ranges = [(0, 1), (0.00012, 0.0007), (-3, 17), (5, 5), (0, 0), (1e6, 3e6), (1.9, 2.0),
              (100, 100.00000000000003), (4, 150), (1, 1e12), (1e-9, 1e9), (300, 366)]  # fmt: skip
    for low, high in ranges:
        for log in (False, *[True] * (low > 0)):
            first, last, ticks = page.evaluate(code, [low, high, log])
            assert first <= low * 1.001, (low, high)
            assert last >= high * 0.999, (low, high)
            assert 2 <= len(ticks) <= 9, (low, high, ticks)
            assert len(set(ticks)) == len(ticks)
    assert page.evaluate(code, [300, 3000, True])[2] == ["200", "500", "1000", "2000", "5000"]
    assert page.evaluate(code, [300, 366, True])[2][:2] == [
        "300",
        "320",
    ]  # too small for a log scale
    values = [0, 0.5, 12, 999, 10_000, 15_000, 1e6, 2.5e7, 5e-4, 7e-5, -20_000]
    wanted = ["0", "0.5", "12", "999", "10k", "15k", "1M", "25M", "5e-4", "7e-5", "−20k"]
    assert page.evaluate("(all) => all.map(short)", values) == wanted
    page.close()


# Figures

ONE = {"image": PNG, "true": "<neg>", "said": "pos", "sure": 0.75}
FIGURES: dict[str, Any] = {
    "confusion": {"labels": ["<neg>", "pos"], "counts": [[40, 10], [5, 45]]},
    "classes": [{"label": "<neg>", "precision": 0.9, "recall": 0.8, "f1": 0.85, "support": 50}],
    "calibration": {
        "bins": [{"low": 0.8, "high": 1.0, "count": 100, "confidence": 0.9, "accuracy": 0.85}],
        "ece": 0.05, "temperature": 1.25, "ece_after": 0.01,
    },
    "examples": {
        "confused": [
            {"true": "<neg>", "said": "pos", "count": 12, "share": 0.06, "examples": [ONE, ONE]}
        ],
        "wrong": [ONE], "right": [{**ONE, "said": "<neg>"}], "classes": [ONE],
    },
    "numbers": [[1.0, 1.5], [2.0, 1.75], [3.0, 3.25]],
    "verification": {"eer": 0.0123, "threshold": 0.5, "same": 1200, "other": 34000},
    "distilled": {
        "metric": "accuracy",
        "teacher": {"parameters": 11_806_400, "batches_per_s": 2.0, "scores": {"accuracy": 80.25}},
        "student": {"parameters": 6_884_000, "batches_per_s": 3.5, "scores": {"accuracy": 79.5}},
    },
    "described": [
        {"image": PNG, "target": "a <b> │ a cat", "output": "a cat"},
        {"wave": [0, 50, 100], "target": "a <b>", "output": "a dog"},
    ],
}  # fmt: skip


def answers(browser: Any, folder: Path, figures: Any, end: Any = None) -> OpenPage:
    (folder / "config.toml").write_text('task = "classify"\n')
    valid = {"kind": "valid", "step": 5, "loss": 0.5, "accuracy": 80.0, "f1": 79.0}
    lines: list[dict[str, Any]] = [{**valid, "figures": figures}]
    if end is not None:
        lines.append({"kind": "end", "step": 5, "figures": end})
    written(folder, lines)
    return opened(browser, folder, "answers" if isinstance(figures, dict) else "summary")


def test_axes_of_percentages_end_at_100(browser: Any, tmp_path: Path) -> None:
    lines = [{"kind": "valid", "step": n, "accuracy": 100.0, "loss": 0.1 * n} for n in (1, 2)]
    written(tmp_path, lines)
    page = opened(browser, tmp_path, "curves")
    ticks = page.locator("[data-card=validation-accuracy-] text.end").all_text_contents()
    assert max(float(tick) for tick in ticks) == 100.0
    page.close()


def test_all_figures_are_drawn(browser: Any, tmp_path: Path) -> None:
    page = answers(browser, tmp_path, FIGURES)
    text = page.locator("main").inner_text()
    for shown in ("step 5", "<neg>", "12", "6.0 %", "1.23 %", "34,000", "11,806,400", "80.25",
                  "a <b>"):  # fmt: skip
        assert shown in text, shown
    assert re.search(r"\b5\.0 %.*\b1\.25\b.*\b1\.0 %", text)
    assert page.values("[data-card=confusion] td") == [40, 10, 5, 45]
    assert page.values("[data-card=numbers] circle") == [1.5, 1.75, 3.25]
    assert page.locator("[data-card=confusion] img").count() == 2
    assert page.locator("[data-card=examples] img").count() == 4
    assert page.locator("[data-card=described] figure svg").count() == 1
    assert page.locator("[data-card=described] .wrong").all_inner_texts() == ["a dog"]
    page.close()


def test_the_figures_of_the_model_that_was_kept_come_first(browser: Any, tmp_path: Path) -> None:
    kept = {"confusion": {"labels": ["neg", "pos"], "counts": [[1234, 0], [0, 1]]}}
    page = answers(browser, tmp_path, FIGURES, kept)
    text = page.locator("main").inner_text()
    assert "1,234" in text
    assert "step 5" not in text
    assert page.locator("[data-card=confusion]").count() == 1
    assert page.locator("[data-card=calibration], [data-card=classes]").count() == 0
    page.close()


def test_many_classes_are_shown_by_their_mistakes(browser: Any, tmp_path: Path) -> None:
    n = 60
    counts = [[3 if i == j else 7 if (i, j) == (4, 9) else 0 for j in range(n)] for i in range(n)]
    labels = [f"class {i}" for i in range(n)]
    page = answers(browser, tmp_path, {"confusion": {"labels": labels, "counts": counts}})
    assert page.locator("main td").all_inner_texts() == ["class 4", "class 9", "7"]
    page.close()


BROKEN: list[Any] = [
    {"confusion": {"labels": ["a"], "counts": [[1, 2]]}},
    {"confusion": {"labels": ["a"], "counts": [["x"]]}},
    {"confusion": [1]},
    {"calibration": {"bins": [{"low": 0.1}], "ece": 0.1, "temperature": 1.0}},
    {"calibration": {"bins": [], "ece": None, "temperature": None}},
    {"calibration": 3},
    {"classes": {"a": 1}},
    {"numbers": [[1, None]]},
    {"verification": {"eer": 1}},
    {"distilled": {"metric": "x", "student": {}}},
    {"examples": {"confused": 3}},
    {"examples": {"wrong": [3, {}]}},
    {"examples": {"wrong": [{**ONE, "image": "https://example.org/a.png"}]}},
    {"examples": {"wrong": [{**ONE, "image": PNG + '" onload="x'}]}},
    {"examples": {"confused": [{**FIGURES["examples"]["confused"][0], "count": None}]}},
    {"described": [{}, None]},
]


def test_broken_figures_are_left_out(browser: Any, tmp_path: Path) -> None:
    for broken in BROKEN:
        page = answers(browser, tmp_path, {**broken, "numbers": broken.get("numbers", [[1, 1]])})
        cards = page.locator("[data-card]").count()
        assert cards == (0 if "numbers" in broken else 1), broken
        assert page.locator("main img").count() == 0
        page.close()
    assert "answers" not in written(tmp_path, [{"kind": "valid", "step": 1, "figures": "nothing"}])


@pytest.mark.parametrize("name", list(METRICS))
def test_every_score_has_its_tile_curve_direction_and_column(tmp_path: Path, name: str) -> None:
    metric = METRICS[name]
    values = [40.0, 20.0, 30.0]
    lines: list[dict[str, Any]] = [
        {"kind": "valid", "step": 10 * n, "loss": 1.0, "seconds": 1.0} | {name: value}
        for n, value in enumerate(values, 1)
    ]
    found = written(tmp_path, lines)
    best = min(values) if metric.lower else max(values)
    about = {
        "label": metric.label,
        "unit": metric.unit,
        "lower": metric.lower,
        "digits": metric.digits,
    }
    assert about in found["log"]["metrics"]
    row = found["summary"]["scores"]["rows"].index(about)
    assert found["summary"]["scores"]["columns"][0]["values"][row] == best
    if name != "loss":  # which has its own chart, together with that of training
        tile = found["summary"]["tiles"][0]
        assert tile["name"] == f"{metric.axis} {'↓' if metric.lower else '↑'}"
        assert tile["value"] == f"{best:.{metric.digits}f}"
        drawn = chart(found, metric.label)
        assert metric.unit in drawn["title"]
        assert f"{best:.{metric.digits}f}" in drawn["best"][2]
        assert drawn["better"] == ("lower" if metric.lower else "higher")


def test_scores_that_fall_and_scores_that_rise_have_charts_of_their_own(tmp_path: Path) -> None:
    names = ("wer", "cer", "accuracy", "f1", "precision", "recall", "bleu", "ppl", "bits_per_byte")
    lines = [{"kind": "valid", "step": n, **dict.fromkeys(names, 10.0 * n)} for n in (1, 2)]
    found = written(tmp_path, lines)["curves"]["charts"]
    assert [[one["name"] for one in drawn["series"]] for drawn in found] == [
        [METRICS[name].label for name in alike] for alike in (
            ("accuracy", "f1", "precision"), ("recall",), ("bleu",), ("wer", "cer"), ("ppl",),
            ("bits_per_byte",),
        )
    ]  # fmt: skip


def test_baselines_are_reported_with_the_scores(browser: Any, tmp_path: Path) -> None:
    baselines = {
        "majority class": {"accuracy": 50.0, "loss": 0.69},
        "bag of words": {"accuracy": 79.5},
    }
    end: dict[str, Any] = {
        "kind": "end", "step": 5, "kept": "best", "text": "kept: best", "advice": "more <data>",
        "scores": {"best": {"accuracy": 78.0, "loss": 0.5}}, "baselines": baselines,
    }  # fmt: skip
    valid = {"kind": "valid", "step": 5, "accuracy": 77.0}
    found = written(tmp_path, [valid, end])
    assert "79.50" in found["summary"]["tiles"][0]["note"]
    assert chart(found, "accuracy")["levels"] == [
        ["majority class", 50.0],
        ["bag of words", 79.5],
    ]
    page = opened(browser, tmp_path)
    rows = [
        row.locator("td").all_inner_texts()
        for row in page.locator("[data-card=scores] tbody tr").all()
    ]
    assert [(row[0].split(",")[0], row[1][-1], row[2:]) for row in rows] == [
        ("accuracy", "↑", ["78.00", "50.00", "79.50"]), ("loss", "↓", ["0.500", "0.690", "–"])
    ]  # fmt: skip
    assert page.locator("[data-level='bag of words']").get_attribute("data-value") == "79.5"
    assert "more <data>" in page.locator("main").inner_text()
    page.close()


def test_the_final_score_is_drawn_with_its_baselines(browser: Any, tmp_path: Path) -> None:
    rows = [
        {"name": "majority class", "value": 50.0, "low": None, "high": None},
        {"name": "<bag>", "value": 79.5, "low": 76.0, "high": 83.0},
        {"name": "this model", "value": 81.25, "low": 78.0, "high": 84.5},
    ]
    end: dict[str, Any] = {
        "kind": "end", "step": 5, "kept": "best", "text": "kept: best",
        "scores": {"best": {"accuracy": 81.25}}, "compared": {"metric": "accuracy", "rows": rows},
        "temperature": {"value": 1.3125, "examples": 1234},
    }  # fmt: skip
    found = written(tmp_path, [end])
    assert re.search(r"^1\.31\b.*\b1,234\b", dict(found["summary"]["card"])["temperature"])
    page = opened(browser, tmp_path)
    bars = page.locator("[data-card=compared] .bar")
    assert [one.inner_text().split("\n") for one in bars.all()] == [
        ["majority class", "50.00"],
        ["<bag>", "79.50", "76.00 – 83.00"],
        ["this model", "81.25", "78.00 – 84.50"],
    ]
    assert [one.get_attribute("data-low") for one in bars.locator(".range").all()] == ["76", "78"]
    page.close()


@pytest.mark.parametrize(
    "broken",
    [
        3,
        {},
        {"metric": "accuracy", "rows": 3},
        {"metric": 3, "rows": [{"value": 1.0}] * 2},
        {"metric": "accuracy", "rows": [{"value": "much"}, {"value": 1.0}]},
    ],
)
def test_a_broken_comparison_is_left_out(tmp_path: Path, broken: Any) -> None:
    end = {"kind": "end", "step": 5, "compared": broken, "temperature": broken}
    found = written(tmp_path, [end])
    assert found["summary"]["compared"] == {}


@pytest.mark.parametrize("broken", [3, {"majority": 3}, {"majority": {"accuracy": "much"}}, None])
def test_broken_baselines_are_left_out(tmp_path: Path, broken: Any) -> None:
    end = {"kind": "end", "step": 5, "kept": "best", "scores": {"best": {"accuracy": 78.0}}}
    found = written(tmp_path, [{**end, "baselines": broken}])
    assert found["summary"]["tiles"][0]["value"] == "78.00"


def test_scores_with_fewer_labels_are_lines_next_to_the_model(browser: Any, tmp_path: Path) -> None:
    rows = [{"name": "majority class", "value": 50.0}, {"name": "this model", "value": 81.25}]
    few = [{"each": each, "right": {"nearest neighbours": 60.0 + each}} for each in (8, 20)]
    end = {
        "kind": "end", "step": 5, "kept": "best", "text": "kept: best", "few": few,
        "scores": {"best": {"accuracy": 81.25}}, "compared": {"metric": "accuracy", "rows": rows},
    }  # fmt: skip
    found = written(tmp_path, [end])["summary"]["few"]["lines"]
    assert [one["name"] for one in found] == ["nearest neighbours", "this model"]
    assert [one["points"] for one in found] == [[[8, 68.0], [20, 80.0]], [[20, 81.25]]]
    page = opened(browser, tmp_path)
    assert page.locator("[data-card=few-labels] circle").count() == 3
    page.close()


@pytest.mark.parametrize("broken", [3, [3], [{"each": 8}], [{"right": {"a": "b"}}]])
def test_a_broken_curve_of_labels_breaks_nothing(tmp_path: Path, broken: Any) -> None:
    rows = [{"name": "majority class", "value": 50.0}, {"name": "this model", "value": 81.25}]
    end = {"kind": "end", "step": 5, "scores": {"best": {"accuracy": 81.25}}, "few": broken}
    written(tmp_path, [{**end, "compared": {"metric": "accuracy", "rows": rows}}])


def test_a_wave_is_how_far_a_recording_swings() -> None:
    assert waveform_peaks([0.0, 0.5, -1.0, 0.25]) == [0, 50, 100, 25]
    assert len(waveform_peaks([0.1] * 10_000)) == 120
    assert waveform_peaks([0, 0]) == [0, 0]
    assert waveform_peaks([]) == [0]
