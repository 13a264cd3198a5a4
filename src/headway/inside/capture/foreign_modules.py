"""Modules of `torch.nn` looked at as if they were ours: their weights are copied into our blocks.

What is recorded is what the module computes: before a trace is handed out, its output is compared
with that of the module itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import UserError
from headway.inside.capture.copy_layers import our_stack
from headway.inside.capture.reading import Reading, Stream
from headway.inside.capture.trace import Trace
from headway.nn.attention.attention import Memory
from headway.nn.layout import Layout
from headway.nn.stack import Stack
from headway.nn.tap import record

TOLERANCE = 1e-5
"""Largest difference from the module's own output; of large outputs, as a share of the largest."""

TASK = "vectors"
"""The `task` of a reading that ends in a vector a token, and in no words or labels."""

Labels = Sequence[str] | Sequence[Sequence[str]]

INPUTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.TransformerEncoderLayer: ("text",),
    nn.TransformerEncoder: ("text",),
    nn.TransformerDecoderLayer: ("target", "source"),
    nn.TransformerDecoder: ("target", "source"),
    nn.Transformer: ("source", "target"),
}
"""The stream of each input, in the order in which torch takes them."""


@torch.no_grad()
def from_torch(
    module: nn.Module, *inputs: Tensor, labels: Labels | None = None, causal: bool = False
) -> Trace:
    """What a module of torch does with one sequence, called as torch calls it.

    Encoders and their layers take x; decoders and their layers take the target and the memory;
    `nn.Transformer` takes the source and the target. Each input is tokens by width, or a batch of
    one. `labels` name the tokens, a list for each input. `causal`: no token sees a later one (the
    source of a `Transformer` always sees all of itself), as with torch's square mask.
    The rows of `scores_RC` are the vectors that the module gives; it says no words, so the reading
    has no outputs. The module is not changed.
    """
    names = _streams_of(module)
    theirs = copy.deepcopy(module).to("cpu", torch.float32).eval()
    xs = _sequences(theirs, names, inputs)
    seen = _run(_stacks(theirs, causal=causal), xs)
    _prove(theirs, [xs[name] for name in names], seen.output_TD, causal=causal)
    meta = {"run": type(module).__name__, "task": TASK, "causal": causal}
    return seen.trace(_reading(xs, _labels(labels, names, xs)), meta)


@dataclass
class _Seen:
    """What one pass through the stacks leaves behind."""

    attention: dict[str, list[Tensor]] = field(default_factory=dict)
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    hidden: dict[str, list[Tensor]] = field(default_factory=dict)
    output_TD: Tensor = field(default_factory=lambda: torch.empty(0))

    def keep(self, name: str, x_TD: Tensor, taps: dict[str, list[Any]], n_layers: int) -> None:
        """`taps`: what `record` found in the stack of this name."""
        blocks = [f"blocks.{number}" for number in range(n_layers)]
        self.states[name] = [x_TD, *(taps[f"{block}.stream"][0] for block in blocks)]
        self.hidden[name] = [taps[f"{block}.feed_forward.hidden"][0] for block in blocks]
        for kind, part in ((name, "attention"), ("cross", "cross")):
            if f"{blocks[0]}.{part}.weights" in taps:
                weights = [taps[f"{block}.{part}.weights"] for block in blocks]
                self.attention[kind] = [layer[0][0] for layer in weights]
                self.values[kind] = [taps[f"{block}.{part}.v"][0] for block in blocks]

    def trace(self, reading: Reading, meta: dict[str, Any]) -> Trace:
        return Trace(
            reading=reading,
            attention=self.attention,
            values=self.values,
            states=self.states,
            hidden=self.hidden,
            scores_RC=self.output_TD,
            meta=meta,
        )


def _run(stacks: dict[str, tuple[str, Stack]], xs: dict[str, Tensor]) -> _Seen:
    """`stacks`: by name, with the stream that each reads. A decoder alone gets its memory."""
    seen, memory = _Seen(), None
    if "encoder" not in stacks and "source" in xs:
        memory = Memory(xs["source"], Layout.of([len(xs["source"])]))
    for name, (stream, stack) in stacks.items():
        layout = Layout.of([len(xs[stream])])
        with record(stack, "weights", ".v", "stream", "hidden") as taps:
            seen.output_TD = stack(xs[stream], layout, memory)
        seen.keep(name, xs[stream], taps, len(stack.blocks))
        memory = Memory(seen.output_TD, layout)
    return seen


def _streams_of(module: nn.Module) -> tuple[str, ...]:
    for known, names in INPUTS.items():
        if isinstance(module, known):
            return names
    raise UserError(
        f"{type(module).__name__} cannot be looked at: known are torch's "
        f"{', '.join(known.__name__ for known in INPUTS)}. For another model write a trace file "
        "(docs/look/page.md says how)."
    )


def _stacks(module: nn.Module, *, causal: bool) -> dict[str, tuple[str, Stack]]:
    if isinstance(module, nn.Transformer):
        encoder, decoder = module.encoder, module.decoder
        for part, known in ((encoder, nn.TransformerEncoder), (decoder, nn.TransformerDecoder)):
            if not isinstance(part, known):
                raise UserError(f"{type(part).__name__} in it is no {known.__name__} of torch.")
        return {
            "encoder": ("source", our_stack(encoder.layers, encoder.norm, causal=False)),
            "decoder": ("target", our_stack(decoder.layers, decoder.norm, causal=causal)),
        }
    layers = getattr(module, "layers", [module])
    stack = our_stack(layers, getattr(module, "norm", None), causal=causal)
    if len(_streams_of(module)) == 1:
        return {"self": ("text", stack)}
    return {"decoder": ("target", stack)}


def _sequences(
    module: nn.Module, names: Sequence[str], inputs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Each input as tokens by width, in fp32."""
    if len(inputs) != len(names):
        raise UserError(
            f"{type(module).__name__} takes {len(names)} input(s) ({', '.join(names)}), and "
            f"{len(inputs)} are given."
        )
    width = next(part.embed_dim for part in _attentions(module))
    return {name: _sequence(x, name, width) for name, x in zip(names, inputs, strict=True)}


def _sequence(x: Tensor, name: str, width: int) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise UserError(f"the {name} must be a tensor of numbers with a point, tokens by width.")
    shape = tuple(x.shape)
    if x.ndim == 3 and 1 in shape[:2]:
        x = x.flatten(0, 1)
    if x.ndim != 2 or x.shape[1] != width or not len(x):
        raise UserError(
            f"the {name} has the shape {shape}. Give one sequence: (tokens, {width}), or a batch "
            "of one."
        )
    return x.detach().to("cpu", torch.float32)


def _attentions(module: nn.Module) -> list[nn.MultiheadAttention]:
    found = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    if not found:
        raise UserError(f"this {type(module).__name__} has no attention of torch's in it.")
    return found


def _prove(module: nn.Module, xs: list[Tensor], ours_TD: Tensor, *, causal: bool) -> None:
    """A subclass or a hook may do more than its class says; then there is nothing true to show."""
    batched = _attentions(module)[0].batch_first
    # Batches of one and, where torch has one, its slow way: its quick ways differ in support.
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
            f"this {type(module).__name__} does not compute what its layers say: our copy is off "
            f"by {error:.1g}. Is it a subclass, or does it have hooks?"
        )


def _labels(
    labels: Labels | None, names: Sequence[str], xs: dict[str, Tensor]
) -> dict[str, tuple[str, ...]]:
    if labels is None:
        return {name: tuple(str(n) for n in range(1, len(x) + 1)) for name, x in xs.items()}
    if isinstance(labels, str):
        raise UserError("labels must be a list with a name for each token, not one text.")
    lists: Sequence[Any] = [labels] if all(isinstance(one, str) for one in labels) else labels
    counts = [len(one) for one in lists]
    if counts != [len(xs[name]) for name in names]:
        wanted = ", ".join(f"{len(xs[name])} for the {name}" for name in names)
        raise UserError(f"labels for {counts} tokens are given, and there should be {wanted}.")
    return {name: tuple(map(str, one)) for name, one in zip(names, lists, strict=True)}


def _reading(xs: dict[str, Tensor], labels: dict[str, tuple[str, ...]]) -> Reading:
    order = [name for name in ("text", "source", "target") if name in xs]
    streams: dict[str, Stream] = {name: _stream(name, labels[name]) for name in order}
    return Reading(
        text=" ".join(labels[order[0]]),
        task=TASK,
        streams=streams,
        outputs=(),
    )


def _stream(name: str, pieces: tuple[str, ...]) -> Stream:
    """Every token is a word of its own."""
    n = len(pieces)
    return Stream(
        name=name,
        ids=tuple(range(n)),
        pieces=pieces,
        words=tuple(range(n)),
        special=(False,) * n,
    )
