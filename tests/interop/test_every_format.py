"""Graphs of every front and head say what the run says; `tests/contract` exports a run of every
task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.errors import UserError
from headway.interop.exporting import export_run
from headway.interop.graphs.graphs import Graph, graphs_of
from headway.interop.graphs.padded_batches import GraphArray, prove_padded
from headway.interop.proof import Proof
from headway.settings.folder import load_run
from headway.settings.run import media_settings
from headway.tasks.engines import engine_of
from headway.tasks.loaded_run import LoadedRun, open_plain

from .padded_runs import MEDIA, media_run


def eager(graph: Graph) -> Callable[[Mapping[str, GraphArray]], dict[str, GraphArray]]:
    """A graph as torch runs it, before anything is recorded."""

    @torch.no_grad()
    def call(inputs: Mapping[str, GraphArray]) -> dict[str, GraphArray]:
        found = graph.module(*(torch.from_numpy(inputs[name]) for name in graph.example))
        return {name: x.numpy() for name, x in zip(graph.outputs, found, strict=True)}

    return call


def proved(run: LoadedRun, other: nn.Module | None = None) -> Proof:
    """That the graphs of a run, or of another model, say what the run says."""
    graphs = graphs_of(run.model if other is None else other, run.settings)
    calls = {graph.name: eager(graph) for graph in graphs}
    return prove_padded("torch", run, ["a dog", "the old cat sat ."], calls, by="torch")


@pytest.mark.parametrize("name", MEDIA)
def test_every_front_and_head_gives_the_same_scores(name: str, tmp_path: Path) -> None:
    run = open_plain(str(media_run(tmp_path / "run", name)))
    proof = proved(run)
    assert proof.passed, proof.text()


def test_the_proof_of_another_model_fails(tmp_path: Path) -> None:
    for name in ("watch", "transcribe", "fill audio"):
        run = open_plain(str(media_run(tmp_path / name, name)))
        copy = deepcopy(run.model)
        with torch.no_grad():
            next(x for n, x in copy.named_parameters() if "front" in n and x.ndim > 1).mul_(1.5)
        assert not proved(run, copy).passed


def test_an_engine_for_text_suggests_the_engine_that_fits(tmp_path: Path) -> None:
    run = media_run(tmp_path / "run", "see")
    with pytest.raises(UserError, match=r"engine=.ctranslate2.(?!.*--to ctranslate2).*--to onnx\b"):
        engine_of("ctranslate2", run, load_run(run))
    with pytest.raises(UserError, match=rf"{run}\b.*engine=.onnx..*{run} --to onnx\b"):
        engine_of("onnx", run, load_run(run))


def test_sentences_are_for_models_that_read_some(tmp_path: Path) -> None:
    run = media_run(tmp_path / "run", "see")
    with pytest.raises(UserError, match=r"sentences=.*\bclassify\b.*\btext\b"):
        export_run(str(run), "onnx", tmp_path / "out", sentences=["a dog"])
    assert media_settings(open_plain(str(run)).settings) is not None
