"""Non-negative factors: the error never grows, and what was planted is found."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.measure.nmf import nmf


def planted(n: int = 4, tokens: int = 40, neurons: int = 120) -> tuple[Tensor, Tensor]:
    """Rows are sums of n groups of neurons, each token with few groups."""
    random = torch.Generator().manual_seed(3)
    parts_KF = torch.rand(n, neurons, generator=random) * (
        torch.rand(n, neurons, generator=random) < 0.3
    )
    weights_TK = torch.rand(tokens, n, generator=random) * (
        torch.rand(tokens, n, generator=random) < 0.5
    )
    return weights_TK @ parts_KF, parts_KF


def test_planted_factors_are_found() -> None:
    x_TF, parts_KF = planted()
    found = nmf(x_TF, 4, steps=500)
    like_KK = F.normalize(parts_KF, dim=1) @ found.parts_KF.T
    assert float(like_KK.max(1).values.min()) > 0.95
    assert sorted(like_KK.argmax(1).tolist()) == [0, 1, 2, 3]
    assert found.explained > 0.99


def test_the_error_never_grows() -> None:
    random = torch.Generator().manual_seed(0)
    found = nmf(torch.randn(20, 50, generator=random), 5)
    assert len(found.errors) > 10
    assert all(after <= before + 1e-6 for before, after in pairwise(found.errors))
    assert found.errors[-1] < 0.9 * found.errors[0]


def test_the_same_seed_gives_the_same_factors_and_another_one_others() -> None:
    x_TF, _ = planted()
    one, same, other = nmf(x_TF, 3), nmf(x_TF, 3), nmf(x_TF, 3, steps=5, seed=2)
    assert torch.equal(one.weights_TK, same.weights_TK)
    assert not torch.equal(nmf(x_TF, 3, steps=5).weights_TK, other.weights_TK)


def test_negative_activations_count_as_zero() -> None:
    x_TF, _ = planted()
    below_TF = torch.where(x_TF == 0, -0.5, x_TF)
    assert torch.equal(nmf(below_TF, 3).parts_KF, nmf(x_TF, 3).parts_KF)


def test_factors_are_positive_and_the_strongest_comes_first() -> None:
    found = nmf(planted()[0], 4)
    assert float(found.weights_TK.min()) >= 0
    assert torch.allclose(found.parts_KF.norm(dim=1), torch.ones(4), atol=1e-5)
    strengths = found.weights_TK.square().sum(0).tolist()
    assert strengths == sorted(strengths, reverse=True)


def test_nothing_at_all_has_factors_too() -> None:
    found = nmf(torch.zeros(5, 8), 2)
    assert found.errors[-1] == 0.0
    assert torch.isfinite(found.weights_TK).all()
