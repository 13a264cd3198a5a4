"""E14 with a planted truth: curves that turn, and curves that do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headway.lab import datasets, overfitting
from headway.lab.overfitting import EXPERIMENT, cost, fall, other_text, some, turn
from headway.lab.workspace import Workspace


def curve(*valid: float, down: bool = True) -> dict[str, Any]:
    n = len(valid)
    train = [2.0 - 0.3 * i if down else 2.0 + 0.3 * i for i in range(n)]
    return {"steps": [10 * (i + 1) for i in range(n)], "valid": list(valid), "train": train}


FALLS = curve(3.0, 2.6, 2.4, 2.3)


def seed(rise: float, *, much: float = 0.0, down: bool = True) -> dict[str, Any]:
    little = curve(3.0, 2.6, 2.7, 2.6 + rise, down=down)
    curves = {"24-10": little, "24-600": FALLS, "96-10": little,
              "96-600": curve(3.0, 2.4, 2.4, 2.4 + much),
              **dict.fromkeys(("dropout", "smoothing", "pretrained"), FALLS)}  # fmt: skip
    return {
        "curves": curves, "sizes": [24, 96], "amounts": [10, 600], "letters": [4000, 240_000],
        "before": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(0.5 + 0.02 * i) for i in range(3)], "supported"),
        ([seed(0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.5, much=0.5 + 0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.5, much=0.2 + 0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.2 * i) for i in range(3)], "undecided"),
        ([seed(0.5)], "undecided"),
        ([seed(0.5 + 0.02 * i, down=False) for i in range(3)], "undecided"),
    ],
    ids=["there", "absent", "with much text as well", "with much text too, though less", "noisy",
         "one seed", "it broke down"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert len(EXPERIMENT.figures(given)[0].data()["series"]) == 4


def test_the_turning_point_is_where_unseen_text_costs_least() -> None:
    turns = curve(3.0, 2.5, 2.8, 3.1)
    assert turn(turns) == 20
    assert cost(turns) == pytest.approx(0.6)
    assert fall(turns) == pytest.approx(0.6)
    assert cost(FALLS) == 0
    assert turn(FALLS) == 40


def test_a_turning_point_at_the_first_evaluation_is_not_divided_by() -> None:
    found = [seed(0.5 + 0.02 * i) for i in range(3)]
    assert any(one.unit == "×" for one in EXPERIMENT.judge(found).more)
    for one in found:
        one["curves"]["96-10"] = curve(2.6, 2.7, 2.9, 3.4 + 0.01 * len(found))
    verdict = EXPERIMENT.judge(found)
    assert not any(one.unit == "×" for one in verdict.more)
    assert re.search(r"\b10\b\D*\b10\b", verdict.measured)
    rows = {
        tuple(re.findall(r"\d[\d,]*\b", row[0])): row[1]
        for row in reversed(EXPERIMENT.figures(found)[-1].table()[1])  # the plain ones are first
    }
    bound = rows["96", "4,000"]  # no number, but what it is at most
    assert isinstance(bound, str)
    assert re.search(r"\b10\b", bound)
    assert rows["96", "240,000"] == 20


class Few(Workspace):
    """The first of each list of sizes, and eight steps."""

    def choose(self, quick: Any, full: Any) -> Any:
        return quick[:1] if isinstance(quick, tuple) else 8


def test_all_that_is_measured_can_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a run that starts from another."""
    text = {"text": other_text()["text"][:5]}
    monkeypatch.setattr(overfitting, "other_text", lambda: text)
    speeches = datasets.speeches
    monkeypatch.setattr(datasets, "speeches", lambda _, __, size, text: speeches(10, 2, size, text))
    found = EXPERIMENT.measure(Few(folder=tmp_path, seed=0, quick=True, device="cpu"))
    assert set(found["curves"]) == {"24-5", "dropout", "smoothing", "pretrained"}
    assert EXPERIMENT.judge([found]).verdict == "undecided"


def test_text_to_learn_from_is_not_text_to_validate_on() -> None:
    every, unseen = datasets.speeches(700, 20, 400)
    assert not set(unseen["text"]) & set(every["text"])
    assert some(every, 10, 1) == some(every, 10, 1) != some(every, 10, 2)
    assert len(set(some(every, 600, 1)["text"])) == 600
    assert all(len(piece) == 400 for piece in other_text()["text"])
