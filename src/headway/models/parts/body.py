"""Builders of the modules that model families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torch import nn

from headway.models.parts.custom import parts_of
from headway.models.parts.text import TextFront, TokenDropout
from headway.nn.attention.additive import AdditiveAttention
from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import BLOCK_LAYOUTS, Block, Layer, MixerBlock
from headway.nn.convolution import Convolution
from headway.nn.feedforward import FeedForward
from headway.nn.linear import Linear
from headway.nn.norms import NORMS, RMSNorm
from headway.nn.positions import (
    Alibi,
    Learned,
    PrunedBias,
    Relative,
    Rotary,
    Sinusoidal,
    rope_rates,
)
from headway.nn.recurrence import InitialState, Recurrence
from headway.nn.sha_rnn import Boom, SingleHead
from headway.nn.stack import Stack
from headway.settings.model import (
    BodySettings,
    DecoderSettings,
    Seq2SeqSettings,
    StackSpec,
    TextSettings,
)


def norm_maker(
    settings: BodySettings, side: StackSpec, width: int | None = None
) -> Callable[[], nn.Module]:
    return lambda: NORMS[settings.norm](width or settings.d_model, side.norm_eps)


def text_front(
    settings: TextSettings,
    tokens: nn.Embedding,
    n_segments: int = 0,
    *,
    mapped: bool = False,
    cross: bool = False,
    mask: int | None = None,
) -> TextFront:
    """Build the input layers for text.

    `mapped`: add a projection from the embedding width to the width of the residual stream.
    `cross`: the text is the input of a decoder with cross-attention. `mask`: index of the mask
    token for ESM's token dropout; None: no token dropout.
    """
    width = tokens.embedding_dim
    side = settings.stack("decoder") if cross else next(iter(settings.stacks.values()))
    return TextFront(
        tokens,
        added_positions(settings, width),
        scale=settings.embedding_scale,
        n_segments=n_segments,
        norm=norm_maker(settings, side, width)() if settings.embedding_norm else None,
        dropout=settings.dropout,
        to_stream=Linear(width, settings.d_model) if mapped else None,
        token_dropout=None if mask is None else TokenDropout(mask),
    )


def added_positions(settings: TextSettings, width: int) -> nn.Module | None:
    """Return the positional encoding that is added to embeddings. None for encodings that are part
    of attention."""
    own = parts_of(settings).positions
    if own is not None:
        return own(settings, width)
    if settings.positions == "learned":
        return Learned(width, settings.max_len)
    if settings.positions in ("sinusoidal", "sinusoidal-halves"):
        halves = settings.positions == "sinusoidal-halves"
        return Sinusoidal(width, settings.max_len, halves=halves)
    return None


def stack(
    settings: BodySettings,
    *,
    causal: bool,
    cross: bool = False,
    shared: bool = False,
) -> Stack:
    """Build the stack of an encoder (neither flag), a language model (`causal`), or a decoder with
    cross-attention (`causal` and `cross`).

    `shared`: apply one layer with one set of weights `n_layers` times.
    """
    kind, side = [*settings.stacks.items()][-1 if cross else 0]
    norm = norm_maker(settings, side)
    make = BODIES[settings.body]
    block, bias = make(settings, side, norm, StackPlace(kind, causal, cross))
    # Post-norm layers end with a norm. In the other layouts, the stack needs a norm after the last
    # layer.
    final_norm = None if settings.block_layout == "post" else norm()
    layers = range(side.n_layers)
    blocks = [block(0)] * len(layers) if shared else [block(layer) for layer in layers]
    return Stack(blocks, final_norm, bias)


class StackPlace(NamedTuple):
    """Role of a stack in its model."""

    kind: str
    causal: bool
    cross: bool


StackParts = tuple[Callable[[int], Layer], nn.Module | None]
"""Parts of a stack: a function from a layer's index to the layer, and the attention bias that all
layers share (None: no bias)."""

NormFactory = Callable[[], nn.Module]


def _transformer(
    settings: BodySettings, side: StackSpec, norm: NormFactory, place: StackPlace
) -> StackParts:
    bias = _position_bias(settings, side, causal=place.causal)
    memory = AttentionSpec(
        dropout=settings.attention_dropout, scale=None if settings.scale_attention else 1.0
    )
    own = replace(memory, causal=place.causal, window=settings.window, bias=bias)
    rotary = _rotary(settings, side) if settings.positions == "rotary" else None
    make = parts_of(settings).block or BLOCK_LAYOUTS[settings.block_layout]

    def block(layer: int) -> Block:
        return make(
            _attention(settings, own, rotary, (place.kind, layer)),
            FeedForward(
                settings.d_model,
                side.d_ff,
                side.activation,
                bias=settings.ff_bias,
                dropout=settings.ff_dropout,
            ),
            norm,
            cross=_attention(settings, memory, None, ("cross", layer)) if place.cross else None,
            dropout=settings.dropout,
        )

    return block, bias


def _recurrent(
    settings: BodySettings, side: StackSpec, norm: NormFactory, place: StackPlace
) -> StackParts:
    width, kind = settings.d_model, settings.body
    size = Recurrence.state_size(width, lstm=kind == "lstm")

    def block(layer: int) -> MixerBlock:
        # In an encoder-decoder, the decoder starts from the final state of the encoder.
        first = InitialState(width, size, both_ends=settings.bidirectional) if place.cross else None
        both = settings.bidirectional and not place.causal
        part = Recurrence(width, kind, bidirectional=both, first=first)
        return _mixer_block(settings, "recurrence", part, norm, place)

    return block, None


def _convolutional(
    settings: BodySettings, side: StackSpec, norm: NormFactory, place: StackPlace
) -> StackParts:
    def block(layer: int) -> MixerBlock:
        reach = settings.dilation ** (layer % DILATED)
        part = Convolution(settings.d_model, settings.kernel, reach, causal=place.causal)
        return _mixer_block(settings, "convolution", part, norm, place)

    return block, None


def _sha_rnn(
    settings: BodySettings, side: StackSpec, norm: NormFactory, place: StackPlace
) -> StackParts:
    width = settings.d_model
    scope = AttentionSpec(causal=True, window=settings.window, dropout=settings.attention_dropout)
    assert isinstance(settings, DecoderSettings)
    layers = range(side.n_layers)
    attending = {"every": layers, "second-last": layers[-2:][:1], "none": ()}[settings.single_head]

    def block(layer: int) -> MixerBlock:
        return MixerBlock(
            "recurrence",
            Recurrence(width, "lstm"),
            norm,
            pre=settings.block_layout == "pre",
            attention=SingleHead(width, scope) if layer in attending else None,
            feed_forward=Boom(width, side.d_ff, settings.ff_dropout),
            dropout=settings.dropout,
        )

    return block, None


def _mixer_block(
    settings: BodySettings, name: str, part: nn.Module, norm: NormFactory, place: StackPlace
) -> MixerBlock:
    cross: Attention | AdditiveAttention | None = None
    if place.cross:
        assert isinstance(settings, Seq2SeqSettings)
        width = settings.d_model
        ways: dict[str, Callable[[], Attention | AdditiveAttention | None]] = {
            "dot": lambda: Attention(width, 1),
            "additive": lambda: AdditiveAttention(width),
            "last": lambda: None,
        }
        cross = ways[settings.source_attention]()
    pre = settings.block_layout == "pre"
    return MixerBlock(name, part, norm, cross=cross, dropout=settings.dropout, pre=pre)


DILATED = 5
"""Number of layers after which the dilation starts again at 1. ByteNet uses 1, 2, 4, 8, 16."""

BODIES: dict[str, Callable[[BodySettings, StackSpec, NormFactory, StackPlace], StackParts]] = {
    "transformer": _transformer,
    "lstm": _recurrent,
    "gru": _recurrent,
    "convolution": _convolutional,
    "sha-rnn": _sha_rnn,
}


def _attention(
    settings: BodySettings, scope: AttentionSpec, rotary: Rotary | None, place: tuple[str, int]
) -> Attention:
    """Build the attention of a layer.

    `place`: kind of attention and index of the layer. They determine which heads are left after
    pruning.
    """
    n_heads, n_kv_heads = settings.heads_in(*place)
    side = settings.stack(place[0])
    width, eps = side.head_width, side.norm_eps
    kept = settings.kept_heads.of(*place)
    own = parts_of(settings).scope
    if own is not None:
        scope = own(scope, *place)
    if kept is not None and scope.bias is not None:
        scope = replace(scope, bias=PrunedBias(scope.bias, kept))
    qk_norm = None
    if settings.qk_norm:
        qk_norm = (RMSNorm(width, eps), RMSNorm(width, eps))
    return Attention(
        settings.d_model,
        n_heads,
        n_kv_heads=n_kv_heads,
        d_head=width,
        bias=settings.attention_bias,
        scope=scope,
        rotary=rotary,
        qk_norm=qk_norm,
    )


def _position_bias(settings: BodySettings, side: StackSpec, *, causal: bool) -> nn.Module | None:
    if settings.positions == "alibi":
        return Alibi(side.n_heads)
    if settings.positions == "relative":
        relative = settings.relative
        return Relative(side.n_heads, relative.buckets, relative.max_distance, causal=causal)
    return None


def _rotary(settings: BodySettings, side: StackSpec) -> Rotary:
    rope = settings.rope
    rates = partial(
        rope_rates, side.head_width, rope.base, rope.scaling, rope.factor, rope.trained_len
    )
    return Rotary(rates, settings.max_len)
