"""E1 with a planted truth: numbers, and models, in which the effect is there or not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headway.lab import datasets
from headway.lab.residuals import DEEP, EXPERIMENT, flow, fresh, relative_spread, unigram


def seed(
    skip: float, none: float, alone: float = 2.5, jitter: float = 0.0, *, alike: float = 1e-7,
    kept: float = 0.75,
) -> dict[str, Any]:  # fmt: skip
    """Losses of six layers with and without skips, and of one layer without; and how different
    tokens are behind fresh layers without skips and with them."""
    return {
        "loss": {"skip": {"1": 2.5, "6": skip + jitter}, "half": {"6": 3.0},
                 "none": {"1": alone, "6": none - jitter}},
        "unigram": 3.3, "lesion": {"whole": skip, "dropped": [skip + 0.1] * 6},
        "fresh": {"skip": [kept] * 13, "half": [kept] * 13, "none": [alike] * 13},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(2.4, 3.3, jitter=0.01 * i) for i in range(3)], "supported"),
        ([seed(2.4, 2.4, jitter=0.01 * i) for i in range(3)], "refuted"),
        ([seed(2.4, 2.7, jitter=0.1 * (i - 1)) for i in range(3)], "undecided"),
        ([seed(2.4, 3.3)], "undecided"),
        ([seed(2.4, 3.3, alone=3.3, jitter=0.01 * i) for i in range(3)], "undecided"),
        ([seed(3.3, 4.3, jitter=0.01 * i) for i in range(3)], "undecided"),
        ([seed(2.4, 3.3, jitter=0.01 * i, alike=0.5) for i in range(3)], "refuted"),
        ([seed(2.4, 3.3, jitter=0.01 * i, kept=1e-5) for i in range(3)], "refuted"),
    ],
    ids=["there", "absent", "noisy", "one seed", "its block is broken", "nothing learns",
         "tokens stay apart without", "tokens become one with skips, too"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert EXPERIMENT.figures(given)[0].data()["series"]


def test_fresh_layers_without_skips_make_all_tokens_one() -> None:
    found = fresh(0)
    assert found["none"][4] < 1e-3 < 0.3 < found["skip"][4]
    assert found["none"][0] == found["skip"][0]


def test_without_norms_and_skips_hardly_any_gradient_comes_back() -> None:
    found = flow(0)
    assert found["no norms"]["none"]["back"][0] < 1e-3 < 0.5 < found["norms"]["skip"]["back"][0]
    assert all(one["back"][-1] == 1 for arms in found.values() for one in arms.values())
    added = found["norms"]["skip"]["added"]  # the stream grows, and what is added does not
    assert len(added) == DEEP
    assert added[-1] < added[0] < 1
    # What was measured before there was a flow is drawn without it.
    given = [seed(2.4, 3.3, jitter=0.01 * i) for i in range(2)]
    shown = EXPERIMENT.figures([{**one, "flow": found} for one in given])
    assert len(shown) == len(EXPERIMENT.figures(given)) + 2
    assert all(one.data() for one in shown)


def test_tokens_are_apart_by_what_is_not_their_mean() -> None:
    assert relative_spread(torch.ones(4, 3)) == 0
    assert relative_spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == 1


def test_counting_letters_is_known() -> None:
    columns: datasets.TextColumns = {"text": ["ab" * 500]}
    assert unigram(columns, columns) == pytest.approx(math.log(2), abs=0.01)
