"""What several proofs share: attention against its definition, a small stack, restless weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attend import attend_explicit
from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import BLOCK_LAYOUTS
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout
from headway.nn.norms import LayerNorm
from headway.nn.positions import Alibi, Relative, Rotary, rope_rates
from headway.nn.stack import Stack

Run = Callable[[Tensor, Tensor, Tensor, Layout, Layout, AttentionSpec], Tensor]

EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}
"""How far two ways of computing the same thing may be apart, anywhere."""


Heads = tuple[int, int, int]
"""Query heads, key/value heads, and their width."""


class Attended(NamedTuple):
    """What a back end gives for a batch, and the gradients of what went in."""

    out: Tensor
    gradients: dict[str, Tensor]

    def parts(self) -> dict[str, Tensor]:
        return {"out": self.out, **self.gradients}


def attended(
    run: Run, tensors: tuple[Tensor, ...], queries: Layout, keys: Layout, scope: AttentionSpec
) -> Attended:
    """Run and pull back a fixed random gradient, to q, k, v and the parameters of the bias."""
    leaves = {
        name: tensor.detach().requires_grad_() for name, tensor in zip("qkv", tensors, strict=True)
    }
    if isinstance(scope.bias, nn.Module):
        leaves |= {f"bias {name}": p for name, p in scope.bias.named_parameters()}
    out = run(leaves["q"], leaves["k"], leaves["v"], queries, keys, scope)
    random = torch.Generator(out.device).manual_seed(1)
    dout = torch.randn(out.shape, dtype=torch.float32, device=out.device, generator=random)
    found = torch.autograd.grad(out, list(leaves.values()), dout.to(out.dtype), allow_unused=True)
    gradients = {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }
    return Attended(out.detach(), gradients)


def random_qkv(
    queries: Layout, keys: Layout, heads: Heads, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    n_heads, n_kv_heads, width = heads
    of_queries, of_keys = (queries.n_rows, n_heads, width), (keys.n_rows, n_kv_heads, width)
    options = {"dtype": dtype, "device": queries.starts_B.device}
    q, k, v = (torch.randn(shape, **options) for shape in (of_queries, of_keys, of_keys))
    return q, k, v


def explicit(
    q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    return attend_explicit(q, k, v, queries, keys, scope)[0]


def assert_same_as_explicit(
    run: Run,
    queries: Layout,
    keys: Layout,
    scope: AttentionSpec,
    heads: Heads = (4, 2, 16),
    dtype: torch.dtype = torch.float32,
) -> None:
    """Outputs and all gradients equal those of the definition."""
    tensors = random_qkv(queries, keys, heads, dtype)
    found = attended(run, tensors, queries, keys, scope)
    wanted = attended(explicit, tensors, queries, keys, scope)
    for name, value in wanted.parts().items():
        torch.testing.assert_close(
            found.parts()[name], value, rtol=0.0, atol=EXACT[dtype],
            msg=lambda m, name=name: f"{name}: {m}",
        )  # fmt: skip


def assert_near_explicit(
    run: Run, queries: Layout, keys: Layout, scope: AttentionSpec, heads: Heads = (4, 2, 64)
) -> None:
    """A bf16 kernel against the definition in fp32: the error is a hundredth of the whole."""
    tensors = tuple(x.bfloat16() for x in random_qkv(queries, keys, heads, torch.float32))
    found = attended(run, tensors, queries, keys, scope)
    wide = tuple(x.float() for x in tensors)
    wanted = attended(explicit, wide, queries, keys, scope)
    for name, value in wanted.parts().items():
        error = (found.parts()[name].float() - value).norm()
        assert error <= 0.01 * value.norm() + 1e-6, f"{name}: {error / value.norm():.4f}"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def same_as_explicit() -> Callable[..., None]:
    return assert_same_as_explicit


@pytest.fixture
def near_explicit() -> Callable[..., None]:
    return assert_near_explicit


@pytest.fixture
def make_qkv() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    return random_qkv


def shaken(model: nn.Module) -> nn.Module:
    """Move every weight off its start, so that no part is invisible for being zero or one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture
def shake() -> Callable[[nn.Module], nn.Module]:
    return shaken


def small_stack(
    device: torch.device | str = "cpu",
    *,
    block_layout: str = "pre",
    causal: bool = True,
    cross: bool = False,
    window: int | None = None,
    positions: str = "none",
    n_layers: int = 2,
    n_kv_heads: int = 2,
) -> Stack:
    """Width 16, four heads of width 4, weights shaken."""
    bias: nn.Module | None = None
    if positions == "alibi":
        bias = Alibi(4)
    elif positions == "relative":
        bias = Relative(4, 8, 16, causal=causal)
    rotary = Rotary(lambda: rope_rates(4, 10_000.0), 4) if positions == "rotary" else None
    own = AttentionSpec(causal=causal, window=window, bias=bias)
    blocks = [
        BLOCK_LAYOUTS[block_layout](
            Attention(16, 4, n_kv_heads=n_kv_heads, bias="qkvo", scope=own, rotary=rotary),
            FeedForward(16, 32, "gelu"),
            lambda: LayerNorm(16),
            cross=Attention(16, 4, bias="qkvo") if cross else None,
        )
        for _ in range(n_layers)
    ]
    final_norm = None if block_layout == "post" else LayerNorm(16)
    stack = Stack(blocks, final_norm, bias)
    shaken(stack)
    return stack.to(device)


@pytest.fixture
def make_stack() -> Callable[..., Stack]:
    return small_stack
