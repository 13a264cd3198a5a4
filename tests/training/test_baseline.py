"""The table at the end of a training: the score beside what one gets for nothing."""

from __future__ import annotations

from headway.tasks.scores import MODEL, advice, compared, of_metric, standings
from headway.tasks.specs import METRICS, SPECS

BASELINES = {
    "majority class": {"accuracy": 50.0, "loss": 0.7},
    "bag of words": {"accuracy": 79.5},
}


def test_the_best_baseline_comes_first_whichever_way_is_better() -> None:
    accuracy, wer = METRICS["accuracy"], METRICS["wer"]
    assert list(of_metric(BASELINES, accuracy)) == ["bag of words", "majority class"]
    assert list(of_metric({"a": {"wer": 90.0}, "b": {"wer": 80.0}}, wer)) == ["b", "a"]


def test_the_model_stands_under_its_baselines_with_what_each_lies_between() -> None:
    ranges = {"bag of words": (76.0, 83.0), MODEL: (77.25, 84.5)}
    rows = standings(81.0, BASELINES, ranges, METRICS["accuracy"])
    assert compared(rows, METRICS["accuracy"]) == [
        "validation accuracy, %, with 95 % intervals:",
        "  majority class  50.00",
        "  bag of words    79.50  (76.00 – 83.00)",
        "  this model      81.00  (77.25 – 84.50)",
    ]
    rows = standings(0.5, BASELINES, {}, METRICS["loss"])
    assert compared(rows, METRICS["loss"]) == [
        "validation loss:", "  majority class  0.700", "  this model      0.500",
    ]  # fmt: skip
    assert [row.facts["high"] for row in rows] == [None, None]
    assert not compared(standings(50.0, BASELINES, {}, METRICS["f1"]), METRICS["f1"])


def test_a_model_that_is_worse_hears_what_to_do() -> None:
    accuracy, loss = METRICS["accuracy"], METRICS["loss"]
    assert advice(SPECS["classify"], 80.0, BASELINES, accuracy, 100) is None
    assert advice(SPECS["classify"], 60.0, {}, accuracy, 100) is None
    said = advice(SPECS["classify"], 78.0, BASELINES, accuracy, 100)
    assert said is not None
    for word in (
        "bag of words has accuracy 79.50 %",
        "78.00 %",
        "--from",
        "train.steps=200",
        "docs/",
    ):
        assert word in said
    assert "as good as" in (advice(SPECS["classify"], 79.5, BASELINES, accuracy, 100) or "")
    assert advice(SPECS["classify"], 0.6, BASELINES, loss, 100) is None
    assert "better than" in (advice(SPECS["classify"], 0.8, BASELINES, loss, 100) or "")


def test_a_model_without_a_mistake_hears_nothing_though_a_baseline_has_none_either() -> None:
    assert advice(SPECS["classify"], 100.0, {"bag": {"f1": 100.0}}, METRICS["f1"], 100) is None
    assert advice(SPECS["transcribe"], 0.0, {"usual": {"wer": 0.0}}, METRICS["wer"], 100) is None


def test_every_task_has_something_that_helps() -> None:
    for spec in SPECS.values():
        assert "What helps: more" in (advice(spec, 1.0, BASELINES, METRICS["accuracy"], 1) or "")
