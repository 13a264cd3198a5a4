"""Inspect Transformer modules of `torch.nn` by copying their weights into blocks of this package.

Traces are exact: before a trace is returned, its output is compared with that of the module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.streams import Reading, TokenStream
from headway.inside.capture.trace import Trace, record_layers
from headway.models.parts.front import Front
from headway.nn.attention.attention import Attention, Memory
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import Block, PostNorm, PreNorm
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout
from headway.nn.norms import LayerNorm, RMSNorm
from headway.nn.stack import Stack

TOLERANCE = 1e-5
"""Maximum allowed difference from the output of the torch module. It is relative to the largest
output value if that is above 1."""

TASK = "vectors"
"""Value of `task` for readings whose outputs are one vector per token, without words or labels."""

TokenLabels = Sequence[str] | Sequence[Sequence[str]]

INPUTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.TransformerEncoderLayer: ("text",),
    nn.TransformerEncoder: ("text",),
    nn.TransformerDecoderLayer: ("target", "source"),
    nn.TransformerDecoder: ("target", "source"),
    nn.Transformer: ("source", "target"),
}
"""Names of the input streams of each torch module, in the order of its arguments."""


ACTIVATIONS: dict[object, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.gelu: "gelu",
    F.silu: "silu",
}
"""Name in headway of each activation function that torch's layers support."""

ParameterPair = tuple[Tensor | None, Tensor | None]
"""A headway parameter with the torch parameter that is copied to it. None: a parameter that torch
does not have; ours is set to zero."""


@torch.no_grad()
def from_torch(
    module: nn.Module, *inputs: Tensor, labels: TokenLabels | None = None, causal: bool = False
) -> Trace:
    """Trace a Transformer module of torch on one sequence. The module is not changed.

    The rows of `scores_RC` in the trace are the output vectors of the module.

    Args:
        module: Encoder, decoder, `nn.Transformer`, or one of their layers.
        *inputs: Arguments of the module, each of shape (tokens, width): x for an encoder, target
            and memory for a decoder, source and target for `nn.Transformer`.
        labels: Display names of the tokens, one list per input. None: their positions.
        causal: Whether tokens cannot attend to later ones, as with torch's square mask. The source
            of `nn.Transformer` is never masked.

    Example:
        >>> import torch
        >>> from headway.inside import from_torch
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
        >>> from_torch(layer, torch.randn(5, 16)).attention["self"][0].shape
        torch.Size([2, 5, 5])
    """
    names = _streams_of(module)
    theirs = copy.deepcopy(module).to("cpu", torch.float32).eval()
    xs = _sequences(theirs, names, inputs)
    anatomy = Anatomy.of_stacks(_stacks(theirs, causal=causal))
    ours = nn.ModuleList([part.stack for part in anatomy.stacks])
    output_TD, layers = record_layers(ours, anatomy, lambda: _run(anatomy, xs))
    _prove(theirs, [xs[name] for name in names], output_TD, causal=causal)
    meta = {"run": type(module).__name__, "task": TASK, "causal": causal}
    reading = _reading(xs, _labels(labels, names, xs))
    return Trace(reading=reading, scores_RC=output_TD, meta=meta, **layers)


def _run(anatomy: Anatomy, xs: dict[str, Tensor]) -> Tensor:
    """Run the copied stacks and return the output of the last one.

    For a decoder alone, its memory is an input instead of an encoder's output.
    """
    memory, out_TD = None, torch.empty(0)
    if anatomy.stacks[0].name != "encoder" and "source" in xs:
        memory = Memory(xs["source"], Layout.of([len(xs["source"])]))
    for part in anatomy.stacks:
        layout = Layout.of([len(xs[part.stream])])
        out_TD = part.stack(xs[part.stream], layout, memory)
        memory = Memory(out_TD, layout)
    return out_TD


def _streams_of(module: nn.Module) -> tuple[str, ...]:
    for known, names in INPUTS.items():
        if isinstance(module, known):
            return names
    raise UserError(
        f"{type(module).__name__} is not supported. Supported modules of torch.nn: "
        f"{', '.join(known.__name__ for known in INPUTS)}. For other models, write a trace file "
        "(see docs/look/page.md)."
    )


def _stacks(module: nn.Module, *, causal: bool) -> list[StackPart]:
    def copied(name: str, stream: str, theirs: nn.Module, *, causal: bool) -> StackPart:
        layers, norm = getattr(theirs, "layers", [theirs]), getattr(theirs, "norm", None)
        return StackPart(name, stream, Front(), _copy_stack(layers, norm, causal=causal))

    if isinstance(module, nn.Transformer):
        encoder, decoder = module.encoder, module.decoder
        for part, known in ((encoder, nn.TransformerEncoder), (decoder, nn.TransformerDecoder)):
            if not isinstance(part, known):
                raise UserError(
                    f"unsupported part {type(part).__name__} of torch.nn.Transformer: use torch's "
                    f"{known.__name__}."
                )
        return [
            copied("encoder", "source", encoder, causal=False),
            copied("decoder", "target", decoder, causal=causal),
        ]
    alone = len(_streams_of(module)) == 1
    names = ("self", "text") if alone else ("decoder", "target")
    return [copied(*names, module, causal=causal)]


def _sequences(
    module: nn.Module, names: Sequence[str], inputs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return each input as a float32 tensor (tokens, width)."""
    if len(inputs) != len(names):
        raise UserError(
            f"wrong number of inputs for {type(module).__name__}: expected {len(names)} "
            f"({', '.join(names)}), got {len(inputs)}."
        )
    width = next(part.embed_dim for part in _attentions(module))
    return {name: _sequence(x, name, width) for name, x in zip(names, inputs, strict=True)}


def _sequence(x: Tensor, name: str, width: int) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise UserError(f"the {name} must be a floating-point tensor of shape (tokens, width).")
    shape = tuple(x.shape)
    if x.ndim == 3 and 1 in shape[:2]:
        x = x.flatten(0, 1)
    if x.ndim != 2 or x.shape[1] != width or not len(x):
        raise UserError(
            f"the {name} has shape {shape}. Give one sequence of shape (tokens, {width}), or a "
            "batch of one."
        )
    return x.detach().to("cpu", torch.float32)


def _attentions(module: nn.Module) -> list[nn.MultiheadAttention]:
    found = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    if not found:
        raise UserError(f"this {type(module).__name__} contains no torch.nn.MultiheadAttention.")
    return found


def _prove(module: nn.Module, xs: list[Tensor], ours_TD: Tensor, *, causal: bool) -> None:
    """Raise an error if our output differs from that of the module. A subclass or a hook may change
    what the module computes."""
    batched = _attentions(module)[0].batch_first
    # Batches of one, because torch's fast paths for encoders support fewer cases than the plain
    # code.
    inputs = [x.unsqueeze(0 if batched else 1) for x in xs]
    names = {nn.Transformer: "tgt_mask", nn.TransformerEncoder: "mask"}
    default = "src_mask" if isinstance(module, nn.TransformerEncoderLayer) else "tgt_mask"
    name = next((mask for known, mask in names.items() if isinstance(module, known)), default)
    n_rows = len(xs[-1] if isinstance(module, nn.Transformer) else xs[0])
    later_TT = torch.ones(n_rows, n_rows, dtype=torch.bool).triu(1)
    theirs_TD = module(*inputs, **({name: later_TT} if causal else {})).flatten(0, 1)
    scale = max(1.0, float(theirs_TD.abs().max()))
    error = float((ours_TD - theirs_TD).abs().max()) / scale
    if not error <= TOLERANCE:  # also when it is not a number
        raise UserError(
            f"the output of this {type(module).__name__} differs from that of its layers by "
            f"{error:.1g}. The cause may be a subclass or a hook, which are not supported."
        )


def _labels(
    labels: TokenLabels | None, names: Sequence[str], xs: dict[str, Tensor]
) -> dict[str, tuple[str, ...]]:
    if labels is None:
        return {name: tuple(str(n) for n in range(1, len(x) + 1)) for name, x in xs.items()}
    if isinstance(labels, str):
        raise UserError("labels must be a list with one name per token, not a single string.")
    lists: Sequence[Any] = [labels] if all(isinstance(one, str) for one in labels) else labels
    counts = [len(one) for one in lists]
    if counts != [len(xs[name]) for name in names]:
        wanted = ", ".join(f"{len(xs[name])} for the {name}" for name in names)
        raise UserError(
            f"the lists of labels have the lengths {counts}, but the inputs need {wanted}."
        )
    return {name: tuple(map(str, one)) for name, one in zip(names, lists, strict=True)}


def _reading(xs: dict[str, Tensor], labels: dict[str, tuple[str, ...]]) -> Reading:
    order = [name for name in ("text", "source", "target") if name in xs]
    streams: dict[str, TokenStream] = {name: _stream(name, labels[name]) for name in order}
    return Reading(
        text=" ".join(labels[order[0]]),
        task=TASK,
        streams=streams,
        outputs=(),
    )


def _stream(name: str, pieces: tuple[str, ...]) -> TokenStream:
    """Return a token stream in which every token is a separate word."""
    n = len(pieces)
    return TokenStream(
        name=name,
        ids=tuple(range(n)),
        pieces=pieces,
        words=tuple(range(n)),
        special=(False,) * n,
    )


@torch.no_grad()
def _copy_stack(layers: Iterable[nn.Module], norm: nn.Module | None, *, causal: bool) -> Stack:
    """Return a headway stack with the weights of torch's encoder or decoder layers and their final
    norm."""
    blocks = [_block(layer, f"layer {n}", causal) for n, layer in enumerate(layers, 1)]
    if not blocks:
        raise UserError("this module has no layers.")
    return Stack(blocks, None if norm is None else _norm(norm, "the last norm")).eval()


def _block(layer: nn.Module, where: str, causal: bool) -> Block:
    if not isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        raise UserError(
            f"{where} is a {type(layer).__name__}, not a Transformer layer of torch.nn."
        )
    block_class = PreNorm if layer.norm_first else PostNorm
    cross, theirs = None, [layer.norm1, layer.norm2]
    if isinstance(layer, nn.TransformerDecoderLayer):
        theirs.append(layer.norm3)
        cross = _attention(layer.multihead_attn, where, AttentionSpec())
    # In torch, the norms of a block are numbered in this order: self-attention, cross-attention,
    # feed-forward.
    norms = iter([_norm(norm, where) for norm in theirs])
    block = block_class(
        _attention(layer.self_attn, where, AttentionSpec(causal=causal)),
        _feed_forward(layer, where),
        lambda: next(norms),
        cross=cross,
    )
    return block


def _attention(theirs: nn.Module, where: str, scope: AttentionSpec) -> Attention:
    if not isinstance(theirs, nn.MultiheadAttention):
        raise UserError(
            f"the attention of {where} is a {type(theirs).__name__}, not MultiheadAttention."
        )
    if theirs.in_proj_weight is None:
        raise UserError(
            f"the attention of {where} has keys or values of another width (kdim, vdim), which "
            "is not supported."
        )
    if theirs.bias_k is not None or theirs.add_zero_attn:
        raise UserError(
            f"the attention of {where} adds extra keys (bias_k, add_zero_attn), which is not "
            "supported."
        )
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
        raise UserError(f"unsupported activation {name} in {where}: use relu, gelu or silu.")
    return ACTIVATIONS[activation]


def _norm(theirs: nn.Module, where: str) -> nn.Module:
    if not isinstance(theirs, nn.LayerNorm | nn.RMSNorm) or len(theirs.normalized_shape) != 1:
        raise UserError(
            f"unsupported {type(theirs).__name__} in {where}: use LayerNorm or RMSNorm over "
            "one dimension."
        )
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


def _copy(*pairs: ParameterPair) -> None:
    for ours, theirs in pairs:
        if ours is not None:
            ours.zero_() if theirs is None else ours.copy_(theirs)
