"""Hypotheses that share the keys of one sequence see what each would see alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.errors import UserError
from headway.nn.attention.attend import attend
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout, Tree
from headway.nn.positions import Alibi

B, W, STEPS, HEADS, WIDTH = 3, 2, 5, 4, 8
SCOPES = {
    "causal": AttentionSpec(causal=True),
    "window": AttentionSpec(causal=True, window=3),
    "bias": AttentionSpec(causal=True, bias=Alibi(HEADS)),
}


def setup() -> tuple[Tensor, Tensor, Tensor, Tensor, Layout, Layout]:
    """Keys of every step of every hypothesis, and for each hypothesis the ones that it came by."""
    torch.manual_seed(0)
    q_NHK = torch.randn(B * W, HEADS, WIDTH, dtype=torch.float64)
    k_MHK, v_MHK = (torch.randn(B * 8 * W, HEADS, WIDTH, dtype=torch.float64) for _ in range(2))
    path_BWT = torch.randint(W, (B, W, STEPS))
    path_BWT[:, :, -1] = torch.arange(W)
    may_BTS = torch.zeros(B, W, STEPS, W, dtype=torch.bool)
    may_BTS.scatter_(3, path_BWT[..., None], True)
    tree = Tree(may_BTS.flatten(2), torch.arange(STEPS * W) // W)
    keys = Layout.in_cache([STEPS * W] * B, 8 * W, tree=tree)
    queries = Layout.of([W] * B)
    object.__setattr__(queries, "positions_N", torch.full((B * W,), STEPS - 1))
    return q_NHK, k_MHK, v_MHK, path_BWT, queries, keys


@pytest.mark.parametrize("back_end", ["dense", "explicit"])
@pytest.mark.parametrize("name", SCOPES)
def test_each_hypothesis_sees_its_own_past(name: str, back_end: str) -> None:
    q_NHK, k_MHK, v_MHK, path_BWT, queries, keys = setup()
    together = attend(q_NHK, k_MHK, v_MHK, queries, keys, SCOPES[name], back_end)
    for b in range(B):
        for w in range(W):
            rows = b * 8 * W + torch.arange(STEPS) * W + path_BWT[b, w]
            row = b * W + w
            one, past = Layout.of([1]), Layout.of([STEPS])
            alone = attend(
                q_NHK[row : row + 1], k_MHK[rows], v_MHK[rows], one, past, SCOPES[name], "explicit"
            )
            torch.testing.assert_close(together[row : row + 1], alone)


def test_kernels_for_plain_text_do_not_support_tree_attention() -> None:
    q_NHK, k_MHK, v_MHK, _, queries, keys = setup()
    for name in ("short", "varlen"):
        with pytest.raises(UserError, match=f"'{name}'"):
            attend(q_NHK, k_MHK, v_MHK, queries, keys, AttentionSpec(), name)
