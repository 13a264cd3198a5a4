"""Comparison of two looks (inspections of an input): which values can be subtracted, and why others
cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.errors import UserError
from headway.inside.capture.streams import display_piece
from headway.inside.capture.trace import Trace
from headway.tasks.loaded_run import LoadedRun

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

TOP = 3
"""Number of most probable candidates stored for each output."""

Fits = dict[str, str | None]
"""Reason why values cannot be subtracted, by kind of attention and for `outputs`; None if they
can."""


def check_pair(first: LookInputs, second: LookInputs) -> dict[str, Any]:
    """Return the data with which a page compares two looks.

    Looks without a common kind of attention are an error.
    """
    one, other = first.trace, second.trace
    if not set(one.attention) & set(other.attention):
        raise UserError(
            f"cannot compare these runs: one has {_listed(one)} attention and the other "
            f"{_listed(other)} attention. Compare runs of the same family."
        )
    sides = [output_data(looked.run, looked.trace) for looked in (first, second)]
    return {"pair": True, "fits": fits(one, other), "sides": sides}


def compare_checkpoints(stages: Sequence[tuple[LoadedRun, Trace]]) -> dict[str, Any]:
    """Return the data with which a page compares any two checkpoints of one training run. All
    checkpoints read the same tokens."""
    found = [output_data(run, trace) for run, trace in stages]
    first = stages[0][1]
    return {"pair": False, "fits": fits(first, first), "sides": found}


def fits(one: Trace, other: Trace) -> Fits:
    """Return the reason why values of two looks cannot be subtracted, by kind of attention and for
    `outputs`; None if they can. Attention weights need equal numbers of heads and of tokens."""
    found: Fits = {}
    for kind in dict.fromkeys([*one.attention, *other.attention]):
        if kind not in one.attention or kind not in other.attention:
            found[kind] = f"only one of the two has {kind} attention"
            continue
        shapes, others = _shapes(one, kind), _shapes(other, kind)
        if [heads for heads, _ in shapes] != [heads for heads, _ in others]:
            found[kind] = f"their heads differ: {_heads(shapes)} and {_heads(others)}"
        elif shapes != others:
            (_, a), (_, b) = shapes[0], others[0]
            found[kind] = f"their sizes in tokens differ: {_size(a)} and {_size(b)}"
        else:
            found[kind] = None
    ids = [[output.id for output in each.reading.outputs] for each in (one, other)]
    same = ids[0] == ids[1] and _columns(one) == _columns(other)
    found["outputs"] = None if same else "their outputs differ"
    return found


def output_data(run: LoadedRun | None, trace: Trace) -> dict[str, Any]:
    """Return the outputs of a look, with their log-probabilities and most probable alternatives."""
    scores_RC, outputs = trace.scores_RC, trace.reading.outputs
    if scores_RC is None or not outputs or any(output.id < 0 for output in outputs):
        return {"outputs": []}
    logs_RC = scores_RC.float().log_softmax(-1)
    top = logs_RC.topk(min(TOP, logs_RC.shape[1]), dim=-1)
    return {
        "outputs": [
            {
                "name": display_piece(output.name),
                "id": output.id,
                "log_prob": float(logs_C[output.id]),
                "top": _named(run, trace, values_K, ids_K),
            }
            for output, logs_C, values_K, ids_K in zip(
                outputs, logs_RC, top.values, top.indices, strict=True
            )
        ]
    }


def _named(run: LoadedRun | None, trace: Trace, logs_K: Tensor, ids_K: Tensor) -> list[list[Any]]:
    ids = [int(id) for id in ids_K]
    names = [str(id) for id in ids]
    if trace.reading.labelled:
        labels = trace.meta.get("labels", [])
        names = [labels[id] if id < len(labels) else str(id) for id in ids]
    elif run is not None:
        names = [display_piece(name) for name in run.vocab.target.tokens(ids)]
    shares = torch.exp(logs_K).tolist()
    return [[name, share] for name, share in zip(names, shares, strict=True)]


def _shapes(trace: Trace, kind: str) -> list[tuple[int, tuple[int, int]]]:
    return [(w.shape[0], (w.shape[1], w.shape[2])) for w in trace.attention[kind]]


def _columns(trace: Trace) -> int:
    return 0 if trace.scores_RC is None else trace.scores_RC.shape[1]


def _heads(shapes: list[tuple[int, tuple[int, int]]]) -> str:
    return f"{len(shapes)} layers × {shapes[0][0]} heads"


def _size(shape: tuple[int, int]) -> str:
    return f"{shape[0]} × {shape[1]}"


def _listed(trace: Trace) -> str:
    return " and ".join(trace.attention)
