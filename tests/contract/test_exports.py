"""Every row into every format: it is exported and proved, or what is said names formats that take
it, and none that does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.errors import UserError
from headway.interop.exporting import FULL_PRECISION, TAKE_ALL, TARGETS
from headway.interop.graphs.graphs import Graph, graphs_of
from headway.interop.graphs.padded_batches import prove_padded

from .tiny import Tiny

QUICK = [name for name in TARGETS if name not in TAKE_ALL]
"""The others record graphs, which takes seconds, however small they are."""


def eager(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """A graph as torch runs it, before anything is recorded."""

    @torch.no_grad()
    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = graph.module(*(torch.from_numpy(inputs[name]) for name in graph.example))
        return {name: x.numpy() for name, x in zip(graph.outputs, found, strict=True)}

    return call


def test_what_is_recorded_says_what_the_run_says(tiny: Tiny) -> None:
    run = tiny.run.opened.twin()
    calls = {graph.name: eager(graph) for graph in graphs_of(run.model, run.settings)}
    proof = prove_padded("torch", run, ["a dog", "the film and the music"], calls, by="torch")
    assert proof.passed, proof.text()
    assert proof.tokens > proof.sentences > 1


def refusal(tiny: Tiny, to: str, out: Path, *, int8: bool = False) -> str:
    """What is said; nothing where it is exported and proved."""
    try:
        found = tiny.run.export(to, out, int8=int8)
    except UserError as error:
        assert not out.exists()
        return str(error)
    assert found.proof.passed, found.proof.text()
    assert (out / "proof.json").is_file()
    return ""


def formats_in(said: str) -> list[str]:
    """The formats that a refusal sends people to."""
    after = r'(?:[Uu]se|as it is:|[Ee]xport) (?:to=|to ) ?"?'
    listed = re.findall(after + r'(\w+)"?((?:(?:,| or| and) (?:to=)?"?\w+"?)*)', said)
    words = [word for first, more in listed for word in [first, *re.findall(r"\w+", more)]]
    return [word for word in words if word in TARGETS]


def test_it_is_exported_with_a_proof_or_sent_where_it_is(tiny: Tiny, tmp_path: Path) -> None:
    for int8 in (False, True):
        for to in QUICK:
            said = refusal(tiny, to, tmp_path / f"{to}-{int8}", int8=int8)
            sent = formats_in(said)
            assert bool(said) == bool(sent), f"nowhere to go: {said}"
            for other in sent:  # those that take all runs do take this one, as below
                assert other in TAKE_ALL or not refusal(tiny, other, tmp_path / "other", int8=int8)
                assert not (int8 and other in FULL_PRECISION), said


@pytest.mark.slow
@pytest.mark.parametrize("to", TAKE_ALL)
def test_a_recorded_graph_is_written_with_a_proof(tiny: Tiny, to: str, tmp_path: Path) -> None:
    assert not refusal(tiny, to, tmp_path / "out")
