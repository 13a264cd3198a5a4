"""Gated convolutions on flat batches. A window never reaches into another sequence.

Stacking convolutions enlarges the receptive field (ConvS2S); dilation enlarges it further
(ByteNet).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.attention.attention import Memory
from headway.nn.cache import LayerCache
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.tap import Tap

INPUTS = "inputs"


class Convolution(nn.Module):
    """Gated linear unit over windows of `kernel` tokens, `dilation` apart (Dauphin et al. 2016).

    One matrix maps the window to values and gates. A causal window ends with the current token;
    others are centred on it.
    """

    compiles = True

    def __init__(
        self, d_model: int, kernel: int, dilation: int = 1, *, causal: bool, bias: bool = True
    ) -> None:
        super().__init__()
        self.kernel, self.dilation, self.causal = kernel, dilation, causal
        self.size = d_model
        """Number of cached values per token. A convolution caches its input."""

        self.to_hidden = Linear(kernel * d_model, 2 * d_model, bias=bias)
        self.hidden = Tap()

    @property
    def depth(self) -> int:
        """Number of tokens that a window spans, from its first to its last."""
        return (self.kernel - 1) * self.dilation + 1

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        rows = len(self.to_hidden.weight) // 2
        return {self.to_hidden.weight: (rows, rows)}

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        window_NCD = (
            self._around(x_ND, layout) if cache is None else self._kept(x_ND, layout, cache)
        )
        value_ND, gate_ND = self.to_hidden(window_NCD.flatten(1)).chunk(2, dim=-1)
        return self.hidden(value_ND * gate_ND.sigmoid())

    def begin(
        self, memory: Memory | None, cache: LayerCache, like_ND: Tensor | None = None
    ) -> None:
        """Store zeros as the input before the first token. Does nothing if `like_ND`, which gives
        shape and type, is None."""
        if like_ND is not None:
            cache.begin(INPUTS, like_ND.new_zeros(cache.cache.n_rows, like_ND.shape[1]))

    def _around(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """Return the window around each token, built from shifted copies of the input. Indexing
        would be slower, because its backward pass sorts the indices."""
        before = self.kernel - 1 if self.causal else self.kernel // 2
        behind = self.kernel - 1 - before
        padded = F.pad(x_ND, (0, 0, before * self.dilation, behind * self.dilation))
        shifts = (number * self.dilation for number in range(self.kernel))
        window_NCD = torch.stack([padded[at : at + len(x_ND)] for at in shifts], dim=1)
        return window_NCD.masked_fill(~self._there(layout, before)[..., None], 0.0)

    def _there(self, layout: Layout, before: int) -> Tensor:
        """Return a mask of the window positions that are inside the token's own sequence.

        If the host knows the lengths, layers with equal windows share the mask. In a CUDA graph,
        each layer computes it, because a graph must derive everything from its inputs.
        """
        key = ("there", self.kernel, self.dilation, self.causal)
        found = layout.memo.get(key)
        if isinstance(found, Tensor):
            return found
        first, last = -before * self.dilation, (self.kernel - before) * self.dilation
        step_C = torch.arange(first, last, self.dilation, device=layout.positions_N.device)
        place_NC = layout.positions_N[:, None] + step_C
        length_N1 = layout.lengths_B[layout.numbers_N()][:, None]
        there_NC = (place_NC >= 0) & (place_NC < length_N1)
        if layout.lengths is not None:
            layout.memo[key] = there_NC
        return there_NC

    def _kept(self, x_ND: Tensor, layout: Layout, cache: LayerCache) -> Tensor:
        """Return the window of each new token, which includes cached tokens."""
        if INPUTS not in cache.cells:
            self.begin(None, cache, x_ND)
        cache.put(INPUTS, x_ND, layout)
        seen_NCD = cache.latest(INPUTS, layout, self.depth)
        return seen_NCD[:, :: self.dilation].flip(1)
