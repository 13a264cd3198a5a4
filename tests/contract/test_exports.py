"""Every row into every format: it is exported and proved, or the error names formats that take it,
and none that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.errors import UserError
from headway.interop.exporting import FULL_PRECISION, TARGETS, UNIVERSAL_TARGETS
from headway.interop.graphs.graphs import Graph, graphs_of
from headway.interop.graphs.padded_batches import prove_padded
from tests.facts import missing

from .tiny import Tiny

QUICK = [name for name in TARGETS if name not in UNIVERSAL_TARGETS]
"""The others record graphs, which takes seconds, however small they are."""


def eager(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """A graph as torch runs it, before anything is recorded."""

    @torch.no_grad()
    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = graph.module(*(torch.from_numpy(inputs[name]) for name in graph.example))
        return {name: x.numpy() for name, x in zip(graph.outputs, found, strict=True)}

    return call


def test_a_recorded_graph_gives_the_outputs_of_the_run(tiny: Tiny) -> None:
    run = tiny.run.opened.inspection_copy()
    calls = {graph.name: eager(graph) for graph in graphs_of(run.model, run.settings)}
    proof = prove_padded("torch", run, ["a dog", "the film and the music"], calls, by="torch")
    assert proof.passed, proof.text()
    assert proof.tokens > proof.sentences > 1


def error_of(tiny: Tiny, to: str, out: Path, *, int8: bool = False) -> str:
    """The message of the error; empty where the run is exported and proved."""
    try:
        found = tiny.run.export(to, out, int8=int8)
    except UserError as error:
        assert not out.exists()
        return str(error)
    assert found.proof.passed, found.proof.text()
    assert (out / "proof.json").is_file()
    return ""


def test_it_is_exported_with_a_proof_or_the_error_names_a_format(
    tiny: Tiny, tmp_path: Path
) -> None:
    for int8 in (False, True):
        for to in QUICK:
            error = error_of(tiny, to, tmp_path / f"{to}-{int8}", int8=int8)
            others = [name for name in TARGETS if name != to and not missing(error, name)]
            assert bool(error) == bool(others), f"no other format: {error}"
            for other in others:  # those that take all runs do take this one, as below
                assert other in UNIVERSAL_TARGETS or not error_of(
                    tiny, other, tmp_path / "other", int8=int8
                )
                assert not (int8 and other in FULL_PRECISION), error


@pytest.mark.slow
@pytest.mark.parametrize("to", UNIVERSAL_TARGETS)
def test_a_recorded_graph_is_written_with_a_proof(tiny: Tiny, to: str, tmp_path: Path) -> None:
    assert not error_of(tiny, to, tmp_path / "out")
