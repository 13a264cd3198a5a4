"""One layer: attention, cross attention where there is a memory, feed-forward. Three wirings."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from headway.nn.attention import Attention, Memory
from headway.nn.cache import LayerCache
from headway.nn.dropout import Dropout
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout
from headway.nn.norms import add_norm
from headway.nn.tap import Tap


class Block(nn.Module):
    """The parts of a layer; a subclass says how they are wired to the residual stream."""

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
        """A norm for each further sub-layer; a wiring with a single norm adds none."""
        self.norm_cross = None if self.cross is None else norm()
        self.norm_feed_forward = norm()


class PostNorm(Block):
    """x = norm(x + sub-layer(x)): the 2017 Transformer, BERT, GPT."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        rate = self.drop.p if self.training else 0.0
        x_ND = add_norm(self.norm_attention, x_ND, self.attention(x_ND, layout, cache=cache), rate)
        if self.cross is not None and self.norm_cross is not None:
            x_ND = add_norm(self.norm_cross, x_ND, self.cross(x_ND, layout, memory, cache), rate)
        x_ND = add_norm(self.norm_feed_forward, x_ND, self.feed_forward(x_ND), rate)
        return self.stream(x_ND)


class PreNorm(Block):
    """x = x + sub-layer(norm(x)): GPT-2, Llama, ViT. The stack ends with a norm."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        x_ND = x_ND + self.drop(self.attention(self.norm_attention(x_ND), layout, cache=cache))
        if self.cross is not None and self.norm_cross is not None:
            x_ND = x_ND + self.drop(self.cross(self.norm_cross(x_ND), layout, memory, cache))
        x_ND = x_ND + self.drop(self.feed_forward(self.norm_feed_forward(x_ND)))
        return self.stream(x_ND)


class Parallel(Block):
    """All sub-layers read one norm of x and are added together: GPT-J, PaLM."""

    def add_norms(self, norm: Callable[[], nn.Module]) -> None:
        pass

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        normed_ND = self.norm_attention(x_ND)
        added_ND = self.attention(normed_ND, layout, cache=cache) + self.feed_forward(normed_ND)
        if self.cross is not None:
            added_ND = added_ND + self.cross(normed_ND, layout, memory, cache)
        return self.stream(x_ND + self.drop(added_ND))


WIRINGS: dict[str, type[PostNorm] | type[PreNorm] | type[Parallel]] = {
    "post": PostNorm,
    "pre": PreNorm,
    "parallel": Parallel,
}
