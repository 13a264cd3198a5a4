"""The table at the end of a training: the score beside what one gets for nothing."""

from __future__ import annotations

import re

from headway.errors import Edge, called_by
from headway.specs.metrics import METRICS
from headway.specs.tasks import SPECS
from headway.tasks.format import comparison_lines
from headway.tasks.scores import MODEL, advice, of_metric, standings

BASELINES = {
    "majority class": {"accuracy": 50.0, "loss": 0.7},
    "bag of words": {"accuracy": 79.5},
}


def test_the_best_baseline_comes_first_whichever_way_is_better() -> None:
    accuracy, wer = METRICS["accuracy"], METRICS["wer"]
    assert list(of_metric(BASELINES, accuracy)) == ["bag of words", "majority class"]
    assert list(of_metric({"a": {"wer": 90.0}, "b": {"wer": 80.0}}, wer)) == ["b", "a"]


def parts(line: str) -> tuple[str, list[str]]:
    """The name and the numbers of a line of the table."""
    name, *_ = line.strip().split("  ")
    return name, re.findall(r"[\d.]+", line)


def test_the_model_is_listed_last_with_the_interval_of_each_score() -> None:
    ranges = {"bag of words": (76.0, 83.0), MODEL: (77.25, 84.5)}
    rows = standings(81.0, BASELINES, ranges, METRICS["accuracy"])
    head, *lines = comparison_lines(rows, METRICS["accuracy"])
    assert "accuracy" in head
    assert "95 %" in head
    assert list(map(parts, lines)) == [
        ("majority class", ["50.00"]),
        ("bag of words", ["79.50", "76.00", "83.00"]),
        (MODEL, ["81.00", "77.25", "84.50"]),
    ]
    rows = standings(0.5, BASELINES, {}, METRICS["loss"])
    head, *lines = comparison_lines(rows, METRICS["loss"])
    assert "loss" in head
    assert "95 %" not in head
    assert list(map(parts, lines)) == [("majority class", ["0.700"]), (MODEL, ["0.500"])]
    assert [row.facts["high"] for row in rows] == [None, None]
    assert not comparison_lines(standings(50.0, BASELINES, {}, METRICS["f1"]), METRICS["f1"])


def test_a_model_worse_than_a_baseline_gets_advice() -> None:
    accuracy, loss = METRICS["accuracy"], METRICS["loss"]
    assert advice(SPECS["classify"], 80.0, BASELINES, accuracy, 100) is None
    assert advice(SPECS["classify"], 60.0, {}, accuracy, 100) is None
    with called_by(Edge.COMMAND_LINE):
        printed = advice(SPECS["classify"], 78.0, BASELINES, accuracy, 100)
    assert printed is not None
    for word in (
        "bag of words",
        "accuracy",
        "79.50",
        "78.00",
        "--from",
        "train.steps=200",
        "docs/",
    ):
        assert word in printed
    assert "79.50" in (advice(SPECS["classify"], 79.5, BASELINES, accuracy, 100) or "")
    assert advice(SPECS["classify"], 0.6, BASELINES, loss, 100) is None
    printed = advice(SPECS["classify"], 0.8, BASELINES, loss, 100) or ""
    assert "majority class" in printed
    assert "0.700" in printed
    assert "0.800" in printed


def test_a_perfect_model_gets_no_advice_even_if_a_baseline_is_perfect() -> None:
    assert advice(SPECS["classify"], 100.0, {"bag": {"f1": 100.0}}, METRICS["f1"], 100) is None
    assert advice(SPECS["transcribe"], 0.0, {"usual": {"wer": 0.0}}, METRICS["wer"], 100) is None


def test_every_task_has_something_that_helps() -> None:
    for spec in SPECS.values():
        assert spec.lacks
        printed = advice(spec, 1.0, BASELINES, METRICS["accuracy"], 1) or ""
        assert spec.lacks in printed
        assert ("start=" in printed) == bool(spec.starts_from)
        with called_by(Edge.COMMAND_LINE):
            printed = advice(spec, 1.0, BASELINES, METRICS["accuracy"], 1, tuned=True) or ""
        assert "--from" not in printed
