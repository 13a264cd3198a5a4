"""Export graphs with `torch.export`, as `.pt2` files or as the source of an ONNX file."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from headway.interop.graphs.graphs import ABOUT, PAST_AND_LENGTH, Graph
from headway.metrics.multilabel import THRESHOLD
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.storage import replace_text

GRAPHS_JSON = "graphs.json"

GraphShape = list[int | str]

QUICKER = (
    ("torch.fx.config", "do_not_emit_stack_traces", True),
    ("torch._dynamo.config", "fake_tensor_cache_enabled", False),
)
"""Internal settings of torch that speed up `torch.export`. Later versions of torch may not have
them."""


@torch.no_grad()
def export_program(graph: Graph) -> ExportedProgram:
    """Export a graph with dynamic sizes, including zero and one, along the axes that it names."""
    with quickly():
        program = torch.export.export(
            graph.module.eval(),
            tuple(graph.example.values()),
            dynamic_shapes=_dynamic_shapes(graph),
            strict=False,
        )
    # Torch assumes that dynamic sizes and their sums are at least 2, and adds checks of this. These
    # graphs do not depend on the assumption, as the proof shows.
    for size, known in program.range_constraints.items():
        program.range_constraints[size] = ValueRanges(0, known.upper)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names files of this machine
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


@contextmanager
def quickly() -> Iterator[None]:
    """Speed up `torch.export` within the context, if this version of torch has the settings.

    Two features are disabled. Stack traces of operators are not needed, because the exported files
    contain none. The cache of operator shapes is slower than computing them, because the sizes are
    symbolic. A small translator is exported 1.8 times as fast on one core (`python -m
    benchmarks.shortcuts`).
    """
    asked = [(import_module(config), name, value) for config, name, value in QUICKER]
    known = [setting for setting in asked if hasattr(setting[0], setting[1])]
    before = [getattr(config, name) for config, name, _ in known]
    try:
        for config, name, value in known:
            setattr(config, name, value)
        yield
    finally:
        for (config, name, _), value in zip(known, before, strict=True):
            setattr(config, name, value)


def _dynamic_shapes(graph: Graph) -> dict[str, Any]:
    """Return the `dynamic_shapes` argument of `torch.export`: sizes by parameter of the module, as
    a tuple for the variadic parameter `*past`."""
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


def describe(
    folder: Path, graphs: Sequence[tuple[Graph, ExportedProgram]], settings: RunSettings
) -> None:
    """Write `graphs.json`, which describes the inputs and outputs of the graphs."""
    facts: list[dict[str, Any]] = []
    several = spec_of(settings).is_multi_label
    threshold = {"threshold": settings.classify.threshold or THRESHOLD} if several else {}
    for graph, program in graphs:
        shapes = output_shapes(graph, program)
        facts.append(
            {
                "graph": graph.name,
                "task": settings.task,
                "inputs": [_input(graph, name) for name in graph.example],
                "outputs": [_value(name, shapes[name], graph.about) for name in graph.outputs],
                "max_positions": graph.max_positions,
                "labels": list(settings.labels),
                **threshold,
            }
        )
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    replace_text(folder / GRAPHS_JSON, text + "\n")


def _input(graph: Graph, name: str) -> dict[str, Any]:
    x, axes = graph.example[name], graph.axes[name]
    shape: GraphShape = [axes.get(axis, size) for axis, size in enumerate(x.shape)]
    return {"type": str(x.dtype).removeprefix("torch."), **_value(name, shape, graph.about)}


def _value(name: str, shape: GraphShape, more: Mapping[str, str]) -> dict[str, Any]:
    about = more.get(name) or ABOUT.get(name)
    if about is None:
        kind, number, part = name.split(".")
        about = f"layer {number}: {part}s of {OF_LAYERS[kind]}"
    return {"name": name, "shape": shape, "about": about}


OF_LAYERS = {
    "past": "the tokens read so far",
    "present": "all tokens so far, for the next step",
    "cross": "the source",
}


def output_shapes(graph: Graph, program: ExportedProgram) -> dict[str, GraphShape]:
    """Return the shape of each output by name. Dynamic sizes are named after the axes of the
    inputs."""
    nodes = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    inputs = [nodes[name] for name in program.graph_signature.user_inputs]
    names: dict[str, str] = {}
    for value, axes in zip(inputs, graph.axes.values(), strict=True):
        names |= {str(value.shape[axis]): name for axis, name in axes.items()}
    found = [nodes[name] for name in program.graph_signature.user_outputs]
    return {
        name: [named(size, names) for size in value.shape]
        for name, value in zip(graph.outputs, found, strict=True)
    }


def named(size: Any, names: Mapping[str, str]) -> int | str:
    """Return a size as a number, or as an expression in which axis names replace torch's numbered
    symbols."""
    if isinstance(size, int):
        return size
    text = str(size)
    return names.get(text) or re.sub(r"s\d+", lambda found: names.get(found[0], found[0]), text)
