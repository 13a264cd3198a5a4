"""The pages of the lab, drawn in a browser: an experiment, its numbers, and the index."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest

from headway.lab.catalogue import ExperimentEntry
from headway.lab.experiment import SeedMeasurements
from headway.lab.figures import BarChart, Figure, Heatmap, LineChart, TableFigure
from headway.lab.page import write_index, write_page
from headway.lab.verdict import VerdictLabel
from tests.inside.browser import browser, open_page

__all__ = ["browser"]

ANSWER, MEASURED = "It is <so>.", "Gap: 1.01 nats (0.98 to 1.03)."
EFFECT = {"name": "gap", "unit": "nats", "value": 1.01, "low": 0.98, "high": 1.03, "seeds": 3,
          "spread": 0.01, "exact": False}  # fmt: skip
FACTS: dict[str, Any] = {
    "experiment": "planted", "number": 1, "question": "Is it so?", "verdict": "supported",
    "answer": ANSWER, "measured": MEASURED, "effect": EFFECT,
    "more": [{**EFFECT, "low": None, "seeds": 1}],
    "controls": [{"name": "sane", "passed": True, "said": "it was."},
                 {"name": "other", "passed": False, "said": "it was not."}],
    "changes": "More data.", "hypothesis": "It is so.", "method": ["We looked.", "Twice."],
    "control": "It could be otherwise.", "literature": [["A. Body 2020", "Yes.", "agrees"]],
    "size": "quick", "seeds": 3, "first_seed": 7, "data": None, "minutes": 1.5, "cpu_minutes": 1.2,
    "machine": "2 cores", "versions": {"headway": "0.1.0"}, "date": "2026-01-01",
}  # fmt: skip
FIGURES: list[Figure] = [
    LineChart(title="L", hint="h", series=[("a", [(1.0, 2.0), (2.0, None), (3.0, 1e-12)])], x="x",
          y="how far it is off, all in all", log_x=True, log_y=True, levels=[("chance", 1.5)]),
    BarChart(title="B", hint="h", bars=[("a", 1.0, 0.5, 1.5), ("b", -1e-9, 0.0, 0.0)], unit="%"),
    TableFigure(title="T", hint="h", columns=["a", "b"], rows=[["x", 1.0]]),
    Heatmap(title="H", hint="h", values=[[0.0, 1.0]], rows=["r"], columns=["c", "d"]),
]  # fmt: skip


class Drawn(ExperimentEntry):
    def load(self) -> Any:
        class Experiment:
            def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
                return FIGURES

        return Experiment()


ENTRY = Drawn(name="planted", number=1, question="Is it so?", quick=1, full=2)


def test_an_experiment_is_drawn_with_all_its_figures(browser: Any, tmp_path: Path) -> None:
    found = [{"gap": 1.0, "curve": list(range(20))}, {"gap": 1.02, "curve": list(range(20))}]
    html = write_page(tmp_path, ENTRY, FACTS, found).read_text()
    page = open_page(browser, html, tmp_path)
    assert page.locator("h1").inner_text() == "Is it so?"
    assert page.locator("[data-verdict=supported]").count() == 1
    assert page.locator(".verdict .answer").inner_text() == ANSWER
    assert page.locator(".verdict .measured").inner_text() == MEASURED
    kinds = [page.locator("[data-figure]").nth(i).get_attribute("data-figure") for i in range(4)]
    assert kinds == ["lines", "bars", "table", "heatmap"]
    assert page.values("[data-figure=bars] .bar") == [1.0, 0.0]
    assert page.locator(".signed").count() == 0
    assert page.locator("[data-passed=false]").inner_text().startswith("✗ other")
    assert page.locator("[role=alert]").count() == 0
    assert "planted --seeds 3 --first-seed 7" in page.locator(".mono").inner_text()
    # The name of an axis stands beside its numbers, not on them.
    name = page.locator("[data-figure=lines] text[transform]").bounding_box()
    numbers = page.locator("[data-figure=lines] text.end").all()
    assert min(one.bounding_box()["x"] for one in numbers) > name["x"] + name["width"]
    page.tab("labnumbers")
    assert re.search(r"\b20\b", page.locator("table").inner_text())
    page.close()


def test_it_fits_a_phone_and_has_a_dark_theme(browser: Any, tmp_path: Path) -> None:
    html = write_page(tmp_path, ENTRY, FACTS, [{"gap": 1.0}]).read_text()
    page = open_page(browser, html, tmp_path, width=390, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.close()


def test_the_index_leads_to_each_page(browser: Any, tmp_path: Path) -> None:
    other = {"experiment": "later", "number": 2, "question": "And this?"}
    rows = [{**FACTS, "page": "planted/lab.html"}, other]
    page = open_page(browser, write_index(tmp_path, rows).read_text(), tmp_path)
    assert page.locator("a").get_attribute("href") == "planted/lab.html"
    assert page.locator("li").count() == 2
    assert "later" in page.locator("[data-verdict=none]").inner_text()
    page.close()


@pytest.mark.parametrize("panel", ["lab.js", "labindex.js"])
def test_the_pages_have_a_sign_for_every_verdict(panel: str) -> None:
    source = (files("headway.web") / "panels" / panel).read_text(encoding="utf-8")
    for word in get_args(VerdictLabel):
        assert re.search(rf'^  "?{word}"?: \["', source, re.MULTILINE), word
