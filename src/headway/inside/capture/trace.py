"""Trace of a forward pass: the tensors that a model computed for one input, in one schema for all
model families.

A trace is stored as tensors (`trace.safetensors`) and JSON values (`trace.json`), so that other
programs can also write traces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headway import __version__
from headway.decode.logits_processors import TokenConstraints
from headway.errors import DataError, FolderError, UserError
from headway.inside.capture.anatomy import Anatomy, RecordedTaps
from headway.inside.capture.beam import BeamTree, beam_tree, has_search
from headway.inside.capture.forward import ForwardResult, run_reading
from headway.inside.capture.interventions import NO_INTERVENTION, Intervention, disable_heads
from headway.inside.capture.media import MediaInput
from headway.inside.capture.reading import (
    DEFAULT_OPTIONS,
    GenerationOptions,
    Reading,
    read_with_beam,
)
from headway.inside.capture.streams import SIDES
from headway.nn.tap import record
from headway.settings.model import family_of
from headway.storage import replace_file, replace_text
from headway.tasks.loaded_run import LoadedRun

T = TypeVar("T")

TENSORS, FACTS = "trace.safetensors", "trace.json"
VERSION = 1
"""Version of the file format, for programs that read traces."""

GROUPS = ("attention", "values", "states", "hidden", "gradients")
"""Names of the fields of `Trace` that map names of attention kinds or stacks to lists of tensors,
one per layer."""

MOST_WEIGHTS = 1 << 28
"""Maximum number of recorded attention weights, which take 1 GiB in float32. A page needs several
times as much memory."""


@dataclass(frozen=True)
class Trace:
    """Tensors that a model computed for one reading."""

    reading: Reading
    """Input tokens and outputs."""

    attention: dict[str, list[Tensor]]
    """Attention weights (heads, queries, keys) by kind of attention, one tensor per layer. The
    weights of each query sum to 1."""

    values: dict[str, list[Tensor]] = field(default_factory=dict)
    """Value vectors (keys, key-value heads, head width) by kind of attention, one tensor per
    layer."""

    states: dict[str, list[Tensor]] = field(default_factory=dict)
    """Residual stream (tokens, width) by stack: the embedding, followed by the output of each
    layer."""

    hidden: dict[str, list[Tensor]] = field(default_factory=dict)
    """Feed-forward activations (tokens, feed-forward width) by stack, one tensor per layer."""

    scores_RC: Tensor | None = None
    """Logits or other scores before the softmax, one row per output of the reading."""

    gradients: dict[str, list[Tensor]] = field(default_factory=dict)
    """Gradients of the summed log-probability of all outputs with respect to the attention weights
    (heads, queries, keys), by kind of attention. Empty unless requested."""

    beam: BeamTree | None = None
    """Tree of the beam search that found the output; None unless requested."""

    meta: dict[str, Any] = field(default_factory=dict)
    """Facts about the run, such as its name and number of parameters, and the intervention."""

    @property
    def change(self) -> Intervention:
        """Intervention during the forward pass: hidden tokens and disabled heads."""
        off = (head.split(".") for head in self.meta.get("off", ()))
        return Intervention(
            frozenset((name, place) for name, place in self.meta.get("hidden", ())),
            frozenset((kind, int(layer), int(head)) for kind, layer, head in off),
        )

    def save(self, folder: Path) -> None:
        """Write the trace to `trace.safetensors` and `trace.json`.

        Args:
            folder: Folder to write to; it is created if needed.
        """
        tensors = {
            f"{group}.{name}.{layer}": tensor.detach().contiguous()
            for group in GROUPS
            for name, layers in getattr(self, group).items()
            for layer, tensor in enumerate(layers)
        }
        if self.scores_RC is not None:
            tensors["scores"] = self.scores_RC.detach().contiguous()
        if self.reading.media is not None:
            tensors["media"] = torch.from_numpy(self.reading.media.item.copy())
        facts = {
            "version": VERSION,
            "reading": self.reading.to_dict(),
            "beam": None if self.beam is None else self.beam.to_dict(),
            "meta": self.meta,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / TENSORS, lambda part: save_file(tensors, part))
            (folder / TENSORS).chmod(0o644)  # safetensors makes files readable by the owner only
            replace_text(folder / FACTS, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise FolderError(f"cannot write the trace to {folder}: {error.strerror}.") from error

    @classmethod
    def load(cls, folder: Path) -> Trace:
        """Read a trace that was written by `save` or by another program.

        Args:
            folder: Folder that contains the files.
        """
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            tensors = load_file(folder / TENSORS)
            groups = {group: _layers(tensors, group) for group in GROUPS}
            beam = facts["beam"]
            reading = Reading.from_dict(facts["reading"])
            if "media" in tensors:
                media = MediaInput.from_dict(facts["reading"]["media"], tensors["media"].numpy())
                reading = replace(reading, media=media)
            found = cls(
                reading=reading,
                scores_RC=tensors.get("scores"),
                beam=None if beam is None else BeamTree.from_dict(beam),
                meta=facts["meta"],
                **groups,
            )
            check(found)
            return found
        except DataError as error:
            raise FolderError(f"the trace in {folder} is invalid: {error}") from error
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FolderError(
                f"cannot read a trace from {folder} ({type(error).__name__}: {error}). A trace "
                f"consists of {TENSORS} and {FACTS}; see docs/look/page.md."
            ) from error


def trace(
    run: LoadedRun,
    text: str | Path | MediaInput | Reading,
    ask: GenerationOptions = DEFAULT_OPTIONS,
    change: Intervention = NO_INTERVENTION,
    *,
    gradients: bool = False,
    beam: bool = False,
) -> Trace:
    """Record the tensors that the run computes for one input.

    Args:
        run: The run, opened by `load`.
        text: Text to trace, file for a run that reads media, or existing `Reading`.
        ask: Generation options, such as a forced output.
        change: Tokens to hide and heads to disable.
        gradients: Also record the gradients of the outputs with respect to attention weights.
        beam: Also record the tree of the beam search that found the output.

    Example:
        >>> from headway.inside import load, trace
        >>> seen = trace(load("tatoeba-de-en"), "Guten Morgen.")
        >>> seen.attention["cross"][0].shape  # heads, target tokens, source tokens
        torch.Size([4, 5, 5])
    """
    tree = None
    if isinstance(text, Reading):
        reading = text
    else:
        reading, tree = read_with_beam(run, text, ask, change, beam=beam)
    found = _record(run, reading, change, gradients=gradients)
    asked = ask.output is None and (ask.max_new_tokens > 0 or "target" in reading.streams)
    if beam and tree is None and has_search(run) and asked and not change.hidden:
        with disable_heads(run.model, change):
            tree = _search(run, reading, ask)
    return replace(found, beam=tree)


def _search(run: LoadedRun, reading: Reading, ask: GenerationOptions) -> BeamTree:
    begin = tuple(run.vocab.target.encode(ask.prefix)) if ask.prefix else ()
    if "source" in reading.streams:
        source = list(reading.first.ids) if reading.media is None else reading.media
        return beam_tree(run, source, ask.decode, wish=TokenConstraints(prefix=begin))
    ids = list(reading.last.ids[: reading.n_given + len(begin)])
    return beam_tree(run, ids, ask.decode, new=ask.max_new_tokens)


def _record(run: LoadedRun, reading: Reading, change: Intervention, *, gradients: bool) -> Trace:
    anatomy = Anatomy.of(run.model)
    _check_size(anatomy, reading)

    def forward() -> ForwardResult:
        found = run_reading(run, reading, change)
        if gradients:
            found.log_probs_R.sum().backward()
        return found

    try:
        found, layers = record_layers(run.model, anatomy, forward, gradients=gradients)
    finally:
        run.model.zero_grad(set_to_none=True)
    meta = _meta(run, change) | _error(found)
    return Trace(reading=reading, scores_RC=found.scores_RC.detach(), meta=meta, **layers)


def record_layers(
    model: nn.Module, anatomy: Anatomy, forward: Callable[[], T], *, gradients: bool = False
) -> tuple[T, dict[str, Any]]:
    """Run `forward`. Return its result, and the recorded tensors of each group in `GROUPS`."""
    into: dict[str, Tensor] = {}
    hooks = [part.stack.register_forward_pre_hook(_keep(into, part.name))
             for part in anatomy.stacks]  # fmt: skip
    taps = (".weights", ".v", ".stream", ".hidden")
    try:
        with torch.set_grad_enabled(gradients), record(model, *taps, gradients=gradients) as got:
            found = forward()
    finally:
        for hook in hooks:
            hook.remove()
    calls = RecordedTaps(model, got)
    weights = calls.weights(anatomy)
    groups = {
        "attention": {kind: [w.detach() for w in layers] for kind, layers in weights.items()},
        "values": {k.name: [calls.next(x.v).detach() for x in k.layers] for k in anatomy.kinds},
        "states": {
            part.name: [into[part.name], *(calls.next(x.stream).detach() for x in part.blocks)]
            for part in anatomy.stacks
        },
        "hidden": {
            part.name: [calls.next(x.neurons).detach() for x in part.blocks]
            for part in anatomy.stacks
        },
    }
    if gradients:
        groups["gradients"] = {
            kind: [torch.zeros_like(w) if w.grad is None else w.grad for w in layers]
            for kind, layers in weights.items()
        }
    return found, groups


def _check_size(anatomy: Anatomy, reading: Reading) -> None:
    """Raise an error before the computation if more than `MOST_WEIGHTS` attention weights would be
    recorded."""
    sizes = {name: len(stream) for name, stream in reading.streams.items()}
    n = sum(layer.n_heads * sizes[kind.rows] * sizes[kind.columns]
            for kind in anatomy.kinds for layer in kind.layers)  # fmt: skip
    if n > MOST_WEIGHTS:
        shown = " and ".join(f"{size:,}" for size in sizes.values())
        raise UserError(
            f"the input has too many tokens ({shown}): all heads together have {n:,} attention "
            f"weights, but at most {MOST_WEIGHTS:,} can be recorded. Give a shorter input."
        )


def _keep(into: dict[str, Tensor], name: str) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, given: Any) -> None:
        into[name] = given[0].detach().clone()

    return hook


def _meta(run: LoadedRun, change: Intervention) -> dict[str, Any]:
    model = run.shape
    return {
        "headway": __version__,
        "run": run.folder.name,
        "task": run.settings.task,
        "family": family_of(model),
        "d_model": model.d_model,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "labels": list(run.settings.labels),
        "hidden": sorted([stream, place] for stream, place in change.hidden),
        "off": sorted(f"{kind}.{layer}.{head}" for kind, layer, head in change.disabled_heads),
    }


def _error(said: ForwardResult) -> dict[str, float]:
    """Return a dict with the mean squared error of the reconstructed positions under the key
    `error`; empty if the model does not reconstruct."""
    hides = said.targets_RE is not None
    return {"error": -float(said.log_probs_R.detach().mean())} if hides else {}


def _layers(tensors: Mapping[str, Tensor], group: str) -> dict[str, list[Tensor]]:
    found: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, layer = name.removeprefix(f"{group}.").rpartition(".")
        if name.startswith(f"{group}."):
            found.setdefault(kind, {})[int(layer)] = tensor
    return {kind: [layers[n] for n in range(len(layers))] for kind, layers in found.items()}


KINDS = (*SIDES, "self")
STACKS = ("encoder", "decoder", "self")
ONLY = (["text"], ["image"], ["audio"])
"""Possible stream names of a model with a single stream."""


def check(trace: Trace) -> None:
    """Raise an error that names the tensor if a tensor of the trace does not have the documented
    axes."""
    _check_streams(trace.reading)
    for group in ("attention", "gradients"):
        for kind, layers in getattr(trace, group).items():
            rows, columns = _lengths(trace.reading, kind, KINDS, group)
            _check_shapes(f"{group}.{kind}", layers, (None, rows, columns))
    for kind, layers in trace.values.items():
        _, columns = _lengths(trace.reading, kind, KINDS, "values")
        _check_shapes(f"values.{kind}", layers, (columns, None, None))
    for group in ("states", "hidden"):
        for stack, layers in getattr(trace, group).items():
            rows, _ = _lengths(trace.reading, stack, STACKS, group)
            _check_shapes(f"{group}.{stack}", layers, (rows, None))
    if not trace.attention:
        raise DataError("it has no attention weights. Name their tensors attention.KIND.LAYER.")
    _check_outputs(trace)


def _check_streams(reading: Reading) -> None:
    if not reading.streams:
        raise DataError("its `reading` has no `streams`.")
    for name, stream in reading.streams.items():
        n = len(stream.pieces)
        for part in ("ids", "words", "special"):
            if len(getattr(stream, part)) != n:
                found = len(getattr(stream, part))
                raise DataError(f"stream {name} has {n} pieces, but {found} {part}.")
        if not all(isinstance(piece, str) for piece in stream.pieces):
            raise DataError(f"the pieces of stream {name} must be strings.")


def _check_outputs(trace: Trace) -> None:
    outputs, scores_RC = trace.reading.outputs, trace.scores_RC
    n = len(trace.reading.last)
    for output in outputs:
        if output.row is not None and not 0 <= output.row < n:
            raise DataError(
                f"output {output.name!r} is in row {output.row}, but there are {n} rows."
            )
    if not outputs or scores_RC is None:
        return
    if scores_RC.ndim != 2 or len(scores_RC) != len(outputs):
        raise DataError(
            f"the tensor scores has shape {tuple(scores_RC.shape)}, but there are "
            f"{len(outputs)} outputs."
        )
    largest = max(output.id for output in outputs)
    if largest >= scores_RC.shape[1]:
        raise DataError(
            f"the tensor scores has {scores_RC.shape[1]} columns, but an output has id {largest}."
        )


def _check_shapes(name: str, layers: Sequence[Tensor], expected: tuple[int | None, ...]) -> None:
    wanted = " × ".join("any" if size is None else str(size) for size in expected)
    for layer, tensor in enumerate(layers):
        shape = tuple(tensor.shape)
        fits = len(shape) == len(expected) and all(
            size is None or size == found for size, found in zip(expected, shape, strict=True)
        )
        if not fits:
            raise DataError(f"{name}.{layer} has shape {shape} instead of {wanted}.")
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{name}.{layer} contains numbers that are not finite.")


def _lengths(reading: Reading, kind: str, known: Sequence[str], group: str) -> tuple[int, int]:
    """Return the number of queries and of keys of a kind of attention. If `kind` is the name of a
    stack, both are the number of tokens in that stack."""
    if kind not in known:
        raise DataError(f"unknown name {group}.{kind}: the kinds are {', '.join(known)}.")
    rows, columns = reading.sides(kind)
    if kind == "self" and list(reading.streams) not in ONLY:
        rows = columns = "text"
    for stream in (rows, columns):
        if stream not in reading.streams:
            raise DataError(f"no stream {stream!r}: the streams are {', '.join(reading.streams)}.")
    return len(reading.streams[rows]), len(reading.streams[columns])
