"""E15 with planted truths, and the arithmetic of random scores."""

from __future__ import annotations

from typing import Any

import pytest

from headway.lab.scale import EXPERIMENT, FRESH, fresh

RANDOM = fresh(0)


def seeds(
    gap: float, *, noise: float = 0.01, narrow: float = 0.3, flat: bool = True, usual: float = 0.1
) -> list[Any]:
    made = []
    for i in (-1, 0, 1):
        found: Any = {arm: {what: dict(values) for what, values in one.items()}
                      for arm, one in RANDOM.items()}  # fmt: skip
        if not flat:
            found["root"]["entropy"]["4"] = 0.1
        loss = {"root": {"8": narrow, "128": usual},
                "none": {"8": narrow, "128": usual + gap + noise * i}}  # fmt: skip
        made.append({"fresh": found, "loss": loss})
    return made


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (seeds(0.5), "supported"),
        (seeds(-0.1), "refuted"),
        (seeds(0.03, noise=0.001), "refuted"),
        (seeds(0.5, noise=0.5), "undecided"),
        (seeds(0.5)[:1], "undecided"),
        (seeds(0.5, narrow=2.0), "undecided"),
        (seeds(0.5, flat=False), "undecided"),
        (seeds(0.0, usual=1e-5, noise=1e-6), "cannot tell"),
        (seeds(0.5, usual=1e-5), "supported"),
    ],
    ids=["there", "absent", "too little", "noisy", "one seed", "nothing learns",
         "the division is broken", "both are perfect", "one is perfect and the other is not"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(found: list[Any], verdict: str) -> None:
    assert EXPERIMENT.judge(found).verdict == verdict
    assert len(EXPERIMENT.figures(found)) == 3


def test_undivided_scores_choose_one_key_and_let_no_gradient_through() -> None:
    wide = str(FRESH[-1])
    assert RANDOM["none"]["entropy"][wide] < 0.15 < 0.8 < RANDOM["root"]["entropy"][wide]
    assert RANDOM["none"]["entropy"]["4"] > RANDOM["none"]["entropy"][wide]
    assert RANDOM["none"]["flow"][wide] < 0.5 * RANDOM["none"]["flow"]["8"]
    assert RANDOM["width"]["entropy"][wide] > 0.99
