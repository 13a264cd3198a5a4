"""Check that all parts of a trace from another program fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from headway.errors import DataError
from headway.inside.capture.streams import SIDES, Reading

if TYPE_CHECKING:
    from headway.inside.capture.trace import Trace

KINDS = (*SIDES, "self")
STACKS = ("encoder", "decoder", "self")
ONLY = (["text"], ["image"], ["audio"])
"""Streams of a model with a single stream."""


def check(trace: Trace) -> None:
    """Check that every tensor has the axes that its name promises; raise an error that names the
    tensor."""
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
        for field in ("ids", "words", "special"):
            if len(getattr(stream, field)) != n:
                found = len(getattr(stream, field))
                raise DataError(f"stream {name} has {n} pieces, but {found} {field}.")
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
    """Number of rows and columns."""
    if kind not in known:
        raise DataError(f"unknown name {group}.{kind}: the kinds are {', '.join(known)}.")
    rows, columns = reading.sides(kind)
    if kind == "self" and list(reading.streams) not in ONLY:
        rows = columns = "text"
    for stream in (rows, columns):
        if stream not in reading.streams:
            raise DataError(f"no stream {stream!r}: the streams are {', '.join(reading.streams)}.")
    return len(reading.streams[rows]), len(reading.streams[columns])
