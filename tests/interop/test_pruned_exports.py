"""Exports of runs with pruned heads; formats without support for them are errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from headway.errors import UserError
from headway.inside.measure.pruning import removable_groups, save_pruned, select_heads
from headway.interop import torch_export as to_torch
from headway.interop.ctranslate2 import export as to_ctranslate2
from headway.interop.graphs.graphs import Graph, graphs_of
from headway.interop.graphs.padded_batches import GraphArray, GraphCall, prove_padded
from headway.interop.hf import export as to_hf
from headway.interop.onnx import export as to_onnx
from headway.interop.proof_inputs import proof_sentences
from headway.tasks.loaded_run import LoadedRun, open_plain

from .padded_runs import tiny_run

TASKS = ("translate", "complete", "tag")


def small_run(tmp_path: Path, task: str) -> LoadedRun:
    run = open_plain(tiny_run(tmp_path / "whole", task, n_layers=2))
    save_pruned(run, select_heads(removable_groups(run.shape), 3, run.shape), tmp_path / "small")
    return open_plain(str(tmp_path / "small"))


@pytest.mark.parametrize("target", [to_hf, to_ctranslate2])
@pytest.mark.parametrize("task", TASKS)
def test_formats_with_one_number_of_heads_are_an_error_of_one_line(
    target, task, tmp_path: Path
) -> None:
    run = small_run(tmp_path, task)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UserError, match=r"\bheads\b.*to=.onnx.") as caught:
        target.write(run, out, int8=False)
    assert "\n" not in str(caught.value)
    assert not any(out.iterdir())


@pytest.mark.parametrize("task", TASKS)
def test_graphs_have_the_heads_that_are_left(task: str, tmp_path: Path) -> None:
    run = small_run(tmp_path, task)
    graphs = graphs_of(run.model, run.settings)

    def call(graph: Graph) -> GraphCall:
        @torch.no_grad()
        def called(inputs: Mapping[str, GraphArray]) -> dict[str, GraphArray]:
            found = graph.module(*(torch.from_numpy(inputs[name]) for name in graph.example))
            return {name: x.numpy() for name, x in zip(graph.outputs, found, strict=True)}

        return called

    calls = {graph.name: call(graph) for graph in graphs}
    proof = prove_padded("torch", run, proof_sentences(), calls, by="torch")
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("target", [to_torch, to_onnx])
@pytest.mark.parametrize("task", TASKS)
def test_exported_graphs_agree(target, task: str, tmp_path: Path) -> None:
    run = small_run(tmp_path, task)
    out = tmp_path / "out"
    out.mkdir()
    target.write(run, out, int8=False)
    proof = target.prove(run, out, proof_sentences(), int8=False)
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4
