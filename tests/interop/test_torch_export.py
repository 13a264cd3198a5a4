"""Runs as `.pt2` files: loaded again they say the same, in any size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headway.interop import to_torch
from headway.interop.proof import proof_sentences
from headway.interop.run import load_run_for_export

from .padded_runs import tiny_run


@pytest.mark.parametrize(
    "task", ["complete", *(pytest.param(t, marks=pytest.mark.slow) for t in ("translate", "tag"))]
)
def test_a_loaded_program_agrees_and_a_changed_one_does_not(task: str, tmp_path: Path) -> None:
    run = load_run_for_export(str(tiny_run(tmp_path / "run", task)))
    out = tmp_path / "out"
    out.mkdir()
    to_torch.write(run, out, int8=False)
    names = ["encoder.pt2", "decoder.pt2"] if task == "translate" else ["model.pt2"]
    assert {path.name for path in out.iterdir()} == {*names, "graphs.json"}

    for name in names:
        assert b".py" not in (out / name).read_bytes()  # of the machine it was made on

    proof = to_torch.prove(run, out, proof_sentences(), int8=False)
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4

    facts = {graph["graph"]: graph for graph in json.loads((out / "graphs.json").read_text())}
    writer = facts[names[-1].removesuffix(".pt2")]
    program = torch.export.load(out / names[-1])
    sizes = {"batch": 1, "length": 1, "past": 0, "past_and_length": 1, "source": 1}
    inputs = [
        torch.ones([sizes.get(n, n) for n in one["shape"]], dtype=getattr(torch, one["type"]))
        for one in writer["inputs"]
    ]
    found = program.module()(*inputs)  # the smallest there is
    assert len(found) == len(writer["outputs"])

    with torch.no_grad():
        next(run.model.parameters()).mul_(1.1)
    assert not to_torch.prove(run, out, proof_sentences(), int8=False).passed
