"""Learned dictionaries: what was planted is found, few atoms die, and centring is needed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.measure.features.dictionary import moments
from headway.inside.measure.features.sparse_coders import Coder, SparseCoder, TopKCoder, fit_coder

ACTIVE = 3


def planted(n: int = 128, mean: float = 0.0, rows: int = 12_000) -> tuple[Tensor, Tensor]:
    """States in 64 dimensions, each a sum of 3 of n directions, and all with one part in common."""
    random = torch.Generator().manual_seed(0)
    atoms_AD = F.normalize(torch.randn(n, 64, generator=random), dim=1)
    code_NA = torch.zeros(rows, n)
    which_NK = torch.rand(rows, n, generator=random).topk(ACTIVE, dim=1).indices
    code_NA.scatter_(1, which_NK, 0.5 + torch.rand(rows, ACTIVE, generator=random))
    common_D = F.normalize(torch.randn(64, generator=random), dim=0)
    return code_NA @ atoms_AD + mean * common_D, atoms_AD


def centred(x_ND: Tensor) -> Tensor:
    mean_SD, scale_S = moments(x_ND, torch.zeros(len(x_ND), dtype=torch.long), 1)
    return (x_ND - mean_SD[0]) / scale_S[0]


def dictionary(x_ND: Tensor, method: str, n: int, steps: int, seed: int = 1) -> Coder:
    def begin(atoms_AD: Tensor) -> Coder:
        return SparseCoder(atoms_AD) if method == "sparse" else TopKCoder(atoms_AD, ACTIVE)

    return fit_coder(x_ND, begin, n, k=ACTIVE, steps=steps, seed=seed, batch=256)


def likeness(found: Coder, atoms_AD: Tensor) -> float:
    """Of each planted direction to its nearest learned one, on average."""
    return float((atoms_AD @ found.atoms_AD.detach().T).max(1).values.mean())


@pytest.mark.parametrize(("method", "steps"), [("sparse", 200), ("topk", 700)])
def test_a_planted_dictionary_is_found(method: str, steps: int) -> None:
    x_ND, atoms_AD = planted(mean=3.0)
    found = dictionary(centred(x_ND), method, 128, steps)
    assert likeness(found, atoms_AD) > 0.9
    code_NA = found.codes(centred(x_ND)[:3000])
    assert float(((code_NA > 0).sum(0) == 0).float().mean()) < 0.05
    assert float((code_NA > 0).sum(1).float().mean()) == pytest.approx(ACTIVE, rel=0.2)
    assert torch.allclose(found.atoms_AD.norm(dim=1), torch.ones(128), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), [("sparse", 400), ("topk", 1500)])
def test_a_planted_dictionary_four_times_as_wide_as_the_states_is_found(
    method: str, steps: int
) -> None:
    x_ND, atoms_AD = planted(256, rows=20_000)
    found = dictionary(centred(x_ND), method, 256, steps)
    assert likeness(found, atoms_AD) > 0.9
    fired_A = (found.codes(centred(x_ND)[:4000]) > 0).any(0)
    assert float(fired_A.float().mean()) > 0.95


@pytest.mark.parametrize(("method", "steps"), [("sparse", 100), ("topk", 300)])
def test_without_centring_much_less_is_found(method: str, steps: int) -> None:
    x_ND, atoms_AD = planted(mean=3.0)
    bare_ND = x_ND / x_ND.norm(dim=1).mean()
    with_it = likeness(dictionary(centred(x_ND), method, 128, steps), atoms_AD)
    without = likeness(dictionary(bare_ND, method, 128, steps), atoms_AD)
    assert without < with_it - 0.1


@pytest.mark.parametrize("method", ["sparse", "topk"])
def test_the_same_seed_gives_the_same_dictionary(method: str) -> None:
    x_ND = centred(planted(32, rows=2000)[0])
    one, same, other = (dictionary(x_ND, method, 32, 30, seed) for seed in (1, 1, 2))
    assert torch.equal(one.atoms_AD, same.atoms_AD)
    assert not torch.equal(one.atoms_AD, other.atoms_AD)


def test_sparse_codes_are_the_optimum() -> None:
    """The conditions of Karush, Kuhn and Tucker: no code can be changed for the better."""
    x_ND, atoms_AD = planted(40, rows=50)
    coder = SparseCoder(atoms_AD, 0.1)
    code_NA = coder.codes(x_ND, 2000)
    slope_NA = (code_NA @ atoms_AD - x_ND) @ atoms_AD.T + 0.1
    assert float(code_NA.min()) >= 0
    assert float(slope_NA[code_NA > 0].abs().max()) < 1e-3
    assert float(slope_NA[code_NA == 0].min()) > -1e-3


def test_topk_keeps_the_k_largest() -> None:
    x_ND, atoms_AD = planted(40, rows=50)
    coder = TopKCoder(atoms_AD, 2)
    code_NA, before_NA = coder.codes(x_ND), F.relu(x_ND @ atoms_AD.T)
    assert torch.allclose(code_NA.sort(1).values[:, -2:], before_NA.sort(1).values[:, -2:])
    assert int((code_NA > 0).sum(1).max()) == 2


@pytest.mark.parametrize("method", ["sparse", "topk"])
def test_atoms_that_never_fire_are_reset(method: str) -> None:
    x_ND = planted(32, rows=4000)[0].abs()
    x_ND = x_ND / x_ND.norm(dim=1).mean()

    def begin(atoms_AD: Tensor) -> Coder:
        dead_AD = -atoms_AD[16:].abs()  # away from every row
        both_AD = torch.cat([atoms_AD[:16], dead_AD])
        return SparseCoder(both_AD) if method == "sparse" else TopKCoder(both_AD, ACTIVE)

    found = fit_coder(x_ND, begin, 32, k=ACTIVE, steps=150, seed=1, batch=256)
    assert float((found.codes(x_ND) > 0).any(0).float().mean()) > 0.9
