"""Additive cross-attention (Bahdanau et al. 2015), in which a small network scores each pair of
query and key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Memory
from headway.nn.cache import LayerCache
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.tap import Tap

HIDDEN = -1e30
"""Score of masked keys. It is finite because a softmax over only −∞ gives NaN."""


class AdditiveAttention(nn.Module):
    """Additive attention: score(q, k) = v · tanh(W q + U k). The values are the encoder output
    itself.

    The interface is that of `Attention` with one head, so keys and values can be cached and
    attention weights recorded.
    """

    n_heads = n_kv_heads = 1

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_head = d_model
        self.to_query = Linear(d_model, d_model, bias=True)
        self.to_key = Linear(d_model, d_model, bias=False)
        self.to_score = Linear(d_model, 1, bias=False)
        self.to_out = Linear(d_model, d_model, bias=False)
        self.gate_H: Tensor | None = None
        self.q, self.k, self.v = Tap(), Tap(), Tap()
        self.weights, self.heads = Tap(), Tap()

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        parts = (self.to_query, self.to_key, self.to_out)
        return {part.weight: (len(part.weight),) for part in parts}

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        assert memory is not None, "additive attention supports only cross-attention"
        if cache is None:
            k_M1K, v_M1K = self.keys_of(memory)
        else:
            if cache.memory is None:
                cache.memory = self.keys_of(memory)
            k_M1K, v_M1K = cache.memory
        q_N1K = self.q(self.to_query(x_ND)[:, None])
        k_M1K, v_M1K = self.k(k_M1K), self.v(v_M1K)
        cell_BS, real_BS, may_BTS = _keys(memory.layout)
        row_BT, place_N = _queries(layout)
        hidden_BTSK = q_N1K[row_BT] + k_M1K[cell_BS].transpose(1, 2)
        scores_BTS = self.to_score(hidden_BTSK.tanh()).squeeze(-1).float()
        # A query without visible keys, such as padding, gets zeros.
        weights_BTS = scores_BTS.masked_fill(~may_BTS, HIDDEN).softmax(-1) * may_BTS
        v_BSD = v_M1K[cell_BS].squeeze(2).masked_fill(~real_BS[..., None], 0.0)
        out_BTD = weights_BTS.to(x_ND.dtype) @ v_BSD
        out_N1D = out_BTD.flatten(0, 1)[place_N][:, None]
        if self.weights.is_recording:
            self.weights(_by_sequence(weights_BTS, layout, memory.layout))
        if self.gate_H is not None:
            out_N1D = out_N1D * self.gate_H[:, None].to(out_N1D.dtype)
        return self.to_out(self.heads(out_N1D).flatten(1))

    def keys_of(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the keys and values of an encoder output. The values are its unprojected
        states."""
        return self.to_key(memory.x_MD)[:, None], memory.x_MD[:, None]


def _keys(keys: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Return the padded layout of the keys: the index of each key in the flat batch (B S), a
    mask of the keys that are not padding, and a mask of the keys that each query may attend to
    (B T S)."""
    cell_S = torch.arange(keys.longest, device=keys.starts_B.device)
    cell_BS = (keys.starts_B.long()[:, None] + cell_S).clamp(max=max(0, keys.n_rows - 1))
    real_BS = cell_S < keys.lengths_B[:, None]
    return cell_BS, real_BS, real_BS[:, None] if keys.tree is None else keys.tree.may_BTS


def _queries(queries: Layout) -> tuple[Tensor, Tensor]:
    """Return the padded layout of the queries: the index of each query in the flat batch (B T), and
    the place in that layout of each query of the flat batch."""
    step_T = torch.arange(queries.longest, device=queries.starts_B.device)
    row_BT = queries.starts_B.long()[:, None] + step_T
    number_N = queries.numbers_N()
    row_N = torch.arange(queries.n_rows, device=row_BT.device)
    place_N = number_N * queries.longest + row_N - queries.starts_B.long()[number_N]
    return row_BT.clamp(max=max(0, queries.n_rows - 1)), place_N


def _by_sequence(weights_BTS: Tensor, queries: Layout, keys: Layout) -> list[Tensor]:
    """Return the attention weights of each sequence (1 T S), without padding."""
    sizes = zip(queries.known_lengths(), keys.known_lengths(), strict=True)
    return [weights_BTS[b : b + 1, :t, :s] for b, (t, s) in enumerate(sizes)]
