"""Packed weights give the products of the weights as they are now."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from headway.nn.cpu_packed import MOST, can_pack, in_fixed_sizes, sizes
from headway.nn.linear import Linear, pack, packing

pytestmark = pytest.mark.skipif(not can_pack(), reason="this machine's torch has no oneDNN")


def layer(bias: bool = True) -> Linear:
    torch.manual_seed(0)
    return Linear(24, 40, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 130])
def test_a_packed_layer_gives_the_same_products(bias: bool, rows: int) -> None:
    plain, quick = layer(bias), layer(bias)
    pack(quick)
    x = torch.randn(rows, 24)
    with torch.no_grad():
        torch.testing.assert_close(quick(x), plain(x))
        torch.testing.assert_close(quick.relu(x), plain(x).relu())
        for part in (slice(7), slice(7, None), slice(3, 9)):
            part_bias = None if plain.bias is None else plain.bias[part]
            ours = quick.product(x, part_bias, part)
            torch.testing.assert_close(ours, nn.functional.linear(x, plain.weight[part], part_bias))


def test_weights_that_changed_are_packed_again() -> None:
    quick, x = layer(), torch.randn(4, 24)
    pack(quick)
    with torch.no_grad():
        before = quick(x)
        quick.weight.add_(1.0)
        torch.testing.assert_close(quick(x), nn.functional.linear(x, quick.weight, quick.bias))
        assert not torch.equal(before, quick(x))
        quick.weight = nn.Parameter(torch.ones(40, 24))
        torch.testing.assert_close(quick(x), nn.functional.linear(x, quick.weight, quick.bias))


def test_what_packed_weights_cannot_do_is_done_as_ever() -> None:
    """Gradients, other types, no rows at all."""
    quick, x = layer(), torch.randn(4, 24)
    pack(quick)
    quick(x).sum().backward()
    assert quick.weight.grad is not None
    with torch.no_grad():
        assert quick(x.double()).dtype == torch.float64
        assert quick(x[:0]).shape == (0, 40)


def test_copies_are_gone_afterwards_unless_they_were_there_before() -> None:
    model = nn.Sequential(layer(), layer())
    with packing([model]):
        assert all(part.packed is not None for part in model)
    assert all(part.packed is None for part in model)
    pack(model[0])
    kept = model[0].packed
    with packing([model]):
        assert model[1].packed is not None
    assert model[0].packed is kept
    assert model[1].packed is None


def test_a_packed_model_is_copied_and_saved_without_its_copies() -> None:
    quick, x = layer(), torch.randn(2, 24)
    pack(quick)
    with torch.no_grad():
        quick(x)
        torch.testing.assert_close(deepcopy(quick)(x), quick(x))
    assert list(quick.state_dict()) == ["weight", "bias"]


def test_product_sizes_are_few_and_close_to_the_requested_rows() -> None:
    seen = set()
    for n in range(1, 3000):
        parts = sizes(n)
        assert n <= sum(parts) < n + 8
        assert sum(parts) <= 1.25 * n
        assert sum(parts[:-1]) < n
        seen |= set(parts)
    assert len(seen) == 44
    assert max(seen) == MOST


@pytest.mark.parametrize("rows", [1, 9, 17, 65, 255, 256, 257, 600])
def test_rows_are_computed_in_few_sizes_and_give_the_same(rows: int) -> None:
    x, seen = torch.randn(rows, 24), []
    weight = torch.randn(40, 24)
    with torch.no_grad():
        copy = torch.ops.mkldnn._reorder_linear_weight(weight, 128)

        def product(part: torch.Tensor) -> torch.Tensor:
            seen.append(len(part))
            return torch.ops.mkldnn._linear_pointwise(part, copy, None, "none", [], "")

        ours = in_fixed_sizes(x, product)
        assert seen == sizes(rows)
        assert ours.shape == (rows, 40)
        torch.testing.assert_close(ours, x @ weight.T)


def test_a_packed_layer_uses_few_sizes_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, quick = set(), layer()
    pack(quick)
    plain = torch.ops.mkldnn._linear_pointwise

    def watched(x: torch.Tensor, *more: object) -> torch.Tensor:
        seen.add(len(x))
        return plain(x, *more)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    with torch.no_grad():
        for rows in range(1, 700):
            assert quick(torch.zeros(rows, 24)).shape == (rows, 40)
    assert len(seen) <= 44


@pytest.mark.parametrize("shape", [(9, 7), (17, 3, 2), (17,)])
def test_rows_may_form_a_grid(shape: tuple[int, ...]) -> None:
    """As the patches of images do."""
    plain, quick = layer(), layer()
    pack(quick)
    x = torch.randn(*shape, 24)
    with torch.no_grad():
        torch.testing.assert_close(quick(x), plain(x))
