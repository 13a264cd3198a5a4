"""From settings to the shared parts: the one place where a family's numbers become modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from headway.models.parts.text import TextFront
from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import Scope
from headway.nn.block import WIRINGS, Block
from headway.nn.feedforward import FeedForward
from headway.nn.linear import Linear
from headway.nn.norms import NORMS, RMSNorm
from headway.nn.positions import (
    Alibi,
    BiasOfSome,
    Learned,
    Relative,
    Rotary,
    Sinusoidal,
    rope_rates,
)
from headway.nn.stack import Stack
from headway.settings.model import BodySettings, Side, TextSettings


def norm_maker(
    settings: BodySettings, side: Side, width: int | None = None
) -> Callable[[], nn.Module]:
    return lambda: NORMS[settings.norm](width or settings.d_model, side.norm_eps)


def text_front(
    settings: TextSettings,
    tokens: nn.Embedding,
    n_segments: int = 0,
    *,
    mapped: bool = False,
    cross: bool = False,
) -> TextFront:
    """As wide as the embeddings are. `mapped`: a matrix leads to the width of the stream. `cross`:
    it is that of a decoder beside an encoder."""
    width = tokens.embedding_dim
    side = settings.side(settings.sides[-1 if cross else 0])
    return TextFront(
        tokens,
        added_positions(settings, width),
        scale=settings.embedding_scale,
        n_segments=n_segments,
        norm=norm_maker(settings, side, width)() if settings.embedding_norm else None,
        dropout=settings.dropout,
        to_stream=Linear(width, settings.d_model) if mapped else None,
    )


def added_positions(settings: TextSettings, width: int) -> nn.Module | None:
    """Positions that are added to the input; the other kinds work inside attention."""
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
    """An encoder (neither), a language model (causal) or a decoder (causal, cross attention).

    `shared`: one layer, run as often as there would be layers.
    """
    kind = settings.sides[-1 if cross else 0]
    side = settings.side(kind)
    bias = _position_bias(settings, side, causal=causal)
    memory = Scope(
        dropout=settings.attention_dropout, scale=None if settings.scale_attention else 1.0
    )
    own = replace(memory, causal=causal, window=settings.window, bias=bias)
    rotary = _rotary(settings, side) if settings.positions == "rotary" else None
    norm = norm_maker(settings, side)

    def block(layer: int) -> Block:
        return WIRINGS[settings.wiring](
            _attention(settings, own, rotary, (kind, layer)),
            FeedForward(
                settings.d_model,
                side.d_ff,
                side.activation,
                bias=settings.ff_bias,
                dropout=settings.ff_dropout,
            ),
            norm,
            cross=_attention(settings, memory, None, ("cross", layer)) if cross else None,
            dropout=settings.dropout,
        )

    # Post-norm layers end with a norm each; the others leave the stream unscaled until the end.
    final_norm = None if settings.wiring == "post" else norm()
    layers = range(side.n_layers)
    blocks = [block(0)] * len(layers) if shared else [block(layer) for layer in layers]
    return Stack(blocks, final_norm, bias)


def _attention(
    settings: BodySettings, scope: Scope, rotary: Rotary | None, place: tuple[str, int]
) -> Attention:
    """`place`: kind and layer, which may lack some heads."""
    n_heads, n_kv_heads = settings.heads_in(*place)
    side = settings.side(place[0])
    width, eps = side.head_width, side.norm_eps
    kept = settings.kept_heads.of(*place)
    if kept is not None and scope.bias is not None:
        scope = replace(scope, bias=BiasOfSome(scope.bias, kept))
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


def _position_bias(settings: BodySettings, side: Side, *, causal: bool) -> nn.Module | None:
    if settings.positions == "alibi":
        return Alibi(side.n_heads)
    if settings.positions == "relative":
        relative = settings.relative
        return Relative(side.n_heads, relative.buckets, relative.max_distance, causal=causal)
    return None


def _rotary(settings: BodySettings, side: Side) -> Rotary:
    rope = settings.rope
    rates = partial(
        rope_rates, side.head_width, rope.base, rope.scaling, rope.factor, rope.trained_len
    )
    return Rotary(rates, settings.max_len)
