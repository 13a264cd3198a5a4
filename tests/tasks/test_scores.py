"""Scores are a mapping with what belongs to it, found when someone looks."""

from __future__ import annotations

import pickle

import pytest

from headway.specs.metrics import Metric
from headway.tasks.scores import MethodScores, Scores

OWN = Metric(name="polite", label="politeness", digits=1)


def test_scores_are_a_mapping_of_names_to_numbers() -> None:
    scores = Scores({"accuracy": 91.25, "loss": 0.5})
    assert dict(scores) == {"accuracy": 91.25, "loss": 0.5}
    assert scores["accuracy"] == 91.25
    assert repr(scores) == "Scores(accuracy 91.25 %, loss 0.500)"
    with pytest.raises(KeyError, match=r"'bleu'.*\baccuracy, loss\b"):
        scores["bleu"]
    with pytest.raises(AssertionError, match="politeness"):
        Scores({"politeness": 1.0})


def test_baselines_and_answers_are_looked_for_once_and_late() -> None:
    asked: list[str] = []

    def baselines() -> dict[str, MethodScores]:
        asked.append("baselines")
        return {"majority <class>": MethodScores({"accuracy": 50.0})}

    scores = Scores(
        {"loss": 0.5, "accuracy": 91.25},
        find_baselines=baselines,
        find_answers=lambda: (["a", "b"], ["a", "a"]),
    )
    more = scores.updated({"polite": 3.0}, examples=2, own=[OWN])
    assert not asked
    assert more["polite"] == 3.0
    assert more.examples == 2
    assert (more.answers, more.truth) == (["a", "b"], ["a", "a"])
    html = more._repr_html_()
    assert "<th>accuracy</th><th>loss</th><th>politeness</th>" in html
    assert "<td>model</td><td>91.25 %</td><td>0.500</td><td>3.0</td>" in html
    assert "<td>majority &lt;class&gt;</td><td>50.00 %</td><td></td><td></td>" in html
    assert scores.baselines == more.baselines
    assert asked == ["baselines"]


def test_rows_come_from_the_records_of_metrics() -> None:
    scores = Scores(
        {"accuracy": 91.25, "loss": 0.5}, n=1200, unit="texts", remarks={"loss": "nats"},
        find_intervals=lambda: {"accuracy": (90.0, 92.0)},
        details=[("speed", "3", "texts per second")], facts={"speed": 3},
        find_members=lambda: {"neural model alone": MethodScores({"accuracy": 80.0}, "weight 90%")},
        find_baselines=lambda: {
            "class frequencies": MethodScores({"loss": 1.5}), "none": MethodScores({}, "no data")
        },
    )  # fmt: skip
    assert scores.rows == [
        ("texts", "1,200", ""),
        ("accuracy", "91.25 %", "95 %: 90.00 – 92.00"),
        ("loss", "0.500", "nats"),
        ("speed", "3", "texts per second"),
        ("neural model alone", "80.00 %", "weight 90%"),
        ("class frequencies", "1.500", ""),
        ("none", "–", "no data"),
    ]
    assert scores.facts == {
        "accuracy": 91.25, "loss": 0.5, "n": 1200, "intervals": {"accuracy": [90.0, 92.0]},
        "speed": 3, "members": {"neural model alone": {"accuracy": 80.0}},
        "baselines": {"class frequencies": {"loss": 1.5}},
    }  # fmt: skip
    assert scores.ranges("accuracy") == {"this model": (90.0, 92.0)}


def test_scores_can_be_sent_with_all_that_was_only_to_be_found() -> None:
    found = Scores(
        {"accuracy": 50.0},
        find_baselines=lambda: {"majority class": MethodScores({"accuracy": 40.0}, "always 'a'")},
        find_answers=lambda: (["a"], ["b"]),
    )
    again = pickle.loads(pickle.dumps(found))
    assert dict(again) == dict(found)
    assert again.baselines == {"majority class": {"accuracy": 40.0}}
    assert (again.answers, again.truth) == (["a"], ["b"])
    assert again.updated({"f1": 1.0}).baselines == again.baselines
