"""What is said of position codes, against the known numbers of sinusoids and definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headway.inside.measure.position_codes import (
    PositionCode,
    codes,
    kernel,
    position_use,
    rotation,
    shift,
    slow_share,
)
from headway.nn.positions import alibi_slopes, sinusoids

from ..models.variants import tiny


def sinusoidal(n_places: int, width: int, *, halves: bool = False) -> PositionCode:
    """As a model has it, without the model."""
    rate_I = 10_000.0 ** -(torch.arange(0, width, 2).double() / width)
    kind = "sinusoidal-halves" if halves else "sinusoidal"
    return PositionCode(kind, ("self",), sinusoids(n_places, width, halves=halves), rate_I)


def table(table_PD: torch.Tensor) -> PositionCode:
    return PositionCode("learned", ("self",), table_PD.float())


KINDS = {
    "post-sinusoidal-relu": "sinusoidal",
    "pre-learned-all-biases": "learned",
    "llama-like": "rotary",
    "alibi-three-heads": "alibi",
    "relative-grouped": "relative",
    "window": "sinusoidal-halves",
    "qk-norm-scaled-rotary": "rotary",
}


@pytest.mark.parametrize("variant", KINDS)
@pytest.mark.parametrize("family", ["seq2seq", "encoder", "decoder"])
def test_every_code_of_every_family_is_found(family: str, variant: str) -> None:
    found = codes(tiny(family, variant), 20)
    assert {code.kind for code in found} == {KINDS[variant]}
    stacks = [stack for code in found for stack in code.stacks]
    assert stacks == (["encoder", "decoder"] if family == "seq2seq" else ["self"])


def test_a_model_without_positions_has_none() -> None:
    assert codes(tiny("decoder", "no-positions-parallel")) == []


@pytest.mark.parametrize("halves", [False, True])
def test_the_table_and_its_rates_are_those_that_the_model_adds(halves: bool) -> None:
    model = tiny("encoder", "window" if halves else "post-sinusoidal-relu")
    (code,) = codes(model, 20)
    assert code.table_PD is not None
    positions: nn.Module = model.front.positions
    assert torch.equal(code.table_PD, positions.table_PD[:20])
    sines, cosines = code.pairs
    angle_PI = torch.arange(20).double()[:, None] * code.rate_I
    torch.testing.assert_close(code.table_PD[:, sines], angle_PI.sin().float())
    torch.testing.assert_close(code.table_PD[:, cosines], angle_PI.cos().float())


@pytest.mark.parametrize("width", [128, 512])
@pytest.mark.parametrize("halves", [False, True])
def test_a_step_is_a_rotation_to_the_last_digits(width: int, halves: bool) -> None:
    code = sinusoidal(5000, width, halves=halves)
    assert code.table_PD is not None
    for k in (1, 7, 100, 1000):
        turned = code.table_PD[:-k] @ rotation(code, k).float().T
        assert (turned - code.table_PD[k:]).abs().max() < 2.5e-7


def test_that_a_map_exists_is_not_that_a_fit_finds_it() -> None:
    found = shift(sinusoidal(1012, 128), 1)
    assert found.exact is not None
    assert found.exact < 2.5e-7
    assert found.fitted < 1e-6
    assert found.tested > 0.3
    assert found.blocks is not None
    assert found.blocks < 1e-6


def test_a_random_table_has_no_linear_shift() -> None:
    found = shift(table(torch.randn(600, 64, generator=torch.Generator().manual_seed(0))), 1)
    assert found.exact is None
    assert found.fitted > 0.7
    assert found.tested > 0.9


def test_rotary_turns_as_the_model_turns_queries() -> None:
    model = tiny("decoder", "llama-like")
    (code,) = codes(model, 20)
    assert code.table_PD is not None
    rotary = model.stack.blocks[0].attention.rotary
    half = code.table_PD.shape[1] // 2
    torch.testing.assert_close(code.table_PD[:, :half], rotary.cos_PI[:20])
    torch.testing.assert_close(code.table_PD[:, half:], rotary.sin_PI[:20])
    found = shift(code, 1)
    assert found.exact is not None
    assert found.exact < 2.5e-7


def test_the_kernel_has_the_known_numbers() -> None:
    found = kernel(sinusoids(512, 128))
    far_R = (2 - 2 * found.value_R).sqrt()  # of vectors of length 1 that have this cosine
    assert [round(float(far_R[apart]), 2) for apart in (1, 8, 64, 511)] == [0.24, 0.76, 1.02, 1.26]
    assert (round(found.twin, 2), found.twin_apart) == (0.24, 1)
    assert found.spearman == pytest.approx(0.84, abs=0.005)
    assert found.spread_R.max() < 1e-6
    rate_I = 10_000.0 ** -(torch.arange(0, 128, 2).double() / 128)
    torch.testing.assert_close(found.value_R[100], (100 * rate_I).cos().mean(), rtol=0, atol=1e-6)


def test_a_code_that_comes_round_again_has_a_far_twin() -> None:
    angle_PI = torch.arange(512).double()[:, None] * torch.arange(1, 65) * (math.pi / 64)
    code_PD = torch.cat([angle_PI.sin(), angle_PI.cos()], 1)
    found = kernel(code_PD)
    assert found.twin < 1e-6
    assert found.twin_apart % 128 == 0
    assert abs(found.spearman) < 0.2


@pytest.mark.parametrize(("n", "share"), [(20, 51), (50, 40), (100, 33), (512, 15)])
def test_the_slow_tail_has_the_known_sizes(n: int, share: int) -> None:
    assert abs(100 * slow_share(sinusoidal(512, 512), n) - share) < 0.7


def test_a_trained_code_is_measured_by_its_own_size() -> None:
    code_PD = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 0.01
    code_PD[:, :10] *= 1e-3
    assert slow_share(table(code_PD), 50) == 0.25
    assert slow_share(table(code_PD * 1000), 50) == 0.25


def test_use_compares_the_variance_of_embeddings_and_code() -> None:
    model = tiny("encoder", "post-sinusoidal-relu")
    (code,) = codes(model, 32)
    embedding = model.front.tokens.weight.data
    assert code.table_PD is not None
    quiet_D = 1 / (0.1 + code.table_PD.var(0))
    random = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0))
    embedding.copy_(random * quiet_D.sqrt())
    found = position_use(model, code, 32)
    assert found is not None
    assert found.spearman < -0.6
    torch.testing.assert_close(found.use_D, embedding.double().var(0))
    embedding.copy_(random / quiet_D.sqrt())
    assert position_use(model, code, 32).spearman > 0.6


def test_alibi_and_relative_are_what_scores_get() -> None:
    (alibi,) = codes(tiny("decoder", "window-and-alibi"), 10)
    assert alibi.bias_HR is not None
    assert alibi.distances == tuple(range(-9, 1))
    for head, slope in enumerate(alibi_slopes(4)):
        assert alibi.bias_HR[head, 0] == pytest.approx(-9 * slope)
    model = tiny("encoder", "relative-grouped")
    (relative,) = codes(model, 10)
    assert relative.bias_HR is not None
    bias = model.stack.bias
    assert relative.distances == tuple(range(-9, 10))
    bucket = bias.bucket(torch.tensor([[-3]]))
    expected = bias.table.weight[bucket[0, 0]]
    torch.testing.assert_close(relative.bias_HR[:, 6], expected.detach())
    assert position_use(model, relative, 10) is None


def test_a_code_that_is_the_same_everywhere_has_no_rank_correlation() -> None:
    assert kernel(torch.ones(8, 4)).spearman == 0
