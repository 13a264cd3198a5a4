"""How weights start: each scheme against its table, by deviation and bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Attention
from headway.nn.block import PreNorm
from headway.nn.feedforward import FeedForward
from headway.nn.init import initialise
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.norms import LayerNorm, RMSNorm
from headway.nn.positions import Learned
from headway.nn.stack import Stack

D, D_FF, N_WORDS, N_LAYERS = 64, 128, 200, 2
SCHEMES = ["paper", "bert", "gpt2", "small"]


class Model(nn.Module):
    """Everything a scheme has a rule for."""

    def __init__(self, *, cross: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_WORDS, D)
        self.positions = Learned(D, 50)
        blocks = [
            PreNorm(
                Attention(D, 4, n_kv_heads=2, bias="qvo", qk_norm=(RMSNorm(16), RMSNorm(16))),
                FeedForward(D, D_FF, "swiglu"),
                lambda: LayerNorm(D),
                cross=Attention(D, 4, bias="qkvo") if cross else None,
            )
            for _ in range(N_LAYERS)
        ]
        self.stack = Stack(blocks, LayerNorm(D))
        self.head = Linear(D, N_WORDS)
        if tied:
            self.head.weight = self.tokens.weight


def started(scheme: str, seed: int = 0, **options: bool) -> Model:
    model = Model(**options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)  # whatever is left out shows
    initialise(model, scheme, seed)
    return model


def assert_normal(x: Tensor, std: float) -> None:
    """Mean and deviation within what chance allows, and tails that a uniform does not have."""
    error = std / math.sqrt(x.numel())
    assert abs(x.mean().item()) < 5 * error
    assert abs(x.std().item() - std) < 5 * error
    assert x.abs().max() > 2.5 * std


def assert_glorot(x: Tensor) -> None:
    """Uniform up to the bound that this matrix's own two sides give."""
    bound = math.sqrt(6 / sum(x.shape))
    assert 0.98 * bound < x.abs().max() <= bound
    error = bound / math.sqrt(3 * x.numel())
    assert abs(x.mean().item()) < 5 * error
    assert x.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def inner_matrices(model: Model) -> list[Tensor]:
    """The single matrices inside the fused ones, none of which writes to the stream."""
    found: list[Tensor] = []
    for part in model.modules():
        if isinstance(part, Attention):
            found += part.to_qkv.weight.split(part.sizes)
        if isinstance(part, FeedForward):
            found += part.to_hidden.weight.chunk(2)
    return found


def outputs(model: Model) -> list[Tensor]:
    return [p.to_out.weight for p in model.modules() if isinstance(p, Attention | FeedForward)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("cross", [False, True])
def test_biases_are_zero_norms_one_and_nothing_is_left_out(scheme: str, cross: bool) -> None:
    model = started(scheme, cross=cross)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if parameter.ndim == 1:
            is_scale = "norm" in name and name.endswith("weight")
            assert (parameter == float(is_scale)).all(), name


def test_paper_tables_are_normal_by_width_and_every_matrix_glorot_by_its_own_shape() -> None:
    model = started("paper")
    assert_normal(model.tokens.weight, D**-0.5)
    assert_normal(model.positions.table.weight, D**-0.5)
    for matrix in [*inner_matrices(model), *outputs(model), model.head.weight]:
        assert_glorot(matrix)


def test_bert_is_normal_throughout() -> None:
    model = started("bert")
    matrices = [*inner_matrices(model), *outputs(model), model.head.weight, model.tokens.weight]
    for matrix in matrices:
        assert_normal(matrix, 0.02)


@pytest.mark.parametrize("cross", [False, True])
def test_gpt2_scales_what_writes_to_the_stream_by_the_number_of_sub_layers(cross: bool) -> None:
    model = started("gpt2", cross=cross)
    for matrix in [*inner_matrices(model), model.head.weight, model.tokens.weight]:
        assert_normal(matrix, 0.02)
    n_sublayers = N_LAYERS * (3 if cross else 2)
    assert len(outputs(model)) == n_sublayers
    for matrix in outputs(model):
        assert_normal(matrix, 0.02 / math.sqrt(n_sublayers))


def test_small_starts_every_layer_as_the_identity() -> None:
    model = started("small")
    assert_normal(model.tokens.weight, 0.02)
    for matrix in [*inner_matrices(model), model.head.weight]:
        assert_normal(matrix, D**-0.5)
    for matrix in outputs(model):
        assert not matrix.any()
    x_ND = torch.randn(5, D)
    for block in model.stack.blocks:
        assert torch.equal(block(x_ND, Layout.of([3, 2])), x_ND)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_tied_matrix_is_drawn_once_as_the_table_it_is(scheme: str) -> None:
    model = started(scheme, tied=True)
    assert model.head.weight is model.tokens.weight
    assert_normal(model.tokens.weight, D**-0.5 if scheme == "paper" else 0.02)
    # Drawn twice, everything behind it would be shifted in the stream of random numbers.
    untied = started(scheme)
    last = "stack.blocks.1.feed_forward.to_hidden.weight"
    assert torch.equal(model.get_parameter(last), untied.get_parameter(last))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_seed_gives_the_same_weights_and_another_others(scheme: str) -> None:
    first, second, other = (started(scheme, seed=seed) for seed in (3, 3, 4))
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c) is (a.ndim == 1 or not a.any())


def test_random_numbers_of_others_are_neither_used_nor_used_up() -> None:
    model = Model()
    before = torch.get_rng_state()
    initialise(model, "paper", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(77)
    again = started("paper", seed=3)
    assert torch.equal(again.tokens.weight, model.tokens.weight)


def test_no_two_matrices_are_equal() -> None:
    matrices = [p for p in inner_matrices(started("bert")) if p.shape == (32, D)]
    assert len(matrices) == 2 * N_LAYERS
    for i, a in enumerate(matrices):
        assert not any(torch.equal(a, b) for b in matrices[:i])


def test_every_device_gets_the_same_weights(device: torch.device) -> None:
    model = Model().to(device)
    initialise(model, "paper", seed=5)
    for a, b in zip(model.parameters(), started("paper", seed=5).parameters(), strict=True):
        assert torch.equal(a.cpu(), b)


def test_an_unknown_scheme_is_an_error() -> None:
    with pytest.raises(ValueError, match="'bret'"):
        initialise(Model(), "bret")


def test_a_model_without_memory_is_passed_over() -> None:
    with torch.device("meta"):
        model = Model()
    initialise(model, "paper")
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_start_near_unit_variance_where_the_scheme_promises_it(scheme: str) -> None:
    """`paper` and `small` keep the scale of what comes in; 0.02 makes it small."""
    model = started(scheme)
    x_ND = torch.randn(100, D)
    q_NE = x_ND @ inner_matrices(model)[0].T
    promised = {"paper": 1.0, "small": 1.0, "bert": 0.02 * D**0.5, "gpt2": 0.02 * D**0.5}
    assert q_NE.std().item() == pytest.approx(promised[scheme], rel=0.1)
