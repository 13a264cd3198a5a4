"""The families in plain torch operations on padded batches, for runtimes that know no `Layout`.

They have the trained parts of a model and compute the same numbers for every real token. Nothing
depends on the data but the numbers themselves, so `torch.export` and ONNX can record one graph for
every batch, length and past. In a mask 1 is a real token; padding may stand on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.interop.graphs.positions import Distances, Turning, Turns, added_BHTS, turned
from headway.nn.attention.attention import Attention
from headway.nn.block import Block, Parallel, PostNorm
from headway.nn.positions import Relative
from headway.nn.stack import Stack

KeysValues = tuple[Tensor, Tensor]
"""Of one layer, for B texts of S tokens: each B G S K."""


class Seen(NamedTuple):
    """What the layers of a stack have in common: the shape of the batch, and who sees whom."""

    size: tuple[int, int]
    """B and T."""

    turns: Turning | None
    """Where positions are rotary."""

    added_BHTS: Tensor
    """To the scores of self-attention: a position bias, and what hides keys. H may be 1."""


class Source(NamedTuple):
    """What cross attention sees: keys and values for each layer, and which of them are real."""

    layers: Sequence[KeysValues]
    added_B11S: Tensor


class Vectors(NamedTuple):
    x_ND: Tensor
    """Row by row of the padded batch: N is B times T."""

    present: list[KeysValues]
    crossed: list[Tensor]
    """The weights of cross attention of each layer (B H T S)."""


class Body(nn.Module):
    """A stack, whatever made the rows that it reads."""

    def __init__(self, stack: Stack, reach: int) -> None:
        """`reach`: the most positions, where the model itself knows no end."""
        super().__init__()
        self.stack = stack
        self.blocks: list[Block] = list(stack.blocks)  # type: ignore[arg-type]
        attention = self.blocks[0].attention
        self.scope = attention.scope
        self.bias = Distances(stack.bias) if isinstance(stack.bias, Relative) else stack.bias
        self.turns = None if attention.rotary is None else Turns(attention.rotary, reach)

    @property
    def reach(self) -> int | None:
        """The most positions that it knows, if there is an end to them."""
        return None if self.turns is None else len(self.turns.cos_PI)

    def forward(
        self,
        x_BTD: Tensor,
        positions_BT: Tensor,
        real_BS: Tensor,
        *,
        past: Sequence[KeysValues] = (),
        source: Source | None = None,
    ) -> Vectors:
        """`real_BS`: which keys are real, those of the past first, then those of the rows."""
        x_ND = x_BTD.flatten(0, 1)
        seen = Seen(
            (x_BTD.shape[0], x_BTD.shape[1]),
            None if self.turns is None else self.turns(positions_BT.flatten()),
            added_BHTS(self.scope, self.bias, positions_BT, real_BS),
        )
        present, crossed = [], []
        for number, block in enumerate(self.blocks):
            layer = Layer(block, seen, past[number] if past else None)
            memory = None if source is None else (source.layers[number], source.added_B11S)
            x_ND = layer.run(x_ND, memory)
            present.append(layer.present)
            crossed.extend(layer.crossed)
        if self.stack.final_norm is not None:
            x_ND = self.stack.final_norm(x_ND)
        return Vectors(x_ND, present, crossed)


class Layer:
    """One pass of a block; keeps what came up on the way."""

    present: KeysValues

    def __init__(self, block: Block, seen: Seen, past: KeysValues | None) -> None:
        self.block, self.seen, self.past = block, seen, past
        self.crossed: list[Tensor] = []

    def run(self, x_ND: Tensor, memory: tuple[KeysValues, Tensor] | None) -> Tensor:
        block = self.block
        if isinstance(block, Parallel):
            normed_ND = block.norm_attention(x_ND)
            added_ND = self.own(normed_ND) + block.feed_forward(normed_ND)
            if memory is not None:
                added_ND = added_ND + self.cross(normed_ND, *memory)
            return x_ND + added_ND
        if isinstance(block, PostNorm):
            x_ND = block.norm_attention(x_ND + self.own(x_ND))
            if memory is not None and block.norm_cross is not None:
                x_ND = block.norm_cross(x_ND + self.cross(x_ND, *memory))
            return block.norm_feed_forward(x_ND + block.feed_forward(x_ND))
        x_ND = x_ND + self.own(block.norm_attention(x_ND))
        if memory is not None and block.norm_cross is not None:
            x_ND = x_ND + self.cross(block.norm_cross(x_ND), *memory)
        return x_ND + block.feed_forward(block.norm_feed_forward(x_ND))

    def own(self, x_ND: Tensor) -> Tensor:
        attention, turns = self.block.attention, self.seen.turns
        qkv_NE = attention.to_qkv.product(x_ND, attention._qkv_bias())
        q, k, v = (_heads(part, attention) for part in qkv_NE.split(attention.sizes, dim=-1))
        q, k = _normed(q, attention.norm_q), _normed(k, attention.norm_k)
        if turns is not None:
            q, k = turned(q, turns), turned(k, turns)
        q_BHTK, k_BGSK, v_BGSK = (_grid(part, self.seen.size) for part in (q, k, v))
        if self.past is not None:
            k_BGSK = torch.cat([self.past[0], k_BGSK], dim=2)
            v_BGSK = torch.cat([self.past[1], v_BGSK], dim=2)
        self.present = (k_BGSK, v_BGSK)
        added_BHTS = self.seen.added_BHTS
        if attention.bias is not None:  # some heads are gone
            added_BHTS = added_BHTS.index_select(1, attention.bias.kept_H)
        out, _ = _attend(attention, q_BHTK, k_BGSK, v_BGSK, added_BHTS)
        return out

    def cross(self, x_ND: Tensor, memory: KeysValues, added_B11S: Tensor) -> Tensor:
        attention = self.block.cross
        assert attention is not None
        n_q, bias_E = attention.sizes[0], attention._qkv_bias()
        q_NE = attention.to_qkv.product(x_ND, None if bias_E is None else bias_E[:n_q], slice(n_q))
        q_NHK = _normed(_heads(q_NE, attention), attention.norm_q)
        q_BHTK = _grid(q_NHK, self.seen.size)
        out, weights_BHTS = _attend(attention, q_BHTK, *memory, added_B11S)
        self.crossed.append(weights_BHTS)
        return out


def keys_of(attention: Attention, x_ND: Tensor, size: tuple[int, int]) -> KeysValues:
    """Keys and values that the rows of a padded batch of this size have for cross attention."""
    n_q, bias_E = attention.sizes[0], attention._qkv_bias()
    bias_E = None if bias_E is None else bias_E[n_q:]
    k, v = attention.to_qkv.product(x_ND, bias_E, slice(n_q, None)).chunk(2, dim=-1)
    k_NGK, v_NGK = _normed(_heads(k, attention), attention.norm_k), _heads(v, attention)
    return _grid(k_NGK, size), _grid(v_NGK, size)


def _attend(
    attention: Attention, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, added_BHTS: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows (N D), and the weights. Heads of a group meet the same keys, which are not copied."""
    n_groups, repeats = attention.n_kv_heads, attention.n_heads // attention.n_kv_heads
    scale = attention.scope.scale_for(attention.d_head)
    k_BGKS = k_BGSK.transpose(2, 3)
    if repeats == 1:
        weights_BHTS = (q_BHTK * scale @ k_BGKS + added_BHTS).softmax(-1)
        out_BHTK = weights_BHTS @ v_BGSK
    else:
        grouped = (n_groups, repeats)
        scores_BGRTS = (q_BHTK * scale).unflatten(1, grouped) @ k_BGKS[:, :, None]
        weights_BHTS = (scores_BGRTS.flatten(1, 2) + added_BHTS).softmax(-1)
        out_BHTK = (weights_BHTS.unflatten(1, grouped) @ v_BGSK[:, :, None]).flatten(1, 2)
    out_NE = out_BHTK.transpose(1, 2).flatten(0, 1).flatten(1)
    return attention.to_out(out_NE), weights_BHTS


def _grid(x_NHK: Tensor, size: tuple[int, int]) -> Tensor:
    """(B H T K)."""
    return x_NHK.unflatten(0, size).transpose(1, 2)


def _heads(x_NE: Tensor, attention: Attention) -> Tensor:
    return x_NE.unflatten(1, (-1, attention.d_head))


def _normed(x_NHK: Tensor, norm: nn.Module | None) -> Tensor:
    return x_NHK if norm is None else norm(x_NHK)
