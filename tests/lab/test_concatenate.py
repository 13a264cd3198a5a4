"""E5 with a planted truth: losses, and tables of embeddings, where the answer is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.lab.concatenate import (
    ARMS,
    EXPERIMENT,
    ConcatenatedPositions,
    ProjectedPositions,
    RotatedPositions,
    directions,
    overlap,
)
from headway.nn.layout import Layout
from headway.nn.positions import sinusoids


def seed(add: float, beside: float, none: float = 1.0) -> dict[str, Any]:
    loss = {"add": add, "beside-8": beside, "beside-16": beside, "mixed": add, "none": none}
    shared = {"width": 64, "places": 9, "directions": 4, "learned": 0.05, "chance": 0.06}
    return {"loss": loss, "shared": shared}


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(0.10, 0.10 + 0.01 * i) for i in range(3)], "supported"),
        ([seed(0.10, 0.50 + 0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.50 + 0.01 * i, 0.10) for i in range(3)], "refuted"),
        ([seed(0.10, 0.10 + 0.15 * i) for i in range(3)], "undecided"),
        ([seed(0.10, 0.10)], "undecided"),
        ([seed(0.10, 0.10, none=0.12) for _ in range(3)], "undecided"),
    ],
    ids=["equal", "beside is worse", "beside is better", "noisy", "one seed", "no need of places"],
)
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert len(EXPERIMENT.figures(given)[0].data()["bars"]) == 5


def test_the_answer_names_the_better_arm() -> None:
    worse = EXPERIMENT.judge([seed(0.10, 0.50 + 0.01 * i) for i in range(3)])
    better = EXPERIMENT.judge([seed(0.50 + 0.01 * i, 0.10) for i in range(3)])
    assert worse.effect.value > 0 > better.effect.value
    assert worse.answer != better.answer


def test_concatenation_keeps_words_and_rotation_keeps_both_apart() -> None:
    x_ND, layout = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)), Layout.of([3, 2])
    told_ND = ConcatenatedPositions(8)(x_ND, layout)
    assert told_ND[:, :24].equal(x_ND[:, :24])
    assert told_ND[3, 24:].equal(sinusoids(1, 8)[0])
    turned = RotatedPositions(32, 8)
    here_ND, there_ND = turned(x_ND, layout), turned(torch.zeros(5, 32), layout)
    # In the code's directions nothing of the words is left, and outside of them nothing of it.
    torch.testing.assert_close(here_ND @ turned.basis_CD.T, there_ND @ turned.basis_CD.T)
    torch.testing.assert_close(there_ND @ turned.free_DD, torch.zeros(5, 32), atol=1e-5, rtol=0)


def test_a_matrix_can_add() -> None:
    mixed, x_ND = (
        ProjectedPositions(16),
        torch.randn(4, 16, generator=torch.Generator().manual_seed(1)),
    )
    with torch.no_grad():
        mixed.to_stream.weight.copy_(torch.cat([torch.eye(16), torch.eye(16)], dim=1))
    torch.testing.assert_close(mixed(x_ND, Layout.of([4])), x_ND + sinusoids(4, 16))


def test_the_code_of_a_sentence_takes_few_directions() -> None:
    assert len(directions(sinusoids(50, 128))) == len(directions(sinusoids(50, 512))) == 16
    assert len(directions(sinusoids(20, 128))) == 7


def test_embeddings_in_the_codes_directions_are_seen() -> None:
    basis_CD = directions(sinusoids(20, 64)).float()
    random = torch.Generator().manual_seed(1)
    inside_VD = torch.randn(300, len(basis_CD), generator=random) @ basis_CD
    outside_VD = torch.randn(300, 64, generator=random)
    outside_VD = outside_VD - outside_VD @ basis_CD.T @ basis_CD
    assert overlap(inside_VD, 20)["learned"] == pytest.approx(1)
    assert overlap(outside_VD, 20)["learned"] == pytest.approx(0, abs=1e-9)


def test_every_arm_has_a_part_of_its_own_name() -> None:
    names = [parts.name for _, parts, _ in ARMS.values() if parts is not None]
    assert len(set(names)) == len(names)
