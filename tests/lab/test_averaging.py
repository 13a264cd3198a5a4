"""E8 with a planted truth: losses, and weights whose course is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.lab.averaging import EXPERIMENT, SCHEDULES, between, cosine


def seed(
    constant: float, linear: float, members: float = 2.1, apart: float = 1.0
) -> dict[str, Any]:
    """The gain of the mean of eight with either rate."""
    gains = {"constant": constant, "inverse-sqrt": (constant + linear) / 2, "linear": linear}
    means = {name: {"1": 2.0, "2": 2.0 - gain / 2, "8": 2.0 - gain, "16": 2.0 - gain}
             for name, gain in gains.items()}  # fmt: skip
    return {
        "mean": means, "members": {name: [members] * 8 for name in SCHEDULES},
        "cosine": dict.fromkeys(SCHEDULES, -0.1), "ema": 1.97, "ensemble": 1.96,
        "line": {"near": [2.0] * 5, "seeds": [2.0, 2.5, 2.0 + apart, 2.5, 2.0]},
        "seeds": {"one": 2.0, "other": 2.0, "mean": 2.0 + apart},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(0.05 + 0.002 * i, 0.001) for i in range(3)], "supported"),
        ([seed(0.05, 0.05 + 0.001 * i) for i in range(3)], "refuted"),
        ([seed(-0.02 - 0.001 * i, -0.06) for i in range(3)], "refuted"),
        ([seed(0.04 * i, 0.001) for i in range(3)], "undecided"),
        ([seed(0.05, 0.001)], "undecided"),
        ([seed(0.05 + 0.002 * i, 0.001, members=1.9) for i in range(3)], "undecided"),
        ([seed(0.05 + 0.002 * i, 0.001, apart=0.0) for i in range(3)], "undecided"),
    ],
    ids=["there", "with any rate", "averaging hurts", "noisy", "one seed", "no better than members",
         "seeds can be averaged"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert len(EXPERIMENT.figures(given)[0].data()["series"]) == 3


def test_steps_to_and_fro_have_a_negative_cosine() -> None:
    course = [{"w": torch.tensor([x, 1.0])} for x in (0.0, 1.0, 0.0, 1.0)]
    assert cosine(course) == pytest.approx(-1)
    assert cosine([{"w": torch.tensor([x, x])} for x in (0.0, 1.0, 2.0)]) == pytest.approx(1)


def test_half_way_is_the_mean() -> None:
    one, other = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    assert between(one, other, 0.5)["w"].tolist() == [0.5, 0.5]
    assert between(one, other, 1.0)["w"].equal(other["w"])
