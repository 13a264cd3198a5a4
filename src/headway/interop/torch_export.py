"""Export to `.pt2` files of `torch.export` (`headway export --to torch`), which need torch but not
headway.

Call `torch.export.load("model.pt2").module()` with the inputs in the order of `graphs.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from headway.interop.graphs.graphs import Graph, graphs_of
from headway.interop.graphs.padded_batches import GraphArray, GraphCall, prove_padded
from headway.interop.graphs.record import describe, export_program
from headway.interop.hf.tokenizer import write_library_tokenizer
from headway.interop.proof import Proof
from headway.tasks.loaded_run import LoadedRun


def write(run: LoadedRun, out: Path, *, int8: bool) -> None:
    assert not int8, "refused before"
    made = [(graph, export_program(graph)) for graph in graphs_of(run.model, run.settings)]
    for graph, program in made:
        torch.export.save(program, out / f"{graph.name}.pt2")
    describe(out, made, run.settings)
    if run.words is not None:
        write_library_tokenizer(run, out)


def prove(run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool) -> Proof:
    calls = {graph.name: _load(graph, out) for graph in graphs_of(run.model, run.settings)}
    return prove_padded("torch", run, sentences, calls, by=f"torch {torch.__version__}")


def _load(graph: Graph, folder: Path) -> GraphCall:
    module = torch.export.load(folder / f"{graph.name}.pt2").module()

    @torch.no_grad()
    def call(inputs: Mapping[str, GraphArray]) -> dict[str, GraphArray]:
        found = module(*(torch.from_numpy(inputs[name]) for name in graph.example))
        return {name: x.numpy() for name, x in zip(graph.outputs, found, strict=True)}

    return call
