"""The pages of docs/lab are generated from the numbers in docs/lab/results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.lab.catalogue import EXPERIMENTS
from headway.lab.verdict import Effect, OutcomeSentences, decide

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made() -> Any:
    spec = importlib.util.spec_from_file_location("lab_pages", ROOT / "docs" / "lab_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lab_pages"] = module
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_that_the_results_make(made: Any) -> None:
    for path, text in made.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run docs/lab_pages.py for {path.name}"
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert made.with_nav(nav) == nav


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_page_begins_with_the_answer_and_its_number(made: Any, name: str) -> None:
    entry = EXPERIMENTS[name]
    verdict = entry.load().judge(made.results_of(entry)[0]["found"])
    lines = made.page(entry).split("\n\n")
    assert lines[1:4] == [f"# {entry.question}", f"**{verdict.answer}**", verdict.measured]
    assert str(verdict.effect) in verdict.measured
    assert verdict.answer in made.index()


def test_a_table_has_a_row_per_effect(made: Any) -> None:
    gain = Effect.over([0.1, 0.2], "gain", "%")
    for effect, row in (
        (gain, "| gain | 0.150% | −0.485 to 0.785 |"),
        (Effect.over([1e-7], "error", exact=True), "| error | 1.0e−07 | exact |"),
    ):
        verdict = decide(
            "supported", gain, OutcomeSentences(supported="", refuted=""), more=[effect]
        )
        assert made.table(["measured", "mean", "95 % interval"], made.numbers(verdict)) == [
            "| measured | mean | 95 % interval |", "|---|---:|---:|", row,
        ]  # fmt: skip
