"""Page section for the walkthrough of one token through one layer, with the weights from which the
page recomputes each step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.streams import display_piece
from headway.inside.measure.walk import WalkStep, walk
from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs


def section(looked: LookInputs) -> PageSection | None:
    run, trace = looked.run, looked.trace
    if run is None or not trace.states or not Anatomy.of(run.model).by_attention:
        return None
    found = walk(run, trace, looked.walk)
    kinds = Anatomy.of(run.model).kinds
    streams = {kind.name: [kind.rows, kind.columns] for kind in kinds}
    outputs = {output.row: display_piece(output.name) for output in trace.reading.outputs}
    rows = streams[found.at.kind][0]
    return {
        "at": asdict(found.at),
        "stack": found.stack,
        "token": display_piece(trace.reading.streams[rows].pieces[found.at.row]),
        "says": outputs.get(found.at.row) if rows == trace.reading.last.name else None,
        "heads": found.heads,
        "focus": found.focus,
        "streams": streams,
        "n_heads": {kind.name: [layer.n_heads for layer in kind.layers] for kind in kinds},
        "vectors": {name: PackedArray(values, "f32") for name, values in found.vectors.items()},
        "labels": found.labels,
        "steps": [_step(step) for step in found.steps],
    }


def _step(step: WalkStep) -> PageSection:
    return {
        "kind": step.kind,
        "title": step.title,
        "words": step.words,
        "inputs": list(step.inputs),
        "out": step.out,
        **{name: _packed(value) for name, value in step.numbers.items()},
    }


def _packed(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not value.is_floating_point():
        return PackedArray(value, "i32")
    return PackedArray(value, "f16" if value.dtype == torch.float16 else "f32")
