"""The `step` kernel against the definition: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

from headway.errors import UserError
from headway.nn.attention.attend import attend
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout, Tree


def inputs(
    device: torch.device, n_heads: int, n_kv: int, width: int, size: int, dtype: torch.dtype
) -> tuple[list[torch.Tensor], Layout, Layout]:
    """Three sources, two queries each, cells of which each sees some; the last sees none."""
    draw = torch.Generator().manual_seed(size)
    capacity = size + 5
    q_NEK = torch.randn(6, n_heads + 1, width, generator=draw)  # heads that stand further apart
    k_MGK = torch.randn(3 * capacity, n_kv, width, generator=draw)
    v_MGK = torch.randn(3 * capacity, n_kv, width, generator=draw)
    may_BTS = torch.rand(3, 2, capacity, generator=draw) < 0.4
    may_BTS[2, 1] = False
    tensors = [x.to(device, dtype) for x in (q_NEK, k_MGK, v_MGK)]
    tensors[0] = tensors[0][:, :n_heads]
    tree = Tree(may_BTS.to(device)[:, :, :size], torch.arange(size, device=device))
    keys = Layout.in_cache([size] * 3, capacity, device, tree)
    return tensors, Layout.of([2, 2, 2], device), keys


@pytest.mark.parametrize("size", [1, 31, 64, 300])
@pytest.mark.parametrize("heads", [(2, 2, 16), (4, 2, 24), (3, 1, 64)])
def test_a_step_equals_the_definition(
    size: int, heads: tuple[int, int, int], kernel_device: torch.device
) -> None:
    from headway.nn.kernels.decode_attention import attend_step

    tensors, queries, keys = inputs(kernel_device, *heads, size, torch.float32)
    for scope in (AttentionSpec(causal=True), AttentionSpec(scale=0.3)):
        expected = attend(*tensors, queries, keys, scope, "explicit")
        found = attend_step(*tensors, queries, keys, scope)
        assert torch.allclose(found, expected, atol=1e-5)
    assert not found[5].any()


def test_sixteen_bits_are_near(kernel_device: torch.device) -> None:
    from headway.nn.kernels.decode_attention import attend_step

    tensors, queries, keys = inputs(kernel_device, 4, 2, 32, 90, torch.bfloat16)
    wide = attend(*(x.float() for x in tensors), queries, keys, AttentionSpec(), "explicit")
    found = attend_step(*tensors, queries, keys, AttentionSpec())
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), wide, atol=2e-2)


def test_unsupported_calls_are_errors() -> None:
    tensors, queries, keys = inputs(torch.device("cpu"), 2, 2, 16, 8, torch.float32)
    for scope, message in (
        (AttentionSpec(window=3), r"'step'.*\bwindow\b"),
        (AttentionSpec(), "CUDA|Triton"),
    ):
        with pytest.raises(UserError, match=message):
            attend(*tensors, queries, keys, scope, "step")
    with pytest.raises(UserError, match=r"'step'.*\btree\b"):
        attend(tensors[0], tensors[0], tensors[0], queries, queries, AttentionSpec(), "step")
