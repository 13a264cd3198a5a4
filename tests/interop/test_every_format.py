"""Every task, as trained with default settings, into every format: it is exported and proved, or
what is said names formats that take it, and none that does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.config.folder import load_run
from headway.config.run import media_front
from headway.errors import UserError
from headway.interop import exporting, to_ctranslate2, to_hf
from headway.interop.exporting import TARGETS, export_run
from headway.interop.plain.graphs import Graph, graphs_of
from headway.interop.plain.padded import Array, prove_padded
from headway.interop.proof import Proof
from headway.tasks.engines import engine_of
from headway.tasks.opened import Opened, open_plain

from .default_runs import TASKS, default_run
from .padded_runs import MEDIA, media_run

DefaultRun = Callable[[str], Path]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> DefaultRun:
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = default_run(tmp_path_factory.mktemp("runs") / "of", name)
        return made[name]

    return of


def eager(graph: Graph) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """A graph as torch runs it, before anything is recorded."""

    @torch.no_grad()
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = graph.module(*(torch.from_numpy(inputs[name]) for name in graph.example))
        return {name: x.numpy() for name, x in zip(graph.outputs, found, strict=True)}

    return call


def proved(run: Opened, other: nn.Module | None = None) -> Proof:
    """That the graphs of a run, or of another model, say what the run says."""
    graphs = graphs_of(run.model if other is None else other, run.settings)
    calls = {graph.name: eager(graph) for graph in graphs}
    return prove_padded("torch", run, ["a dog", "the old cat sat ."], calls, by="torch")


@pytest.mark.parametrize("name", TASKS)
def test_what_is_recorded_says_what_a_default_run_says(name: str, run_of: DefaultRun) -> None:
    proof = proved(open_plain(str(run_of(name))))
    assert proof.passed, proof.text()
    assert proof.sentences > 1
    assert proof.tokens > proof.sentences


@pytest.mark.parametrize("name", MEDIA)
def test_every_front_and_head_says_the_same(name: str, tmp_path: Path) -> None:
    run = open_plain(str(media_run(tmp_path / "run", name)))
    proof = proved(run)
    assert proof.passed, proof.text()


def test_another_model_is_found_out(tmp_path: Path) -> None:
    for name in ("watch", "transcribe", "fill sounds"):
        run = open_plain(str(media_run(tmp_path / name, name)))
        copy = deepcopy(run.model)
        with torch.no_grad():
            next(x for n, x in copy.named_parameters() if "front" in n and x.ndim > 1).mul_(1.5)
        assert not proved(run, copy).passed


class Written(Exception):
    """A target took the run."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets write, and prove nothing: their own tests do. Graphs are not recorded: that they can
    be is seen above and in `test_onnx.py`. A run is read once for all formats."""

    def prove(run: Opened, out: Path, sentences: Sequence[str], *, int8: bool) -> Proof:
        raise Written

    def write(run: Opened, out: Path, *, int8: bool) -> None:
        assert graphs_of(run.model, run.settings)

    monkeypatch.setattr(exporting, "open_plain", cache(open_plain))
    for module in (to_hf, to_ctranslate2):
        monkeypatch.setattr(module, "prove", prove)
    for name in ("onnx", "torch"):
        monkeypatch.setattr(f"headway.interop.to_{name}.write", write)
        monkeypatch.setattr(f"headway.interop.to_{name}.prove", prove)


def refusal(run: Path, to: str, out: Path, *, int8: bool = False) -> str | None:
    """What is said, or None where it is exported."""
    try:
        export_run(str(run), to, out, int8=int8)
    except UserError as error:
        return str(error)
    except Written:
        return None
    raise AssertionError("neither written nor refused")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", TASKS)
def test_no_refusal_sends_people_in_a_circle(name: str, run_of: DefaultRun, tmp_path: Path) -> None:
    run = run_of(name)
    for int8 in (False, True):
        for to in TARGETS:
            said = refusal(run, to, tmp_path / "out", int8=int8)
            assert to not in exporting.TAKE_ALL or said is None or int8
            if said is None:
                continue
            sent = formats_in(said)
            assert sent, f"--to {to}: nowhere to go: {said}"
            for other in sent:
                again = refusal(run, other, tmp_path / "out", int8=int8)
                assert again is None, f"--to {to} sends to --to {other}, which says: {again}"


def formats_in(said: str) -> list[str]:
    """The formats that a refusal sends people to."""
    after = r"(?:[Uu]se|as it is:|[Ee]xport) (?:--to|to) "
    listed = re.findall(after + r"(\w+)((?:(?:,| or| and) (?:--to )?\w+)*)", said)
    words = [word for first, more in listed for word in [first, *re.findall(r"\w+", more)]]
    return [word for word in words if word in TARGETS]


def test_an_engine_of_texts_does_not_send_people_to_an_export_that_refuses(tmp_path: Path) -> None:
    run = media_run(tmp_path / "run", "see")
    with pytest.raises(UserError, match=r"runs models that read text.* --to onnx"):
        engine_of("ctranslate2", run, load_run(run))
    with pytest.raises(UserError, match=r"holds no model for --engine onnx\. .* --to onnx"):
        engine_of("onnx", run, load_run(run))


def test_sentences_are_for_models_that_read_some(tmp_path: Path) -> None:
    run = media_run(tmp_path / "run", "see")
    with pytest.raises(UserError, match="--sentences has no effect on a model of pictures"):
        export_run(str(run), "onnx", tmp_path / "out", sentences=["a dog"])
    assert media_front(open_plain(str(run)).settings) is not None
