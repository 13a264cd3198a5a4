"""A graph as `torch.export` records it: what a `.pt2` holds, and what ONNX is made from."""

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
from headway.storage import replace_text
from headway.tasks.specs import spec_of

NAMES = "graphs.json"

Shape = list[int | str]

QUICKER = (
    ("torch.fx.config", "do_not_emit_stack_traces", True),
    ("torch._dynamo.config", "fake_tensor_cache_enabled", False),
)
"""Settings of torch that are not promised to stay."""


@torch.no_grad()
def recorded(graph: Graph) -> ExportedProgram:
    """For inputs of any size along the axes of the graph, none and one included."""
    with quickly():
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
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


@contextmanager
def quickly() -> Iterator[None]:
    """Torch works on graphs in little more than half the time, where it has these settings. It
    keeps no stack trace for every operator, of which nothing is left in our files, and no cache of
    the shapes that operators make: with sizes that are no numbers, looking one up takes longer than
    making it. `python -m benchmarks.shortcuts`: a small translator is recorded 1.8 times as fast on
    one core."""
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


def describe(
    folder: Path, graphs: Sequence[tuple[Graph, ExportedProgram]], settings: RunSettings
) -> None:
    """Write `graphs.json`: what goes in and what comes out, for people who call them themselves."""
    facts: list[dict[str, Any]] = []
    several = spec_of(settings).answers == "labels"
    threshold = {"threshold": settings.classify.threshold or THRESHOLD} if several else {}
    for graph, program in graphs:
        shapes = output_shapes(graph, program)
        facts.append(
            {
                "graph": graph.name,
                "task": settings.task,
                "inputs": [_input(graph, name) for name in graph.example],
                "outputs": [_value(name, shapes[name], graph.about) for name in graph.outputs],
                "max_positions": graph.reach,
                "labels": list(settings.labels),
                **threshold,
            }
        )
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    replace_text(folder / NAMES, text + "\n")


def _input(graph: Graph, name: str) -> dict[str, Any]:
    x, axes = graph.example[name], graph.axes[name]
    shape: Shape = [axes.get(axis, size) for axis, size in enumerate(x.shape)]
    return {"type": str(x.dtype).removeprefix("torch."), **_value(name, shape, graph.about)}


def _value(name: str, shape: Shape, more: Mapping[str, str]) -> dict[str, Any]:
    about = more.get(name) or ABOUT.get(name)
    if about is None:
        kind, number, part = name.split(".")
        about = f"layer {number}: the {part}s of {OF_LAYERS[kind]}"
    return {"name": name, "shape": shape, "about": about}


OF_LAYERS = {
    "past": "the tokens read so far",
    "present": "all tokens so far, for the next step",
    "cross": "the source",
}


def output_shapes(graph: Graph, program: ExportedProgram) -> dict[str, Shape]:
    """Sizes as numbers, or in the names of the axes of inputs."""
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
    """A size by the names of axes, of which it may be made; torch numbers them."""
    if isinstance(size, int):
        return size
    text = str(size)
    return names.get(text) or re.sub(r"s\d+", lambda found: names.get(found[0], found[0]), text)
