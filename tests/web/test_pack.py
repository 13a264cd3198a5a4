"""What a page holds decodes to what was put in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headway.web.pack import PackedArray, pack, unpack


def attention(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return (3 * torch.randn(*shape)).softmax(-1)


def test_a_tree_comes_back_with_its_arrays_in_their_places() -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    tree = {
        "a": [1, "zwölf", None, True, {"b": PackedArray(values, "i32")}],
        "c": PackedArray(values, "u16"),
    }
    back = unpack(pack(tree))
    assert back["a"][:4] == [1, "zwölf", None, True]
    assert (back["a"][4]["b"] == values).all()
    assert (back["c"] == values).all()
    assert back["c"].shape == (2, 3)


def test_attention_in_eight_bits_stays_within_its_stated_error() -> None:
    weights = attention(4, 40, 40)
    back = unpack(pack({"u8": PackedArray(weights), "sqrt8": PackedArray(weights, "sqrt8")}))
    error = {kind: np.abs(back[kind] - weights.numpy()) for kind in back}
    assert error["u8"].max() <= 1 / 510 + 1e-6
    assert error["sqrt8"].max() <= 1 / 255
    small = weights.numpy() < 0.001
    assert error["sqrt8"][small].mean() < error["u8"][small].mean() / 2  # what it is for


def test_halves_keep_three_digits_and_floats_all() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(1000, generator=random) * torch.logspace(-3, 4, 1000)
    back = unpack(pack({"half": PackedArray(values, "f16"), "full": PackedArray(values, "f32")}))
    assert (back["full"] == values.numpy()).all()
    spacing = 2.0**-24  # of the smallest halves, which have fewer digits
    assert np.allclose(back["half"], values.numpy(), rtol=1e-3, atol=spacing)


def test_a_value_too_large_for_a_half_is_kept_as_it_is() -> None:
    assert unpack(pack([PackedArray(np.array([1e6, -2e6]), "f16")]))[0].tolist() == [1e6, -2e6]


def test_an_array_of_one_value_and_an_empty_one_come_back() -> None:
    same, empty = unpack(pack([PackedArray(np.full((2, 2), 0.25)), PackedArray(np.zeros((0, 3)))]))
    assert (same == 0.25).all()
    assert empty.shape == (0, 3)


def test_numbers_that_are_not_finite_become_null() -> None:
    assert unpack(pack([math.inf, math.nan, np.float32(1.5)])) == [None, None, 1.5]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ([PackedArray(np.zeros(2), "u4")], "'u4'"),
        ([PackedArray(np.array([0.0, np.nan]))], r"\bu8\b"),
        ({"$": 1}, r"'\$'"),
    ],
)
def test_values_that_cannot_be_packed_are_an_error(tree: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pack(tree)


def test_the_ends_of_the_scale_can_be_given() -> None:
    """Even attention is then all one code, and deflates to nothing."""
    even = attention(12, 64, 64) * 0 + 1 / 64 + torch.rand(12, 64, 64) / 1e4
    own, given = PackedArray(even), PackedArray(even, "u8", (0, 1))
    assert len(pack(given)) < len(pack(own)) / 20
    assert np.abs(unpack(pack([given]))[0] - even.numpy()).max() <= 1 / 510 + 1e-6
