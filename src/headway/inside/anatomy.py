"""The parts of a model by the names that everything in here uses, whatever the family.

A model that writes one thing from another attends in three ways: `encoder` (source to source),
`decoder` (target to target) and `cross` (target to source). Every other model has one way, `self`
(text to text, or patch to patch). A stack has the name of its own attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headway.errors import UserError, suggest
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.pictures import PictureFront
from headway.models.parts.sounds import SoundFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention import Attention
from headway.nn.block import Block
from headway.nn.stack import Stack


@dataclass(frozen=True)
class AttentionKind:
    name: str
    rows: str
    """The stream that asks."""

    columns: str
    """The stream that is attended to."""

    layers: list[Attention]
    """One a layer; where layers share their weights it is the same one again and again."""


@dataclass(frozen=True)
class StackPart:
    name: str
    stream: str
    front: nn.Module
    stack: Stack

    @property
    def blocks(self) -> list[Block]:
        return list(self.stack.blocks)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Anatomy:
    stacks: list[StackPart]
    """What is read first comes first; the last one is the one that answers."""

    kinds: list[AttentionKind]

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        if isinstance(model, Seq2Seq):
            encoder = StackPart("encoder", "source", model.source_front, _stack(model.encoder))
            decoder = StackPart("decoder", "target", model.target_front, _stack(model.decoder))
            cross = [block.cross for block in decoder.blocks if block.cross is not None]
            return cls(
                [encoder, decoder],
                [_own(encoder), _own(decoder), AttentionKind("cross", "target", "source", cross)],
            )
        assert isinstance(model, Encoder | Decoder)
        part = StackPart("self", stream_read_by(model.front), model.front, _stack(model.stack))
        return cls([part], [_own(part)])

    def kind(self, name: str) -> AttentionKind:
        found = {kind.name: kind for kind in self.kinds}
        if name not in found:
            raise UserError(f"this model has no attention {name!r}.{suggest(name, found)}")
        return found[name]

    def stack(self, name: str) -> StackPart:
        found = {part.name: part for part in self.stacks}
        if name not in found:
            raise UserError(f"this model has no stack {name!r}.{suggest(name, found)}")
        return found[name]

    def head(self, kind: str, layer: int, head: int) -> Attention:
        """The attention that a head is part of; an error where there is no such head."""
        layers = self.kind(kind).layers
        if not 0 <= layer < len(layers):
            raise UserError(f"{kind} attention has layers 1 to {len(layers)}, not {layer + 1}.")
        n_heads = layers[layer].n_heads
        if not 0 <= head < n_heads:
            raise UserError(
                f"layer {layer + 1} of {kind} attention has heads 1 to {n_heads}, not {head + 1}."
            )
        return layers[layer]


def stream_read_by(front: nn.Module) -> str:
    """The name of the stream of a model that has but one."""
    if isinstance(front, PictureFront):
        return "picture"
    return "sound" if isinstance(front, SoundFront) else "text"


def _own(part: StackPart) -> AttentionKind:
    return AttentionKind(
        part.name, part.stream, part.stream, [block.attention for block in part.blocks]
    )


def _stack(module: nn.Module) -> Stack:
    assert isinstance(module, Stack)
    return module
