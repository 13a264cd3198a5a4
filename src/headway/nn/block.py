"""Transformer layers (attention, optional cross-attention, feed-forward) in three block layouts.

In a `MixerBlock`, a recurrence or a convolution mixes the tokens instead of attention. All layers
have the same call signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from headway.nn.attention.additive import AdditiveAttention
from headway.nn.attention.attention import Attention, Memory
from headway.nn.cache import LayerCache
from headway.nn.dropout import Dropout
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout
from headway.nn.norms import add_norm
from headway.nn.sha_rnn import Boom, SingleHead
from headway.nn.tap import Tap


class Block(nn.Module):
    """Base class of Transformer layers. It holds the sub-layers; subclasses define how they connect
    to the residual stream."""

    compiles = True
    """Whether the layer can run with fixed shapes, without knowing the sequence lengths on the
    host."""

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward,
        norm: Callable[[], nn.Module],
        *,
        cross: Attention | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.norm_attention = norm()
        self.drop = Dropout(dropout)
        self.stream = Tap()
        self.add_norms(norm)

    def add_norms(self, norm: Callable[[], nn.Module]) -> None:
        """Create one norm per sub-layer after the first. Blocks with a single norm override this
        and create none."""
        self.norm_cross = None if self.cross is None else norm()
        self.norm_feed_forward = norm()

    def attended(
        self,
        x_ND: Tensor,
        normed_ND: Tensor,
        layout: Layout,
        cache: LayerCache | None,
        n_first: int | None,
    ) -> tuple[Tensor, Tensor, Tensor, Layout]:
        """Compute self-attention. Return the residual stream, its normed form, the attention
        output, and their layout.

        With `n_first`, compute and return only the first `n_first` tokens of each sequence. They
        attend to all tokens of their sequence.
        """
        if n_first is None:
            return x_ND, normed_ND, self.attention(normed_ND, layout, cache=cache), layout
        row_N, first = layout.beginnings(n_first)
        asking_ND = normed_ND[row_N]
        added_ND = self.attention(asking_ND, first, Memory(normed_ND, layout))
        return x_ND[row_N], asking_ND, added_ND, first

    @property
    def neurons(self) -> Tap:
        """Tap that records the hidden activations of the feed-forward network."""
        return self.feed_forward.hidden

    @property
    def n_sublayers(self) -> int:
        """Number of sub-layers whose output is added to the residual stream."""
        return 2 if self.cross is None else 3

    def begin(self, memory: Memory, cache: LayerCache) -> None:
        """Store the initial state of sequences in a cache. Attention has no initial state, so this
        does nothing."""

    def cache_sizes(self) -> tuple[int, int]:
        """Return the number of cached values per target token, and per token of the encoder
        output."""
        return _keys_and_values(self.attention), _keys_and_values(self.cross)

    @property
    def can_end_early(self) -> bool:
        """Whether the layer supports `n_first`.

        Only attention that does not depend on distances does. If there are fewer queries than keys,
        attention takes the queries for the last tokens, so their distances would be wrong.
        """
        scope = self.attention.scope
        near = scope.causal or scope.window is not None or scope.bias is not None
        return self.attention.rotary is None and not near


class PostNorm(Block):
    """Transformer layer with norm(x + sub-layer(x)), as in the 2017 Transformer, BERT and GPT."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        rate = self.drop.p if self.training else 0.0
        x_ND, _, added_ND, layout = self.attended(x_ND, x_ND, layout, cache, n_first)
        x_ND = add_norm(self.norm_attention, x_ND, added_ND, rate)
        if self.cross is not None and self.norm_cross is not None:
            x_ND = add_norm(self.norm_cross, x_ND, self.cross(x_ND, layout, memory, cache), rate)
        x_ND = add_norm(self.norm_feed_forward, x_ND, self.feed_forward(x_ND), rate)
        return self.stream(x_ND)


class PreNorm(Block):
    """Transformer layer with x + sub-layer(norm(x)), as in GPT-2, Llama and ViT. It needs a final
    norm after the last layer."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        normed_ND = self.norm_attention(x_ND)
        x_ND, _, added_ND, layout = self.attended(x_ND, normed_ND, layout, cache, n_first)
        x_ND = x_ND + self.drop(added_ND)
        if self.cross is not None and self.norm_cross is not None:
            x_ND = x_ND + self.drop(self.cross(self.norm_cross(x_ND), layout, memory, cache))
        x_ND = x_ND + self.drop(self.feed_forward(self.norm_feed_forward(x_ND)))
        return self.stream(x_ND)


class Parallel(Block):
    """Transformer layer with x + attention(norm(x)) + feed-forward(norm(x)), as in GPT-J and PaLM.
    The sub-layers share the norm."""

    def add_norms(self, norm: Callable[[], nn.Module]) -> None:
        pass

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        normed_ND = self.norm_attention(x_ND)
        x_ND, normed_ND, added_ND, layout = self.attended(x_ND, normed_ND, layout, cache, n_first)
        added_ND = added_ND + self.feed_forward(normed_ND)
        if self.cross is not None:
            added_ND = added_ND + self.cross(normed_ND, layout, memory, cache)
        return self.stream(x_ND + self.drop(added_ND))


class MixerBlock(nn.Module):
    """Layer with a recurrence or convolution, and optional further sub-layers.

    The further sub-layers are self-attention, cross-attention and a feed-forward network. Each adds
    its output to the residual stream, as in `PostNorm` or `PreNorm`.
    """

    can_end_early = False

    def __init__(
        self,
        name: str,
        mixer: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        pre: bool,
        attention: SingleHead | None = None,
        cross: Attention | AdditiveAttention | None = None,
        feed_forward: Boom | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Build the layer.

        `name`: attribute that holds the recurrence or convolution. It is part of the names of its
        weights.
        """
        super().__init__()
        self.mixed, self.pre = name, pre
        self.add_module(name, mixer)
        self.norm_mixer = norm()
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.norm_attention = None if attention is None else norm()
        self.norm_cross = None if cross is None else norm()
        self.norm_feed_forward = None if feed_forward is None else norm()
        self.drop = Dropout(dropout)
        self.stream = Tap()

    @property
    def mixer(self) -> Any:
        return getattr(self, self.mixed)

    @property
    def neurons(self) -> Tap:
        """Tap that records the hidden activations of the feed-forward network or, without one, of
        the recurrence or convolution."""
        part = self.mixer if self.feed_forward is None else self.feed_forward
        found = part.hidden
        assert isinstance(found, Tap)
        return found

    @property
    def n_sublayers(self) -> int:
        return 1 + sum(x is not None for x in (self.attention, self.cross, self.feed_forward))

    @property
    def compiles(self) -> bool:
        return bool(self.mixer.compiles)

    def begin(self, memory: Memory, cache: LayerCache) -> None:
        self.mixer.begin(memory, cache)

    def cache_sizes(self) -> tuple[int, int]:
        own = self.mixer.size + _keys_and_values(self.attention)
        return own, _keys_and_values(self.cross)

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        assert n_first is None, "n_first is not supported by recurrences and convolutions"
        x_ND = self._added(x_ND, self.norm_mixer, self.mixer, layout, memory, cache)
        if self.attention is not None:
            x_ND = self._added(x_ND, self.norm_attention, self.attention, layout, None, cache)
        if self.cross is not None:
            x_ND = self._added(x_ND, self.norm_cross, self.cross, layout, memory, cache)
        if self.feed_forward is not None:
            x_ND = self._added(x_ND, self.norm_feed_forward, self.feed_forward)
        return self.stream(x_ND)

    def _added(self, x_ND: Tensor, norm: nn.Module | None, part: nn.Module, *how: Any) -> Tensor:
        assert norm is not None
        if self.pre:
            return x_ND + self.drop(part(norm(x_ND), *how))
        rate = self.drop.p if self.training else 0.0
        return add_norm(norm, x_ND, part(x_ND, *how), rate)


def _keys_and_values(attention: Attention | AdditiveAttention | SingleHead | None) -> int:
    return 0 if attention is None else 2 * attention.n_kv_heads * attention.d_head


BLOCK_LAYOUTS: dict[str, type[PostNorm] | type[PreNorm] | type[Parallel]] = {
    "post": PostNorm,
    "pre": PreNorm,
    "parallel": Parallel,
}

Layer = Block | MixerBlock
"""Any layer of a stack."""
