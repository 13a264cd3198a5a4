"""Layers one after another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from headway.nn.attention.attention import Memory
from headway.nn.block import BLOCK_LAYOUTS
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.stack import Stack

MakeStack = Callable[..., Stack]


@pytest.mark.parametrize("block_layout", BLOCK_LAYOUTS)
@pytest.mark.parametrize("cross", [False, True], ids=["no memory", "memory"])
def test_a_stack_is_its_blocks_in_order_then_the_norm(
    block_layout: str, cross: bool, make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device, block_layout=block_layout, cross=cross, n_layers=3)
    layout = Layout.of([3, 2], device)
    x_ND = torch.randn(5, 16, device=device)
    memory = None
    if cross:
        memory = Memory(torch.randn(6, 16, device=device), Layout.of([2, 4], device))
    wanted = x_ND
    for block in stack.blocks:
        wanted = block(wanted, layout, memory)
    if block_layout == "post":
        assert stack.final_norm is None
    else:
        wanted = stack.final_norm(wanted)
    assert torch.equal(stack(x_ND, layout, memory), wanted)


@pytest.mark.parametrize("positions", ["none", "alibi", "relative", "rotary"])
def test_a_batch_of_three_is_three_batches_of_one(
    positions: str, make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device, positions=positions)
    layout = Layout.of([3, 1, 5], device)
    x_ND = torch.randn(9, 16, device=device)
    together = layout.split(stack(x_ND, layout))
    for mine_ND, out_ND in zip(layout.split(x_ND), together, strict=True):
        alone = stack(mine_ND, Layout.of([len(mine_ND)], device))
        torch.testing.assert_close(alone, out_ND, rtol=0.0, atol=1e-5)


def test_the_fixed_form_gives_real_rows_what_the_plain_form_gives(
    make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device, causal=False)
    x_ND = torch.randn(14, 16, device=device)
    fixed = Layout.fixed([3, 5], n_rows=14, n_sequences=5, longest=5, device=device)
    plain = stack(x_ND[:8], Layout.of([3, 5], device))
    torch.testing.assert_close(stack(x_ND, fixed)[:8], plain, rtol=0.0, atol=1e-5)


def test_gradients_of_the_real_rows_do_not_reach_the_dummies(
    make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device)
    x_ND = torch.randn(14, 16, device=device, requires_grad=True)
    fixed = Layout.fixed([3, 5], n_rows=14, n_sequences=5, longest=5, device=device)
    (gradient_ND,) = torch.autograd.grad(stack(x_ND, fixed)[:8].sum(), x_ND)
    assert gradient_ND.isfinite().all()
    assert not gradient_ND[8:].any()
    assert gradient_ND[:8].any(-1).all()


def test_the_stack_counts_a_caches_rows_once_for_all_layers(make_stack: MakeStack) -> None:
    stack = make_stack(n_layers=3)
    cache = Cache(3, n_rows=2, capacity=8)
    with torch.no_grad():
        stack(torch.randn(5, 16), cache.layout([3, 2]), cache=cache)
        assert cache.lengths == (3, 2)
        stack(torch.randn(2, 16), cache.layout(1), cache=cache)
    assert cache.lengths == (4, 3)


def test_a_shared_position_bias_is_one_part_of_the_stack(make_stack: MakeStack) -> None:
    stack = make_stack(positions="relative", n_layers=3)
    tables = [name for name, _ in stack.named_parameters() if "table" in name]
    assert tables == ["bias.table.weight"]
    stack(torch.randn(4, 16), Layout.of([4])).sum().backward()
    assert stack.bias.table.weight.grad is not None
    assert stack.bias.table.weight.grad.any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler has warnings of its own
def test_compiled_blocks_equal_eager_ones(make_stack: MakeStack) -> None:
    stack = make_stack(causal=True)
    layout = Layout.fixed([3, 5], n_rows=14, n_sequences=5, longest=5)
    x_ND = torch.randn(14, 16)
    plain = stack(x_ND, layout)
    stack.compile_blocks()
    torch.testing.assert_close(stack(x_ND, layout), plain, rtol=0.0, atol=1e-5)
