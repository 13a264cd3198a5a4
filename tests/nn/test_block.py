"""The three wirings, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Attention, Memory
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import BLOCK_LAYOUTS, Block
from headway.nn.cache import Cache
from headway.nn.dropout import dropout as dropped
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout
from headway.nn.norms import NORMS
from headway.nn.tap import record

Shake = Callable[[nn.Module], nn.Module]
Part = Callable[[Tensor], Tensor]


def post(x: Tensor, block: Block, drop: Part, attention: Part, cross: Part | None) -> Tensor:
    x = block.norm_attention(x + drop(attention(x)))
    if cross is not None:
        x = block.norm_cross(x + drop(cross(x)))
    return block.norm_feed_forward(x + drop(block.feed_forward(x)))


def pre(x: Tensor, block: Block, drop: Part, attention: Part, cross: Part | None) -> Tensor:
    x = x + drop(attention(block.norm_attention(x)))
    if cross is not None:
        x = x + drop(cross(block.norm_cross(x)))
    return x + drop(block.feed_forward(block.norm_feed_forward(x)))


def parallel(x: Tensor, block: Block, drop: Part, attention: Part, cross: Part | None) -> Tensor:
    normed = block.norm_attention(x)
    added = attention(normed) + block.feed_forward(normed)
    return x + drop(added if cross is None else added + cross(normed))


FORMULAS: dict[str, Any] = {"post": post, "pre": pre, "parallel": parallel}


def made(block_layout: str, *, cross: bool, norm: str = "layer", dropout: float = 0.0) -> Block:
    return BLOCK_LAYOUTS[block_layout](
        Attention(8, 2, bias="qkvo", scope=AttentionSpec(causal=True)),
        FeedForward(8, 12, "gelu"),
        lambda: NORMS[norm](8),
        cross=Attention(8, 2, bias="qkvo") if cross else None,
        dropout=dropout,
    )


def test_every_wiring_has_a_formula_here() -> None:
    assert set(BLOCK_LAYOUTS) == set(FORMULAS)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("cross", [False, True], ids=["no memory", "memory"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("block_layout", BLOCK_LAYOUTS)
def test_a_wiring_equals_its_formula(
    block_layout: str, norm: str, cross: bool, dropout: float, shake: Shake, device: torch.device
) -> None:
    block = shake(made(block_layout, cross=cross, norm=norm, dropout=dropout)).to(device)
    layout, memory = Layout.of([3, 2], device), None
    x_ND = torch.randn(5, 8, device=device)
    if cross:
        memory = Memory(torch.randn(6, 8, device=device), Layout.of([2, 4], device))
    torch.manual_seed(1)
    found = block(x_ND, layout, memory)
    torch.manual_seed(1)
    wanted = FORMULAS[block_layout](
        x_ND,
        block,
        lambda y_ND: dropped(y_ND, dropout),
        lambda y_ND: block.attention(y_ND, layout),
        (lambda y_ND: block.cross(y_ND, layout, memory)) if cross else None,
    )
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)
    assert not torch.allclose(found, x_ND)


@pytest.mark.parametrize("block_layout", BLOCK_LAYOUTS)
def test_dropout_is_off_in_use(block_layout: str, shake: Shake) -> None:
    block = shake(made(block_layout, cross=False, dropout=0.5))
    plain = made(block_layout, cross=False)
    plain.load_state_dict(block.state_dict())
    x_ND, layout = torch.randn(5, 8), Layout.of([3, 2])
    assert not torch.allclose(block(x_ND, layout), plain(x_ND, layout))
    assert torch.equal(block.eval()(x_ND, layout), plain(x_ND, layout))


@pytest.mark.parametrize(("block_layout", "norms"), [("post", 2), ("pre", 2), ("parallel", 1)])
def test_a_wiring_has_the_norms_it_uses_and_no_other(
    block_layout: str, norms: int, shake: Shake
) -> None:
    for cross in (False, True):
        block = shake(made(block_layout, cross=cross))
        memory = Memory(torch.randn(3, 8), Layout.of([3])) if cross else None
        block(torch.randn(2, 8), Layout.of([2]), memory).square().sum().backward()
        assert all(p.grad is not None for p in block.parameters())
        n_norms = sum(type(part) in NORMS.values() for part in block.modules())
        assert n_norms == norms + (cross and block_layout != "parallel")


@pytest.mark.parametrize("block_layout", BLOCK_LAYOUTS)
def test_the_stream_of_a_block_can_be_looked_at(block_layout: str) -> None:
    block = made(block_layout, cross=False)
    with record(block, "stream") as seen:
        out_ND = block(torch.randn(3, 8), Layout.of([3]))
    assert torch.equal(seen["stream"][0], out_ND)


@pytest.mark.parametrize("block_layout", BLOCK_LAYOUTS)
def test_a_block_hands_its_cache_to_both_attentions(block_layout: str, shake: Shake) -> None:
    block = shake(made(block_layout, cross=True))
    memory = Memory(torch.randn(4, 8), Layout.of([4]))
    x_ND = torch.randn(3, 8)
    cache = Cache(1, n_rows=1, capacity=3)
    with torch.no_grad():
        whole = block(x_ND, Layout.of([3]), memory)
        pieces = []
        for row in range(3):
            layout = cache.layout(1)
            pieces.append(block(x_ND[row : row + 1], layout, memory, cache.layers[0]))
            cache.advance(layout)
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0.0, atol=1e-5)
    assert cache.layers[0].memory is not None


@pytest.mark.parametrize("cross", [False, True], ids=["no memory", "memory"])
@pytest.mark.parametrize("block_layout", BLOCK_LAYOUTS)
def test_gradients_pass_the_check_by_finite_differences(
    block_layout: str, cross: bool, shake: Shake
) -> None:
    block = shake(made(block_layout, cross=cross)).double()
    layout = Layout.of([2, 1])
    names = [name for name, _ in block.named_parameters()]

    def run(x_ND: Tensor, memory_MD: Tensor, *weights: Tensor) -> Tensor:
        memory = Memory(memory_MD, Layout.of([1, 3])) if cross else None
        named = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(block, named, (x_ND, layout, memory))

    x_ND, memory_MD = torch.randn(3, 8).double(), torch.randn(4, 8).double()
    inputs = (x_ND, memory_MD, *(p.detach() for p in block.parameters()))
    leaves = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
