"""Runs of every task as ONNX: the file says what it is, onnxruntime says what torch says, and the
proof notices when it does not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from headway.errors import ConfigError, FolderError, UserError
from headway.interop.onnx import export as to_onnx
from headway.interop.onnx.engine import OnnxEngine
from headway.interop.onnx.export import quantise
from headway.interop.onnx.session import Session
from headway.interop.proof_inputs import proof_sentences
from headway.settings.folder import load_run
from headway.tasks.loaded_run import open_plain

from ..facts import missing
from ..once import once
from .padded_runs import (
    LINES,
    MEDIA,
    RUNS,
    answers,
    assert_same_facts,
    decoding,
    lines_for,
    media_lines,
    media_run,
    tiny_run,
)

Exported = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The folders of a run and of its export, by task."""

    def of(task: str) -> tuple[Path, Path]:
        def make(folder: Path) -> None:
            run = (media_run if task in MEDIA else tiny_run)(folder / "run", task)
            (folder / "out").mkdir()
            to_onnx.write(open_plain(str(run)), folder / "out", int8=False)

        folder = once(tmp_path_factory, f"onnx {task}", make)
        return folder / "run", folder / "out"

    return of


def engine_answers(folder: Path, lines: list[str]) -> list[dict[str, Any]]:
    return answers(folder, lines, OnnxEngine(folder, load_run(folder)))


QUICK = ("translate", "see", "transcribe")
ALL = [*RUNS, *(name for name in MEDIA if name not in RUNS)]
tasks = pytest.mark.parametrize(
    "task", [task if task in QUICK else pytest.param(task, marks=pytest.mark.slow) for task in ALL]
)
"""Recording a graph takes seconds, however small it is."""


@tasks
def test_a_graph_agrees_in_sizes_that_it_was_not_recorded_with(
    task: str, exported: Exported
) -> None:
    run, out = exported(task)
    proof = to_onnx.prove(open_plain(str(run)), out, proof_sentences(), int8=False)
    assert proof.passed, proof.text()
    assert proof.sentences == {"images": 8, "video": 8, "recordings": 6}.get(proof.items, 16)
    assert proof.max_difference < 1e-4
    assert proof.equal_outputs == 1.0


@tasks
def test_the_engine_answers_as_torch_does(task: str, exported: Exported, tmp_path: Path) -> None:
    if task == "see vectors" or task.startswith("fill "):
        return  # they answer nothing
    run, out = exported(task)
    lines = media_lines(tmp_path / "files", task) if task in MEDIA else lines_for(task)
    assert_same_facts(answers(run, lines), engine_answers(out, lines))


def test_a_graph_of_images_takes_pixels_and_one_of_recordings_a_waveform(
    exported: Exported,
) -> None:
    _, out = exported("see")
    assert {path.name for path in out.iterdir()} == {"model.onnx", "graphs.json", "config.toml"}
    session = Session(out / "model.onnx")
    assert session.inputs == {"pixel_values": ["batch", 3, 17, 24]}
    assert session.outputs == {"last_hidden_state": ["batch", 10, 32], "logits": ["batch", 3]}
    assert session.session.get_inputs()[0].type == "tensor(uint8)"
    [facts] = json.loads((out / "graphs.json").read_text())
    assert facts["labels"] == ["O", "B-x", "I-x"]
    assert not missing(facts["inputs"][0]["about"], "0", "255")
    logits = facts["outputs"][1]
    assert "softmax" in logits.pop("about")
    assert logits == {"name": "logits", "shape": ["batch", 3]}

    _, out = exported("transcribe")
    reader = Session(out / "encoder.onnx")
    assert reader.inputs == {"waveform": ["batch", "samples"], "lengths": ["batch"]}
    assert reader.facts["sample_rate"] == "8000"
    writer = Session(out / "decoder.onnx")
    given = {"encoder_attention_mask", *(name for name in writer.inputs if "cross." in name)}
    assert given <= set(reader.outputs)  # what the encoder gives goes in as it is
    # Nothing behind the end of a recording changes what is heard.
    wave = np.random.default_rng(0).normal(0, 0.1, (1, 3000)).astype(np.float32)
    longer = np.concatenate([wave, np.ones((1, 900), np.float32)], 1)
    ours, other = (
        reader.call({"waveform": x, "lengths": np.array([3000])})["ctc_logits"][0, :18]
        for x in (wave, longer)
    )
    np.testing.assert_allclose(other, ours, atol=1e-5)


def test_an_exported_file_describes_itself(exported: Exported) -> None:
    _, out = exported("classify")
    assert {path.name for path in out.iterdir()} == {
        "model.onnx", "graphs.json", "config.toml", "tokenizer.json", "tokenizer.headway.json",
    }  # fmt: skip
    model = onnx.load(out / "model.onnx")
    onnx.checker.check_model(model)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert facts["task"] == "classify"
    assert facts["labels"] == '["O", "B-x", "I-x"]'
    assert facts["max_positions"] == "32"
    assert b".py" not in (out / "model.onnx").read_bytes()  # of the machine it was made on
    session = Session(out / "model.onnx")
    shape = ["batch", "length"]
    assert session.inputs == {
        "input_ids": shape, "attention_mask": shape, "token_type_ids": shape,
    }  # fmt: skip
    assert session.outputs == {"last_hidden_state": [*shape, 32], "logits": ["batch", 3]}

    writer = Session(exported("complete")[1] / "model.onnx")
    assert writer.inputs["attention_mask"] == ["batch", "past_and_length"]
    assert writer.inputs["past.0.key"] == ["batch", 2, "past", 8]
    assert writer.outputs["present.0.value"] == ["batch", 2, "past_and_length", 8]


def test_a_proof_fails_when_the_outputs_of_the_graph_differ(
    exported: Exported, tmp_path: Path
) -> None:
    run, out = exported("complete")
    model = onnx.load(out / "model.onnx")
    weight = next(
        t for t in model.graph.initializer if t.name.endswith("feed_forward.to_out.weight")
    )
    values = onnx.numpy_helper.to_array(weight).copy()
    values[0] += 0.1
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(model, tmp_path / "model.onnx")
    proof = to_onnx.prove(open_plain(str(run)), tmp_path, proof_sentences(), int8=False)
    assert not proof.passed
    assert proof.max_difference > proof.tolerance


@pytest.mark.parametrize("task", ["translate", "complete", "transcribe"])
def test_int8_is_smaller_and_near(task: str, exported: Exported, tmp_path: Path) -> None:
    run, out = exported(task)
    for path in out.glob("*.onnx"):
        quantise(path, tmp_path / path.name, large=False)
        kinds = [node.op_type for node in onnx.load(tmp_path / path.name).graph.node]
        assert "MatMulInteger" in kinds
        assert "Gemm" not in kinds
        assert Session(tmp_path / path.name).facts["task"] == task
    proof = to_onnx.prove(open_plain(str(run)), tmp_path, proof_sentences(), int8=True)
    assert proof.passed, proof.text()
    assert 1e-3 < proof.max_difference < proof.tolerance  # it is not the one in fp32


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True])
def test_weights_beyond_the_limit_of_the_format_have_a_file_of_their_own(
    int8: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.interop.onnx.export.ONE_FILE", 0)
    run = open_plain(str(tiny_run(tmp_path / "run", "classify", d_ff=512)))
    out, moved = tmp_path / "out", tmp_path / "moved"
    out.mkdir()
    to_onnx.write(run, out, int8=int8)
    assert (out / "model.onnx.data").stat().st_size > 40_000
    out.rename(moved)
    assert to_onnx.prove(run, moved, proof_sentences(), int8=int8).passed


@pytest.mark.slow
@pytest.mark.parametrize("task", ["watch", "transcribe ctc"])
def test_what_makes_rows_of_pixels_and_samples_stays_as_it_is(task: str, tmp_path: Path) -> None:
    to_onnx.write(open_plain(str(media_run(tmp_path / "run", task))), tmp_path, int8=True)
    graph = onnx.load(tmp_path / "model.onnx").graph
    whole = [node for node in graph.node if node.op_type == "MatMul"]
    stored = {tensor.name for tensor in graph.initializer}
    kept = [node for node in whole if node.input[1] in stored]
    assert len(kept) == (1 if task == "watch" else 2)  # patches; two convolutions
    assert any(node.op_type == "MatMulInteger" for node in graph.node)


@pytest.mark.slow
def test_an_int8_folder_has_the_files_of_an_fp32_one(exported: Exported, tmp_path: Path) -> None:
    run, out = exported("classify")
    to_onnx.write(open_plain(str(run)), tmp_path, int8=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in out.iterdir()}
    small, whole = ((folder / "model.onnx").stat().st_size for folder in (tmp_path, out))
    assert small < whole
    assert len(engine_answers(tmp_path, LINES)) == len(LINES)


def test_errors_name_the_setting_file_or_package(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = exported("complete")
    with pytest.raises(ConfigError, match=r"decode\.precision=bf16\b.*engine=.onnx..*--int8\b"):
        OnnxEngine(out, decoding(load_run(out), precision="bf16"))
    with pytest.raises(FolderError, match=rf"\bmodel\.onnx\b.*{run}\b.*\bconfig\.toml\b"):
        OnnxEngine(run, load_run(run))
    (tmp_path / "model.onnx").write_bytes(b"none")
    with pytest.raises(FolderError, match=rf"{tmp_path}/model\.onnx\b.*ONNXRuntimeError"):
        OnnxEngine(tmp_path, load_run(run))
    for package in ("onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=rf"\b{package}\b.*headway\[onnx\]"):
            to_onnx.write(open_plain(str(run)), out, int8=False)


def test_onnxruntime_gets_as_many_threads_as_torch(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    whole = onnxruntime.InferenceSession

    def spy(path: Path, options: Any, **more: Any) -> Any:
        seen.append(options.intra_op_num_threads)
        return whole(path, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    session = Session(exported("classify")[1] / "model.onnx")
    assert seen == [3]
    ids = np.ones((1, 1), np.int64)
    assert session.call({"input_ids": ids, "attention_mask": ids, "token_type_ids": ids * 0})
