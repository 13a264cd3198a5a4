"""One layer: attention, cross attention where there is a memory, feed-forward. Three wirings."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from headway.nn.attention.attention import Attention, Memory
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

    def attended(
        self,
        x_ND: Tensor,
        normed_ND: Tensor,
        layout: Layout,
        cache: LayerCache | None,
        n_first: int | None,
    ) -> tuple[Tensor, Tensor, Tensor, Layout]:
        """Rows of the stream, the same normed, what attention adds to them, and how they lie.

        `n_first`: only so many rows of each sequence go on; all of its rows are their memory.
        """
        if n_first is None:
            return x_ND, normed_ND, self.attention(normed_ND, layout, cache=cache), layout
        row_N, first = layout.beginnings(n_first)
        asking_ND = normed_ND[row_N]
        added_ND = self.attention(asking_ND, first, Memory(normed_ND, layout))
        return x_ND[row_N], asking_ND, added_ND, first

    @property
    def can_end_early(self) -> bool:
        """Whether `n_first` is possible: only where attention does not ask how far apart rows are,
        since it takes a memory's last rows for those that ask."""
        scope = self.attention.scope
        near = scope.causal or scope.window is not None or scope.bias is not None
        return self.attention.rotary is None and not near


class PostNorm(Block):
    """x = norm(x + sub-layer(x)): the 2017 Transformer, BERT, GPT."""

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
    """x = x + sub-layer(norm(x)): GPT-2, Llama, ViT. The stack ends with a norm."""

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
    """All sub-layers read one norm of x and are added together: GPT-J, PaLM."""

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


WIRINGS: dict[str, type[PostNorm] | type[PreNorm] | type[Parallel]] = {
    "post": PostNorm,
    "pre": PreNorm,
    "parallel": Parallel,
}
