"""Runs as `.pt2` files: loaded again they say the same, in any size."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch

from headway.interop import torch_export as to_torch
from headway.interop.graphs import record
from headway.interop.proof_inputs import proof_sentences
from headway.models.seq2seq import Seq2Seq
from headway.tasks.loaded_run import open_plain

from .padded_runs import MEDIA, media_run, tiny_run

SLOW = ("translate", "tag", "caption", "transcribe decoder", "fill audio", "see")


@pytest.mark.parametrize(
    "task", ["complete", "identify", *(pytest.param(t, marks=pytest.mark.slow) for t in SLOW)]
)
def test_a_loaded_program_agrees_and_a_changed_one_does_not(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.export, "load", cache(torch.export.load))  # it takes a second
    make = media_run if task in MEDIA else tiny_run
    run = open_plain(str(make(tmp_path / "run", task)))
    out = tmp_path / "out"
    out.mkdir()
    to_torch.write(run, out, int8=False)
    writes = isinstance(run.model, Seq2Seq)
    names = ["encoder.pt2", "decoder.pt2"] if writes else ["model.pt2"]
    words = {"tokenizer.json", "tokenizer.headway.json"} if run.words is not None else set()
    assert {path.name for path in out.iterdir()} == {*names, "graphs.json", *words}

    for name in names:
        assert b".py" not in (out / name).read_bytes()  # of the machine it was made on

    proof = to_torch.prove(run, out, proof_sentences(), int8=False)
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4

    facts = {graph["graph"]: graph for graph in json.loads((out / "graphs.json").read_text())}
    writer = facts[names[-1].removesuffix(".pt2")]
    program = torch.export.load(out / names[-1])
    sizes = {"batch": 1, "length": 1, "past": 0, "past_and_length": 1, "source": 1, "samples": 1}
    sizes["hidden_rows"] = 1
    inputs = [
        torch.ones([sizes.get(n, n) for n in one["shape"]], dtype=getattr(torch, one["type"]))
        for one in writer["inputs"]
    ]
    found = program.module()(*inputs)  # the smallest there is
    assert len(found) == len(writer["outputs"])

    with torch.no_grad():
        for parameter in run.model.parameters():  # of one alone a norm may take out the factor
            parameter.mul_(1.1)
    assert not to_torch.prove(run, out, proof_sentences(), int8=False).passed


def test_settings_of_torch_that_make_recording_quick_are_taken_back_and_may_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = ("torch.fx.config", "no_such_setting", True)
    monkeypatch.setattr(record, "QUICKER", (*record.QUICKER, gone))

    def values() -> list[object]:
        return [getattr(import_module(at), name, None) for at, name, _ in record.QUICKER]

    before = values()
    with record.quickly():
        assert values() == [True, False, None]
    assert values() == before
