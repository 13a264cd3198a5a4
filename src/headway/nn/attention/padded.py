"""The `padded` back end: attention on padded batches, with operations that all runtimes support.

It serves graphs that are exported for another runtime (`torch.export`, ONNX). They must accept any
number of texts of any length, so their batches are padded; all other batches in headway are flat.
An exported model receives a `PaddedLayout` instead of a `Layout`, and a `PaddedCache` instead of a
`Cache`. No operation here depends on the values of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.nn.attention.scope import AttentionSpec
from headway.nn.cache import Cache, LayerCache
from headway.nn.layout import Layout

HIDDEN = -1e9
"""Value added to the scores of masked keys. It is finite because all keys of a padding query are
masked, and a softmax over only −∞ gives NaN."""

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer, for B sequences of S tokens; each tensor is B G S K."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedLayout(Layout):
    """Layout of a padded batch of B × T positions, with a mask of the real tokens."""

    real_BT: Tensor
    """Mask that is 1 or true for real tokens. Padding may be on either side."""

    @classmethod
    def over(cls, real_BT: Tensor, positions_BT: Tensor | None = None) -> PaddedLayout:
        """Build the layout from a mask.

        `positions_BT`: the position of each token in its text. It is needed if earlier tokens are
        in a cache.
        """
        n_sequences, longest = real_BT.shape
        if positions_BT is None:
            positions_BT = (real_BT.cumsum(1) - 1).clamp(min=0)
        bounds = torch.arange(n_sequences + 1, device=real_BT.device) * longest
        return cls(
            starts_B=bounds[:-1],
            lengths_B=real_BT.sum(1),
            n_rows=n_sequences * longest,
            positions_N=positions_BT.flatten(),
            longest=longest,
            reach=0,  # unknown; `extend_positions` makes the tables long enough beforehand
            bounds=bounds,
            stride=longest,
            real_BT=real_BT,
        )

    def grid(self, x_N: Tensor) -> Tensor:
        """Return per-token values as a padded batch (B T …)."""
        return x_N.unflatten(0, self.real_BT.shape)

    def pooled(self, x_ND: Tensor, pooling: str) -> Tensor:
        real_BT, whole_B1 = self.real_BT, self.real_BT.sum(1, keepdim=True)
        if pooling == "mean":
            share_BT = real_BT.float() / whole_B1.clamp(min=1)
        else:
            wanted = 1 if pooling == "first" else whole_B1
            share_BT = ((real_BT.cumsum(1) == wanted) & (real_BT > 0)).float()
        return (share_BT[:, None] @ self.grid(x_ND)).squeeze(1)

    def numbers_N(self) -> Tensor:
        number_B = torch.arange(self.real_BT.shape[0], device=self.real_BT.device)
        return number_B[:, None].expand_as(self.real_BT).flatten()

    def real_N(self) -> Tensor:
        return self.real_BT.flatten() > 0

    def nth(self, x_ND: Tensor, number: int) -> Tensor:
        return self.grid(x_ND)[:, number]


class PaddedLayer(LayerCache):
    """Cached keys and values of one layer, which are inputs and outputs of an exported graph."""

    def __init__(self, keys: PaddedLayout, past: KeysValues, memory: KeysValues | None) -> None:
        self.keys, self.present, self.memory = keys, past, memory

    def append(self, k_NGK: Tensor, v_NGK: Tensor, new: Layout) -> tuple[Tensor, Tensor, Layout]:
        assert isinstance(new, PaddedLayout)
        k_BGSK, v_BGSK = self.present
        k_BGSK = torch.cat([k_BGSK, _heads_first(k_NGK, new)], dim=2)
        v_BGSK = torch.cat([v_BGSK, _heads_first(v_NGK, new)], dim=2)
        self.present = (k_BGSK, v_BGSK)
        return k_BGSK, v_BGSK, self.keys


class PaddedCache(Cache):
    """Cache of an exported graph. Its inputs are the cached keys and values; its outputs include
    those of the new tokens."""

    def __init__(
        self, keys: PaddedLayout, past: Sequence[KeysValues], memory: Sequence[KeysValues] = ()
    ) -> None:
        """Build the cache from its inputs.

        `keys`: layout of cached and new tokens. `memory`: keys and values for cross-attention.
        """
        self.padded = [
            PaddedLayer(keys, both, memory[number] if memory else None)
            for number, both in enumerate(past)
        ]
        self.layers = [*self.padded]

    @property
    def present(self) -> list[KeysValues]:
        """Return the keys and values of each layer, including those of the new tokens."""
        return [layer.present for layer in self.padded]

    def advance(self, new: Layout) -> None:
        """Do nothing, because the layers grow in `append`."""


def attend_padded(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> tuple[Tensor, Tensor]:
    """Compute attention on padded batches. Return the output, one vector per position, and the
    attention weights (B H T S).

    Keys and values from a cache are already padded (B G S K). The query heads of a group share
    their keys without a copy.
    """
    assert isinstance(queries, PaddedLayout)
    assert isinstance(keys, PaddedLayout)
    q_BHTK = _heads_first(q_NHK * scope.scale_for(q_NHK.shape[-1]), queries)
    k_BGSK, v_BGSK = (x if x.ndim == 4 else _heads_first(x, keys) for x in (k_MGK, v_MGK))
    added_BHTS = _added(queries, keys, scope)
    n_groups, repeats = k_BGSK.shape[1], q_NHK.shape[1] // k_BGSK.shape[1]
    if repeats == 1:
        weights_BHTS = (q_BHTK @ k_BGSK.transpose(2, 3) + added_BHTS).softmax(-1)
        out_BHTK = weights_BHTS @ v_BGSK
    else:
        grouped = (n_groups, repeats)
        scores_BGRTS = q_BHTK.unflatten(1, grouped) @ k_BGSK.transpose(2, 3)[:, :, None]
        weights_BHTS = (scores_BGRTS.flatten(1, 2) + added_BHTS).softmax(-1)
        out_BHTK = (weights_BHTS.unflatten(1, grouped) @ v_BGSK[:, :, None]).flatten(1, 2)
    return out_BHTK.transpose(1, 2).flatten(0, 1), weights_BHTS


def _added(queries: PaddedLayout, keys: PaddedLayout, scope: AttentionSpec) -> Tensor:
    """Return the additive mask of the scores (B H T S; H may be 1): the position bias, and `HIDDEN`
    for masked keys. It is computed once for all layers of a stack."""
    key = ("padded", id(keys), scope.causal, scope.window, id(scope.bias))
    found = queries.memo.get(key)
    if isinstance(found, tuple):
        return found[0]
    may_BTS = keys.real_BT.to(torch.bool)[:, None]
    distance_BTS = (
        keys.grid(keys.positions_N)[:, None] - queries.grid(queries.positions_N)[..., None]
    )
    if scope.causal:
        may_BTS = may_BTS & (distance_BTS <= 0)
    if scope.window is not None:
        may_BTS = may_BTS & (distance_BTS.abs() < scope.window)
    added_BHTS = (1.0 - may_BTS[:, None].float()) * HIDDEN
    if scope.bias is not None:
        added_BHTS = scope.bias(distance_BTS) + added_BHTS
    queries.memo[key] = (added_BHTS, keys, scope.bias)  # kept alive: their identities are the key
    return added_BHTS


def _heads_first(x_NHK: Tensor, layout: PaddedLayout) -> Tensor:
    return layout.grid(x_NHK).transpose(1, 2)
