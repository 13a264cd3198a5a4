"""Multi-head attention: self-attention, causal self-attention and cross-attention in one module."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.nn.attention.attend import attend, attend_explicit
from headway.nn.attention.padded import PaddedLayout, attend_padded
from headway.nn.attention.scope import AttentionSpec
from headway.nn.cache import LayerCache
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.positions import PrunedBias, Rotary
from headway.nn.tap import Tap


class Memory(NamedTuple):
    """Encoder output that a decoder attends to, with its layout."""

    x_MD: Tensor
    layout: Layout


def attend_recorded(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGK: Tensor,
    queries: Layout,
    keys: Layout,
    scope: AttentionSpec,
    weights: Tap,
) -> Tensor:
    """Compute attention. If the attention weights are being recorded, use the explicit
    implementation, which returns them."""
    if not weights.is_recording:
        return attend(q_NHK, k_MGK, v_MGK, queries, keys, scope)
    explicit = attend_padded if isinstance(keys, PaddedLayout) else attend_explicit
    out_NHK, found = explicit(q_NHK, k_MGK, v_MGK, queries, keys, scope)
    weights(found)
    return out_NHK


class Attention(nn.Module):
    """Multi-head attention: cross-attention to a `memory`, or self-attention within `x_ND` if there
    is none.

    The three projections are one matrix, so self-attention needs only one matrix product.
    Cross-attention projects queries with the upper rows of the matrix, and keys and values with the
    lower rows.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: str = "",
        scope: AttentionSpec = AttentionSpec(),
        rotary: Rotary | None = None,
        qk_norm: tuple[nn.Module, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.scope = scope
        self.to_qkv = Linear(d_model, sum(self.sizes), bias=set("qkv") <= set(bias))
        self.to_out = Linear(n_heads * self.d_head, d_model, bias="o" in bias)
        self.some_bias = nn.ParameterDict()
        if self.to_qkv.bias is None:
            for name, size in zip("qkv", self.sizes, strict=True):
                if name in bias:
                    self.some_bias[name] = nn.Parameter(torch.zeros(size))
        self.bias = scope.bias if isinstance(scope.bias, PrunedBias) else None
        """Position bias of the heads that are left after pruning. It is registered as a submodule,
        so that it moves to the model's device."""
        self.rotary = rotary
        self.norm_q = None if qk_norm is None else qk_norm[0]
        self.norm_k = None if qk_norm is None else qk_norm[1]
        self.gate_H: Tensor | None = None
        """Factor for the output of each head, used for head ablation. None means no ablation."""
        self.q, self.k, self.v = Tap(), Tap(), Tap()
        self.weights, self.heads = Tap(), Tap()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of rows of `to_qkv` for queries, for keys and for values."""
        n_kv = self.n_kv_heads * self.d_head
        return self.n_heads * self.d_head, n_kv, n_kv

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        """Return the weights. Each is mapped to the row counts of the matrices that are fused in
        it."""
        return {self.to_qkv.weight: self.sizes, self.to_out.weight: (len(self.to_out.weight),)}

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        if memory is None:
            q_NHK, k_MGK, v_MGK = self.projected(x_ND, layout)
            keys = layout
            if cache is not None:
                k_MGK, v_MGK, keys = cache.append(k_MGK, v_MGK, layout)
        else:
            q_NHK = self._project_q(x_ND)
            k_MGK, v_MGK = self._project_memory(memory, cache)
            keys = memory.layout
        out_NHK = self._attend(self.q(q_NHK), self.k(k_MGK), self.v(v_MGK), layout, keys)
        if self.gate_H is not None:
            out_NHK = out_NHK * self.gate_H[:, None].to(out_NHK.dtype)
        out_NHK = self.heads(out_NHK)
        return self.to_out(out_NHK.flatten(1))

    def _attend(
        self, q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout
    ) -> Tensor:
        scope = self.scope if self.training else self.scope.without_dropout()
        return attend_recorded(q_NHK, k_MGK, v_MGK, queries, keys, scope, self.weights)

    def projected(self, x_ND: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values for self-attention."""
        qkv_NE = self.to_qkv.product(x_ND, self._qkv_bias())
        q_NHK, k_NGK, v_NGK = (self._heads(part) for part in qkv_NE.split(self.sizes, dim=-1))
        q_NHK, k_NGK = self._normed(q_NHK, self.norm_q), self._normed(k_NGK, self.norm_k)
        if self.rotary is not None:
            q_NHK, k_NGK = self.rotary(q_NHK, layout), self.rotary(k_NGK, layout)
        return q_NHK, k_NGK, v_NGK

    def _project_q(self, x_ND: Tensor) -> Tensor:
        n_q, bias_E = self.sizes[0], self._qkv_bias()
        q_NE = self.to_qkv.product(x_ND, None if bias_E is None else bias_E[:n_q], slice(n_q))
        return self._normed(self._heads(q_NE), self.norm_q)

    def _project_memory(self, memory: Memory, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        """Return keys and values of the encoder output. With a cache, they are computed only in the
        first call."""
        if cache is None:
            return self.keys_of(memory)
        if cache.memory is None:
            cache.memory = self.keys_of(memory)
        return cache.memory

    def keys_of(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Project an encoder output to keys and values."""
        n_q, bias_E = self.sizes[0], self._qkv_bias()
        bias_E = None if bias_E is None else bias_E[n_q:]
        kv_ME = self.to_qkv.product(memory.x_MD, bias_E, slice(n_q, None))
        k_MGK, v_MGK = (self._heads(part) for part in kv_ME.chunk(2, dim=-1))
        return self._normed(k_MGK, self.norm_k), v_MGK

    def _heads(self, x_NE: Tensor) -> Tensor:
        # Reshaping is faster than `unflatten`, whose overhead matters in decoding steps of one
        # token.
        return x_NE.view(x_NE.shape[0], x_NE.shape[1] // self.d_head, self.d_head)

    @staticmethod
    def _normed(x_NHK: Tensor, norm: nn.Module | None) -> Tensor:
        return x_NHK if norm is None else norm(x_NHK)

    def _qkv_bias(self) -> Tensor | None:
        if self.to_qkv.bias is not None or not self.some_bias:
            return self.to_qkv.bias
        zero = next(iter(self.some_bias.values())).new_zeros  # int8 weights have another type
        parts = zip("qkv", self.sizes, strict=True)
        return torch.cat([self.some_bias.get(name, zero(size)) for name, size in parts])
