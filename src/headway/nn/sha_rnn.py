"""Parts of a SHA-RNN (Merity 2019): single-head attention and a feed-forward layer, with one matrix
each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.attention.attention import Memory, attend_recorded
from headway.nn.attention.scope import AttentionSpec
from headway.nn.cache import LayerCache
from headway.nn.dropout import Dropout
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.tap import Tap


class SingleHead(nn.Module):
    """Attention with a single head, in which only the queries have a matrix.

    Keys and values are the inputs, with each dimension scaled by a learned gate. There is no output
    projection.
    """

    n_heads = n_kv_heads = 1
    rotary = None

    def __init__(self, d_model: int, scope: AttentionSpec) -> None:
        super().__init__()
        self.d_head, self.scope = d_model, scope
        self.to_query = Linear(d_model, d_model)
        self.key_gate = nn.Parameter(torch.zeros(d_model))
        self.value_gate = nn.Parameter(torch.zeros(d_model))
        self.gate_H: Tensor | None = None
        self.q, self.k, self.v = Tap(), Tap(), Tap()
        self.weights, self.heads = Tap(), Tap()

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        return {self.to_query.weight: (len(self.to_query.weight),)}

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        assert memory is None, "single-head attention does not support cross-attention"
        q_N1K, keys = self.to_query(x_ND)[:, None], layout
        # 2 · sigmoid(0) = 1, so keys and values initially equal the inputs.
        k_M1K, v_M1K = (
            (x_ND * (2.0 * gate_D.sigmoid()).to(x_ND.dtype))[:, None]
            for gate_D in (self.key_gate, self.value_gate)
        )
        if cache is not None:
            k_M1K, v_M1K, keys = cache.append(k_M1K, v_M1K, layout)
        scope = self.scope if self.training else self.scope.without_dropout()
        q_N1K, k_M1K, v_M1K = self.q(q_N1K), self.k(k_M1K), self.v(v_M1K)
        out_N1K = attend_recorded(q_N1K, k_M1K, v_M1K, layout, keys, scope, self.weights)
        if self.gate_H is not None:
            out_N1K = out_N1K * self.gate_H[:, None].to(out_N1K.dtype)
        return self.heads(out_N1K).flatten(1)


class Boom(nn.Module):
    """Feed-forward layer with one matrix ("boom" in Merity 2019). It widens its input, then sums
    slices of the original width."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_ff % d_model:
            raise ValueError(f"d_ff={d_ff} is not a multiple of d_model={d_model}")
        self.n_pieces = d_ff // d_model
        self.to_hidden = Linear(d_model, d_ff)
        self.drop = Dropout(dropout)
        self.hidden = Tap()

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        return {self.to_hidden.weight: (len(self.to_hidden.weight),)}

    def forward(self, x_ND: Tensor) -> Tensor:
        hidden_NF = self.hidden(F.gelu(self.to_hidden(x_ND)))
        return self.drop(hidden_NF).unflatten(1, (self.n_pieces, -1)).sum(1)
