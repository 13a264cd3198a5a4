"""E4 with planted truths, and the arithmetic of its codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headway.lab.frequencies import EXPERIMENT, FAMILIES, kernel, parts, spearman, waves
from headway.nn.layout import Layout
from headway.nn.positions import sinusoids
from headway.settings.model import DecoderSettings

KERNEL = {name: kernel(name, 32, 0) for name in FAMILIES}


def seeds(
    random: float, linear: float, none: float = 1.0, noise: float = 0.01, usual: float = 0.1
) -> list[Any]:
    """Losses beside those of geometric frequencies, which have `usual`."""
    made = []
    for i in (-1, 0, 1):
        loss = {"geometric": usual, "log-uniform": usual + random + noise * i,
                "linear": usual + linear + noise * i, "none": usual + none}  # fmt: skip
        made.append({"loss": loss, "accuracy": dict.fromkeys(loss, 0.9),
                     "beyond": dict.fromkeys(loss, 0.5), "kernel": KERNEL})  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (seeds(0.0, 0.3), "supported"),
        (seeds(0.5, 0.3), "refuted"),
        (seeds(0.08, 0.3), "refuted"),
        (seeds(0.0, -0.1), "refuted"),
        (seeds(0.0, 0.3, noise=0.5), "undecided"),
        (seeds(0.0, 0.3, none=0.0), "undecided"),
        (seeds(0.0, 0.0, usual=1e-5, noise=1e-6), "cannot tell"),
        (seeds(0.0, 0.3, usual=1e-5, noise=1e-6), "cannot tell"),
        (seeds(0.2, 0.3, usual=1e-5), "refuted"),
    ],
    ids=["spread counts", "chirp counts", "chirp counts a little", "spread does not", "noisy",
         "no positions needed", "all are perfect", "two are perfect", "one is perfect"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(found: list[Any], verdict: str) -> None:
    assert EXPERIMENT.judge(found).verdict == verdict
    for figure in EXPERIMENT.figures(found):
        assert figure.data()["title"]


def test_log_uniform_codes_tell_near_from_far_and_evenly_spaced_ones_repeat() -> None:
    found = {name: kernel(name, 128, 0) for name in FAMILIES}
    assert abs(found["geometric"]["spearman"] - found["log-uniform"]["spearman"]) < 0.1
    assert found["shuffled"]["spearman"] == pytest.approx(found["geometric"]["spearman"])
    assert found["linear"]["twin"] < 0.2 < found["geometric"]["twin"]
    assert abs(found["uniform"]["spearman"]) < 0.3


def test_the_geometric_family_is_the_papers_code() -> None:
    rates = FAMILIES["geometric"](8, np.random.default_rng(0))
    assert torch.allclose(waves(20, torch.tensor(rates)).float(), sinusoids(20, 16), atol=1e-5)
    positions: Any = parts("geometric", 0).positions
    added = positions(DecoderSettings(), 16)(torch.zeros(3, 16), Layout.of([3]))
    assert torch.allclose(added, sinusoids(3, 16), atol=1e-5)


def test_rank_correlation_is_of_ranks() -> None:
    assert spearman([1, 2, 3], [1, 10, 100]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
