"""Our searches and tasks on graphs: here the graphs are run by torch, which is quick to set up;
`test_onnx.py` has the same with onnxruntime."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import StepsConfig
from headway.decode.steps import DecoderSteps, DecodingSteps, Seq2SeqSteps
from headway.errors import UserError
from headway.interop.graphs.graphs import Graph, graphs_of
from headway.interop.graphs.padded_batches import GraphArray
from headway.interop.onnx.engine import OnnxEngine
from headway.models.folder import load_model
from headway.nn.layout import Layout
from headway.settings.folder import load_run
from headway.tasks.loaded_run import open_plain
from headway.tasks.task import InferenceRequest, find_task

from ..facts import missing
from .padded_runs import (
    LINES,
    MEDIA,
    RUNS,
    answers,
    assert_same_facts,
    lines_for,
    media_lines,
    media_run,
    opened_by,
    tiny_run,
)

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class TorchSession:
    """As `Session`, for the graphs of the run in whose folder the file would be."""

    def __init__(self, path: Path) -> None:
        run = open_plain(str(path.parent))
        graphs = {graph.name: graph for graph in graphs_of(run.model, run.settings)}
        self.graph: Graph = graphs[path.stem]
        self.n_positions = self.graph.max_positions
        self.inputs, self.facts = self.graph.example, {"task": run.settings.task}

    @torch.no_grad()
    def call(self, inputs: Mapping[str, GraphArray]) -> dict[str, GraphArray]:
        found = self.graph.module(*(torch.from_numpy(inputs[name]) for name in self.graph.example))
        return {name: x.numpy() for name, x in zip(self.graph.outputs, found, strict=True)}

    @cached_property
    def outputs(self) -> dict[str, Any]:
        found = self.call({name: x.numpy() for name, x in self.graph.example.items()})
        return {name: x.shape for name, x in found.items()}

    @property
    def heads(self) -> dict[str, tuple[int, int]]:
        example = self.graph.example.items()
        return {n: (x.shape[1], x.shape[3]) for n, x in example if n.startswith("past.")}


@pytest.fixture(autouse=True)
def no_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.interop.onnx.engine.Session", TorchSession)
    monkeypatch.setattr("headway.interop.onnx.engine.file_in", lambda folder, name: folder / name)


def both(run: Path, lines: list[str], **more: Any) -> list[dict[str, Any]]:
    """The answers of torch, after seeing that the engine has the same."""
    ours = answers(run, lines, **more)
    assert_same_facts(ours, answers(run, lines, OnnxEngine(run, load_run(run)), **more))
    return ours


@pytest.mark.parametrize("task", RUNS)
def test_every_task_is_answered_as_by_torch(task: str, tmp_path: Path) -> None:
    assert both(tiny_run(tmp_path / "run", task), lines_for(task))


@pytest.mark.parametrize("name", [name for name in MEDIA if MEDIA[name][0] != "fill"])
def test_images_and_recordings_are_answered_as_by_torch(name: str, tmp_path: Path) -> None:
    run, lines = media_run(tmp_path / "run", name), media_lines(tmp_path / "files", name)
    if name == "see vectors":  # nothing is answered by a model without classes
        return
    ours = both(run, lines, options={"json": True})
    assert all("file" in facts for facts in ours)
    if MEDIA[name][0] == "transcribe":
        assert any(facts["words"] for facts in ours)  # with times, by CTC or by attention
        both(run, lines, beam=1)
    if name == "caption":
        looks = both(run, lines, options={"alignments": True})
        assert looks[0]["outputs"][0]["looks"]
        both(run, lines, sample=True, n_best=2)
    if name.startswith("identify"):
        both(run, lines, options={"against": lines[1]})


def test_a_recording_that_is_too_long_for_a_graph_is_named_and_the_others_are_answered(
    tmp_path: Path,
) -> None:
    run, lines = (
        media_run(tmp_path / "run", "identify"),
        media_lines(tmp_path / "files", "identify"),
    )
    ours = answers(run, lines)
    settings = load_run(run)
    engine = OnnxEngine(run, settings)
    for graph in engine.graphs.values():
        graph.n_positions = 30  # type: ignore[misc]
    use = InferenceRequest(opened_by(run, engine), settings)
    found = list(find_task(use.settings).predictor(use).answers(iter(lines), False))
    short = [not one.error for one in found]
    assert any(short)
    assert not all(short)
    assert [one.to_dict()["label"] for one in found if not one.error] == [
        facts["label"] for facts, fits in zip(ours, short, strict=True) if fits
    ]
    wrong = [one.error for one in found if one.error]
    too_long = [line for line, fits in zip(lines, short, strict=True) if not fits]
    for line, error in zip(too_long, wrong, strict=True):
        assert not missing(error, line)
        assert re.search(r"\b\d+(\.\d+)?\b", error.replace(line, "")), error  # the limit


def test_scores_of_a_test_set_are_those_of_torch(tmp_path: Path) -> None:
    for name in ("see", "hear", "identify margin", "caption", "transcribe"):
        run, folder = media_run(tmp_path / name, name), tmp_path / f"{name} files"
        files = [Path(line).name for line in media_lines(folder, name)]
        key = "text" if name in ("caption", "transcribe") else "label"
        values = ["O", "B-x", "O", "I-x"] if key == "label" else ["ba de", "go", "fi ko", "ba"]
        listed = [json.dumps({"path": f, key: v}) for f, v in zip(files, values, strict=True)]
        (folder / "list.jsonl").write_text("\n".join(listed) + "\n")
        settings = load_run(run)
        given = replace(settings.data, media=(str(folder / "list.jsonl"),))
        found = []
        for engine in (None, OnnxEngine(run, settings)):
            use = InferenceRequest(opened_by(run, engine), settings)
            facts = find_task(settings).evaluation(use, given).facts
            found.append({k: v for k, v in facts.items() if k not in ("speed", "tokens_per_s")})
        for key in {"caption": ("loss", "ppl"), "transcribe": ("loss",)}.get(name, ()):
            assert found[0].pop(key) > 0  # an engine only decodes
            assert key not in found[1]
        assert_same_facts(*found)


def test_models_that_reconstruct_are_not_scored_by_an_engine(tmp_path: Path) -> None:
    run = media_run(tmp_path / "run", "fill images")
    with pytest.raises(UserError, match=r"engine=.onnx..*engine=.torch."):
        OnnxEngine(run, load_run(run)).model()


WAYS: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 3, "n_best": 3},
    {"beam": 4, "groups": 2, "diversity": 0.5},
    {"sample": True, "n_best": 2, "temperature": 1.3},
    {"beam": 2, "no_repeat_ngram": 1, "batch_tokens": 20},
]


@pytest.mark.parametrize("task", ["translate", "complete"])
@pytest.mark.parametrize("way", WAYS, ids=[" ".join(way) for way in WAYS])
def test_every_search_runs_on_a_graph(task: str, way: dict[str, Any], tmp_path: Path) -> None:
    both(tiny_run(tmp_path / "run", task), LINES, **way)


def test_alignments_coverage_and_wishes_too(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", "translate", n_layers=3)
    lines = ["ba de", "fi ko ga mo"]
    wishes = tmp_path / "wishes.jsonl"
    wishes.write_text('{"required": ["ku"]}\n{"banned": ["ba"]}\n')
    assert both(run, lines, options={"alignments": True})[0]["outputs"][0]["alignment"]
    both(run, lines, coverage=0.3)
    wished = both(run, lines, options={"constraints": str(wishes)})
    assert "ku" in wished[0]["outputs"][0]["text"]


def test_a_long_prompt_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(tmp_path / "run", "complete")
    monkeypatch.setattr("headway.interop.onnx.engine.SCORES_AT_ONCE", 300)
    both(run, ["ba de fi ko ga mo pu ba", "go", "de ba"])


@pytest.mark.parametrize("task", ["translate", "complete"])
@torch.no_grad()
def test_hypotheses_change_places_and_sources_leave(task: str, tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run", task)
    engine, model = OnnxEngine(folder, load_run(folder)), load_model(folder).eval()
    texts, width = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]], 3
    specials, settings = SpecialTokens(0, 1, 2), load_run(folder).decode
    begin = StepsConfig(width, 9)
    if task == "translate":
        mine: DecodingSteps = Seq2SeqSteps(model, texts, width, 9, attention=True)
        other = engine.searcher(settings, specials).steps(texts, begin)
    else:
        mine = DecoderSteps(model, texts, width, 9)
        other = engine.searcher(settings, specials).steps(texts, begin)
    draw = torch.Generator().manual_seed(2)
    left = [4, 4, 3, 3, 2]
    for step, n_sources in enumerate(left):
        tokens_BW = torch.randint(3, 30, (n_sources, width), generator=draw)
        if step == 0:
            tokens_BW[:] = 0
        torch.testing.assert_close(other.step(tokens_BW), mine.step(tokens_BW), **CLOSE)
        if task == "translate":
            n_read = mine.attention_BWS.shape[2]
            torch.testing.assert_close(
                other.attention_BWS[:, :, :n_read], mine.attention_BWS, **CLOSE
            )
        parents_BW = torch.randint(0, width, (n_sources, width), generator=draw)
        kept = list(range(n_sources))[::-1][: left[min(step + 1, 4)]]
        for steps in (mine, other):
            steps.reorder(parents_BW)
            steps.keep(kept)


def test_pairs_have_segments(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", "classify")
    engine = OnnxEngine(run, load_run(run))
    tokens_N, layout = torch.tensor([3, 4, 5, 6, 7]), Layout.of([3, 2])
    one, other = (
        engine.model()(tokens_N, layout, torch.tensor(segments))
        for segments in ([0, 0, 0, 0, 0], [0, 1, 1, 0, 0])
    )
    assert not torch.allclose(one[0], other[0], atol=1e-3)
    torch.testing.assert_close(one[1], other[1])
