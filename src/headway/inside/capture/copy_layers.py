"""Layers of `torch.nn` copied into our blocks, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import UserError
from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import Scope
from headway.nn.block import Block, PostNorm, PreNorm
from headway.nn.feedforward import FeedForward
from headway.nn.norms import LayerNorm, RMSNorm
from headway.nn.stack import Stack

ACTIVATIONS: dict[object, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.gelu: "gelu",
    F.silu: "silu",
}
"""Functions that torch's layers can be given, and our name of each."""

Pair = tuple[Tensor | None, Tensor | None]
"""Our weight and theirs. Where they have none, ours is zero."""


@torch.no_grad()
def our_stack(layers: Iterable[nn.Module], norm: nn.Module | None, *, causal: bool) -> Stack:
    """Blocks with the weights of torch's encoder or decoder layers, and their last norm."""
    blocks = [_block(layer, f"layer {n}", causal) for n, layer in enumerate(layers, 1)]
    if not blocks:
        raise UserError("this module has no layers, so there is nothing to see.")
    return Stack(blocks, None if norm is None else _norm(norm, "the last norm")).eval()


def _block(layer: nn.Module, where: str, causal: bool) -> Block:
    if not isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        raise UserError(f"{where} is a {type(layer).__name__}, which is not one of torch's layers.")
    wiring = PreNorm if layer.norm_first else PostNorm
    cross, theirs = None, [layer.norm1, layer.norm2]
    if isinstance(layer, nn.TransformerDecoderLayer):
        theirs.append(layer.norm3)
        cross = _attention(layer.multihead_attn, where, Scope())
    # A block asks for its norms in this order: attention, cross attention, feed-forward.
    norms = iter([_norm(norm, where) for norm in theirs])
    block = wiring(
        _attention(layer.self_attn, where, Scope(causal=causal)),
        _feed_forward(layer, where),
        lambda: next(norms),
        cross=cross,
    )
    return block


def _attention(theirs: nn.Module, where: str, scope: Scope) -> Attention:
    if not isinstance(theirs, nn.MultiheadAttention):
        raise UserError(f"the attention of {where} is a {type(theirs).__name__}, not torch's own.")
    if theirs.in_proj_weight is None:
        raise UserError(
            f"the attention of {where} has keys or values of another width (kdim, vdim)."
        )
    if theirs.bias_k is not None or theirs.add_zero_attn:
        raise UserError(f"the attention of {where} adds keys of its own (bias_k, add_zero_attn).")
    biased = theirs.in_proj_bias is not None
    ours = Attention(theirs.embed_dim, theirs.num_heads, bias="qkvo" if biased else "", scope=scope)
    _copy((ours.to_qkv.weight, theirs.in_proj_weight), (ours.to_qkv.bias, theirs.in_proj_bias))
    _copy((ours.to_out.weight, theirs.out_proj.weight), (ours.to_out.bias, theirs.out_proj.bias))
    return ours


def _feed_forward(
    layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, where: str
) -> FeedForward:
    first, second = layer.linear1, layer.linear2
    name = _activation(layer.activation, where)
    biased = first.bias is not None or second.bias is not None
    ours = FeedForward(first.in_features, first.out_features, name, bias=biased)
    _copy((ours.to_hidden.weight, first.weight), (ours.to_hidden.bias, first.bias))
    _copy((ours.to_out.weight, second.weight), (ours.to_out.bias, second.bias))
    return ours


def _activation(activation: Callable[[Tensor], Tensor], where: str) -> str:
    if isinstance(activation, nn.GELU):
        return "gelu-tanh" if activation.approximate == "tanh" else "gelu"
    if isinstance(activation, nn.ReLU | nn.SiLU):
        return type(activation).__name__.lower()
    if activation not in ACTIVATIONS:
        name = getattr(activation, "__name__", type(activation).__name__)
        raise UserError(f"the activation {name} of {where} is not relu, gelu or silu.")
    return ACTIVATIONS[activation]


def _norm(theirs: nn.Module, where: str) -> nn.Module:
    if not isinstance(theirs, nn.LayerNorm | nn.RMSNorm) or len(theirs.normalized_shape) != 1:
        raise UserError(f"{where} has a {type(theirs).__name__}; known are LayerNorm and RMSNorm.")
    width = theirs.normalized_shape[0]
    if isinstance(theirs, nn.RMSNorm):
        eps = torch.finfo(torch.float32).eps if theirs.eps is None else theirs.eps
        ours: LayerNorm | RMSNorm = RMSNorm(width, eps)
    else:
        ours = LayerNorm(width, theirs.eps)
        _copy((ours.bias, theirs.bias))
    if theirs.weight is not None:
        _copy((ours.weight, theirs.weight))
    return ours


def _copy(*pairs: Pair) -> None:
    for ours, theirs in pairs:
        if ours is not None:
            ours.zero_() if theirs is None else ours.copy_(theirs)
