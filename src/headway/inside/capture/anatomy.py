"""Parts of a model (stacks, layers, attention heads) under names that are common to all model
families.

A sequence-to-sequence model has three kinds of attention: `encoder` (source to source), `decoder`
(target to target) and `cross` (target to source). Every other model has one kind, `self` (text to
text, or patch to patch). A stack has the name of its self-attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headway.errors import UserError, suggest
from headway.models.decoder import Decoder
from headway.models.parts.front import Front
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Attention
from headway.nn.block import Block
from headway.nn.stack import Stack


@dataclass(frozen=True)
class AttentionKind:
    name: str
    rows: str
    """Name of the token stream that the queries come from, such as `target`."""

    columns: str
    """Name of the token stream that the keys and values come from, such as `source`."""

    layers: list[Attention]
    """One attention module per layer. Layers that share their weights are the same module."""


@dataclass(frozen=True)
class StackPart:
    name: str
    stream: str
    front: Front
    stack: Stack

    @property
    def blocks(self) -> list[Block]:
        return list(self.stack.blocks)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Anatomy:
    stacks: list[StackPart]
    """Stacks of layers in the order of computation; the last one computes the outputs."""

    kinds: list[AttentionKind]

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        if isinstance(model, Decoder) and model.is_counted:
            raise UserError(
                "this n-gram model has no attention, layers or hidden states to inspect. Use "
                "headway evaluate or headway predict --scores to see its predictions."
            )
        if not isinstance(model, Seq2Seq):
            front = _front(model.front)
            return cls.of_stacks([StackPart("self", front.reads, front, _stack(model.stack))])
        encoder = StackPart("encoder", "source", _front(model.source_front), _stack(model.encoder))
        decoder = StackPart("decoder", "target", _front(model.target_front), _stack(model.decoder))
        return cls.of_stacks([encoder, decoder])

    @classmethod
    def of_stacks(cls, stacks: list[StackPart]) -> Anatomy:
        """Return the anatomy of these stacks, with every kind of attention that occurs in their
        layers."""
        own = {part.name: [x.attention for x in part.blocks if x.attention] for part in stacks}
        kinds = [
            AttentionKind(part.name, part.stream, part.stream, own[part.name])
            for part in stacks
            if own[part.name]
        ]
        cross = [block.cross for block in stacks[-1].blocks if block.cross is not None]
        across = [AttentionKind("cross", "target", "source", cross)] if cross else []
        return cls(stacks, kinds + across)

    @property
    def by_attention(self) -> bool:
        """Whether tokens interact through attention only. If they also interact through recurrent
        or convolutional layers, attention maps are incomplete and tokens cannot be hidden."""
        return all(isinstance(block, Block) for part in self.stacks for block in part.blocks)

    def check_by_attention(self, what: str) -> None:
        """Raise an error if recurrent or convolutional layers mix the tokens.

        `what`: beginning of the error message, such as "pruning needs".
        """
        if not self.by_attention:
            raise UserError(
                f"{what} attention heads, but this model uses recurrent or convolutional layers "
                "instead. Use a model with model.body=transformer."
            )

    @property
    def is_pair(self) -> bool:
        """Whether the model is an encoder-decoder, which generates a target stream from a source
        stream."""
        return len(self.stacks) > 1

    def kind(self, name: str) -> AttentionKind:
        found = {kind.name: kind for kind in self.kinds}
        if name not in found:
            raise UserError(f"this model has no {name!r} attention.{suggest(name, found)}")
        return found[name]

    def stack(self, name: str) -> StackPart:
        found = {part.name: part for part in self.stacks}
        if name not in found:
            raise UserError(f"this model has no stack {name!r}.{suggest(name, found)}")
        return found[name]

    def head(self, kind: str, layer: int, head: int) -> Attention:
        """Return the attention module of a head; raise an error if there is no such head."""
        layers = self.kind(kind).layers
        if not 0 <= layer < len(layers):
            raise UserError(
                f"{kind} attention has layers 1 to {len(layers)}, so there is no layer {layer + 1}."
            )
        n_heads = layers[layer].n_heads
        if not 0 <= head < n_heads:
            raise UserError(
                f"layer {layer + 1} of {kind} attention has heads 1 to {n_heads}, so there is no "
                f"head {head + 1}."
            )
        return layers[layer]


class RecordedTaps:
    """Recorded values of taps (recording points in modules), in the order of the calls.

    Layers that share weights call one tap repeatedly, so each read takes the value of the next
    call.
    """

    def __init__(self, model: nn.Module, got: Mapping[str, list[Any]]) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.calls = {name: iter(calls) for name, calls in got.items()}

    def next(self, tap: nn.Module) -> Any:
        return next(self.calls[self.names[id(tap)]])

    def weights(self, anatomy: Anatomy) -> dict[str, list[Tensor]]:
        """Attention weights by kind, one tensor per layer (heads, queries, keys)."""
        return {k.name: [self.next(one.weights)[0] for one in k.layers] for k in anatomy.kinds}


def _front(module: nn.Module | Tensor) -> Front:
    assert isinstance(module, Front)
    return module


def _stack(module: nn.Module | Tensor) -> Stack:
    assert isinstance(module, Stack)
    return module
