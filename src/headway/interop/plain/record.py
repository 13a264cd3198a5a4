"""A graph as `torch.export` records it: what a `.pt2` holds, and what ONNX is made from."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from headway.interop.plain.graphs import PAST_AND_LENGTH, Graph


@torch.no_grad()
def recorded(graph: Graph) -> ExportedProgram:
    """For inputs of any size along the axes of the graph, none and one included."""
    program = torch.export.export(
        graph.module.eval(),
        tuple(graph.example.values()),
        dynamic_shapes=_sizes(graph),
        strict=False,
    )
    # Torch takes sizes for 2 or more while it records, and asks as much of a sum of two of them
    # later on. Nothing in our graphs depends on it, as the proof shows.
    for size, known in program.range_constraints.items():
        program.range_constraints[size] = ValueRanges(0, known.upper)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names files of this machine
    return program


def _sizes(graph: Graph) -> dict[str, Any]:
    """As `torch.export` wants them: by parameter of the module, several in one for `*past`."""
    dims: dict[str, Any] = {PAST_AND_LENGTH: Dim.AUTO}
    by_input = [
        {axis: dims.setdefault(name, Dim(name)) for axis, name in axes.items()}
        for axes in graph.axes.values()
    ]
    found: dict[str, Any] = {}
    for place, (name, parameter) in enumerate(
        inspect.signature(graph.module.forward).parameters.items()
    ):
        if parameter.kind is parameter.VAR_POSITIONAL:
            found[name] = tuple(by_input[place:])
        elif place < len(by_input):
            found[name] = by_input[place]
    return found
