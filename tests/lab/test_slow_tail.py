"""E6 with a planted truth: embeddings that keep out of the way of the code, or do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.lab.slow_tail import EXPERIMENT, order, probe_accuracy, profile
from headway.nn.positions import sinusoids


def arm(own: float, paper: float) -> dict[str, Any]:
    return {"loss": 0.1, "own": own, "paper": paper, "ratio": 1.2, "bands": [0.9, 1.1]}


def seed(own: float, flat: float = 0.0, other: float = 0.0) -> dict[str, Any]:
    probes = {half: {"word": [0.9, 0.8], "place": [0.5, 0.4]} for half in ("slow", "fast")}
    return {
        "places": 9, "usual": arm(own, own), "mixed": arm(own, other), "none": arm(flat, flat),
        "halves": {"loss": {"whole": 0.1, "slow": 2.0, "fast": 1.5}, "probes": probes},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(-0.5 + 0.02 * i) for i in range(3)], "supported"),
        ([seed(0.0 + 0.02 * i) for i in range(3)], "refuted"),
        ([seed(0.4 + 0.02 * i) for i in range(3)], "refuted"),
        ([seed(-0.15 + 0.01 * i) for i in range(3)], "refuted"),
        ([seed(-0.3 + 0.2 * i) for i in range(3)], "undecided"),
        ([seed(-0.5)], "undecided"),
        ([seed(-0.5 + 0.02 * i, flat=-0.5) for i in range(3)], "undecided"),
        ([seed(-0.5 + 0.02 * i, other=-0.5) for i in range(3)], "undecided"),
    ],
    ids=["there", "absent", "opposite", "too little", "noisy", "one seed", "without positions too",
         "it does not follow the code"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert EXPERIMENT.figures(given)[0].data()["series"]


@pytest.mark.parametrize("mixed", [False, True])
def test_embeddings_that_keep_out_of_the_way_are_seen(mixed: bool) -> None:
    paper_D = sinusoids(10, 64).double().var(0)
    code_D = paper_D[order(64)] if mixed else paper_D
    first_VD = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
    quiet_VD = first_VD * (1.5 - code_D).float()
    found = profile(first_VD, quiet_VD, code_D, paper_D)
    assert found["own"] < -0.95
    assert found["ratio"] > 1
    assert found["bands"] == sorted(found["bands"])
    if mixed:
        assert abs(found["paper"]) < 0.5
    assert profile(first_VD, first_VD, code_D, paper_D)["own"] == 0


def test_a_linear_map_reads_what_is_there_and_nothing_else() -> None:
    random = torch.Generator().manual_seed(1)
    right_M = torch.randint(4, (400,), generator=random)
    told_MC = torch.nn.functional.one_hot(right_M, 4).float()
    assert probe_accuracy(told_MC, right_M, 200) == 1
    assert probe_accuracy(torch.randn(400, 4, generator=random), right_M, 200) < 0.4
