"""Weights of eight bits: products as if rounded by hand, row by row, in every family."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from headway.nn import int8
from headway.nn.attention.attention import Attention
from headway.nn.embedding import Embedding
from headway.nn.int8 import (
    Int8Embedding,
    Int8Linear,
    QuantizedMatrix,
    has_fast_int8,
    quantize_model,
)
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.lora import LoraLinear

quick = pytest.mark.skipif(not has_fast_int8(), reason="this processor has no such products")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def layer(bias: bool = True, n_in: int = 24, n_out: int = 40) -> Linear:
    torch.manual_seed(0)
    return Linear(n_in, n_out, bias=bias)


def by_hand(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """In whole numbers of fp64, which are exact."""
    weight, levels = QuantizedMatrix.quantize(weight_FD, int8.WEIGHT_LEVELS), int8.LEVELS
    largest_N1 = x_ND.abs().amax(1, keepdim=True).double()
    whole_ND = (x_ND / largest_N1.float() * levels).round().double()
    sums_NF = whole_ND @ weight.whole_FD.double().T
    out_NF = sums_NF * largest_N1 / levels * weight.scale_F.double()
    return (out_NF if bias_F is None else out_NF + bias_F).float()


@quick
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_rows", [1, 3, 300])
def test_products_are_those_of_rounded_rows(bias: bool, n_rows: int) -> None:
    plain = layer(bias)
    ours, x_ND = Int8Linear(plain), torch.randn(n_rows, 24) * torch.logspace(-3, 3, n_rows)[:, None]
    torch.testing.assert_close(ours(x_ND), by_hand(x_ND, plain.weight, plain.bias))
    torch.testing.assert_close(ours.relu(x_ND), by_hand(x_ND, plain.weight, plain.bias).relu())
    for part in (slice(7), slice(7, None), slice(3, 9)):
        part_bias = None if plain.bias is None else plain.bias[part]
        expected = by_hand(x_ND, plain.weight[part], part_bias)
        torch.testing.assert_close(ours.product(x_ND, part_bias, part), expected)


@quick
def test_the_largest_numbers_do_not_overflow() -> None:
    """Where pairs of products are added in 16 bits, eight bits for both would be too much."""
    plain = layer(bias=False, n_in=512)
    plain.weight.fill_(1.0)
    for n_rows in (1, 300):
        torch.testing.assert_close(
            Int8Linear(plain)(torch.ones(n_rows, 512)), torch.full((n_rows, 40), 512.0)
        )
        torch.testing.assert_close(
            Int8Linear(plain)(-torch.ones(n_rows, 512)), torch.full((n_rows, 40), -512.0)
        )


@quick
def test_a_row_does_not_depend_on_its_neighbours_to_the_last_bit() -> None:
    ours = Int8Linear(layer(n_in=200, n_out=70))
    x_ND = torch.randn(int8.MANY + 60, 200)
    x_ND[5] *= 1000.0
    together = ours(x_ND)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 40), slice(60, None)):
        assert torch.equal(ours(x_ND[rows]), together[rows])


def test_rows_of_zeros_and_no_rows_at_all() -> None:
    ours = Int8Linear(layer())
    for n_rows in (2, 300):
        x_ND = torch.randn(n_rows, 24)
        x_ND[1] = 0.0
        out_NF = ours(x_ND)
        assert out_NF.isfinite().all()
        assert ours.bias is not None
        assert torch.equal(out_NF[1], ours.bias)
    assert ours(torch.zeros(0, 24)).shape == (0, 40)


@pytest.mark.parametrize("levels", [127, 64])
def test_weights_lose_no_more_than_half_a_step(levels: int) -> None:
    weight_FD = torch.randn(30, 50) * torch.logspace(-4, 2, 30)[:, None]
    step_F1 = weight_FD.abs().amax(1, keepdim=True) / levels
    rounded = QuantizedMatrix.quantize(weight_FD, levels)
    assert ((rounded.dequantize() - weight_FD).abs() <= step_F1 * 0.5001).all()
    again = QuantizedMatrix.quantize(
        rounded.dequantize(), levels
    )  # as a file of eight bits is read
    assert torch.equal(again.whole_FD, rounded.whole_FD)
    assert not QuantizedMatrix.quantize(torch.zeros(2, 3)).dequantize().any()


def test_the_weight_of_an_int8_layer_can_be_read() -> None:
    plain = layer()
    torch.testing.assert_close(Int8Linear(plain).weight, plain.weight.detach(), atol=2e-3, rtol=0.0)


def test_looked_up_rows_are_those_of_the_rounded_table() -> None:
    table = Embedding(11, 6)
    ours = Int8Embedding(table)
    tokens_N = torch.tensor([3, 0, 10, 3])
    assert torch.equal(ours(tokens_N), ours.weight[tokens_N])
    torch.testing.assert_close(ours.weight, table.weight.detach(), atol=0.02, rtol=0.0)


def test_a_processor_without_them_widens_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "has_fast_int8", lambda: False)
    plain, x_ND = layer(), torch.randn(4, 24)
    ours = Int8Linear(plain)
    expected = nn.functional.linear(
        x_ND, QuantizedMatrix.quantize(plain.weight).dequantize(), plain.bias
    )
    torch.testing.assert_close(ours(x_ND), expected)
    part = slice(7, None)
    assert plain.bias is not None
    torch.testing.assert_close(ours.product(x_ND, plain.bias[part], part), expected[:, part])


@pytest.mark.parametrize("library", ["quantized", "onednn"])
def test_without_one_of_torchs_products_weights_are_widened(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = (getattr(torch.ops, library), "no_such_product")
    monkeypatch.setattr(int8, "PRODUCTS", (*int8.PRODUCTS, gone))
    assert not has_fast_int8()
    assert type(int8.int8_matrix(layer().weight)) is int8.Int8Matrix


def test_shared_parts_stay_shared_and_no_wide_matrix_is_left() -> None:
    table, shared = Embedding(300, 64), layer(n_in=64, n_out=64)
    words = layer(bias=False, n_in=64, n_out=300)
    words.weight = table.weight
    model = nn.ModuleDict({"table": table, "a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    model["words"] = words
    quantize_model(model)
    assert model["a"].get_submodule("0") is model["b"].get_submodule("0")
    assert isinstance(model["words"], Int8Linear)
    assert isinstance(model["table"], Int8Embedding)
    assert not [name for name, weight in model.named_parameters() if weight.ndim > 1]


@pytest.mark.parametrize("n_rows", [5, 300])
def test_rows_may_be_anywhere_in_memory(n_rows: int) -> None:
    ours, x_DN = Int8Linear(layer()), torch.randn(48, n_rows)
    assert torch.equal(ours(x_DN.T[:, ::2]), ours(x_DN.T[:, ::2].contiguous()))
    assert torch.equal(ours(x_DN[:24].T), ours(x_DN[:24].T.contiguous()))


def test_copies_compute_the_same() -> None:
    ours, x_ND = Int8Linear(layer()), torch.randn(3, 24)
    assert torch.equal(deepcopy(ours)(x_ND), ours(x_ND))


def test_what_lora_learned_is_part_of_the_rounded_weight() -> None:
    tuned = LoraLinear.around(layer(), 2, 4.0, torch.Generator().manual_seed(0))
    tuned.lora_b.normal_()
    x_ND = torch.randn(5, 24)
    expected, model = tuned(x_ND), nn.Sequential(tuned)
    quantize_model(model)
    assert (model(x_ND) - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("bias", ["", "qv", "qkv"])
def test_attention_never_unpacks_its_weights(bias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whisper has a bias for some of q, k and v: to know its size must not cost a whole matrix."""
    attention = Attention(16, 2, bias=bias)
    model = nn.Sequential(attention)
    x_ND, layout = torch.randn(5, 16), Layout.of([2, 3])
    expected_ND = attention(x_ND, layout)
    quantize_model(model)
    monkeypatch.setattr(Int8Linear, "weight", property(lambda self: pytest.fail("unpacked")))
    assert (attention(x_ND, layout) - expected_ND).abs().max() < 0.05
