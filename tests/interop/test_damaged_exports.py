"""Exported folders that were damaged or mixed up: one line says what is wrong, and no nonsense."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.cli.main import main
from headway.errors import ConfigError, FolderError
from headway.interop.ctranslate2 import export as to_ctranslate2
from headway.interop.exporting import export_run
from headway.interop.graphs.graphs import graphs_of
from headway.interop.importing import import_run
from headway.interop.onnx.session import Session, check_graph, expected_graphs
from headway.settings.folder import load_run
from headway.tasks.engines import engine_of
from headway.tasks.loaded_run import open_plain

from ..facts import missing
from .padded_runs import tiny_run
from .test_hf_decoders import DECODERS
from .test_round_trip import write_words
from .theirs import reference, saved

Output = pytest.CaptureFixture[str]


def exported(folder: Path, task: str) -> Path:
    run, out = tiny_run(folder / "run", task, "as-published"), folder / "out"
    out.mkdir()
    to_ctranslate2.write(open_plain(str(run)), out, int8=False)
    return out


def error_line(out: Path, tmp_path: Path, capsys: Output) -> str:
    """The error that `predict` prints, which is one line."""
    (text := tmp_path / "text").write_text("ba de\n")
    capsys.readouterr()
    assert main(["predict", str(out), str(text), "--engine", "ctranslate2"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.splitlines()[-1]  # after the lines of progress, if there was time for some
    assert last.startswith("headway predict: error: ")
    return last


@pytest.mark.parametrize("damage", ["junk", "half", "shapes", "names"])
def test_damaged_heads_are_named(damage: str, tmp_path: Path, capsys: Output) -> None:
    out = exported(tmp_path, "classify")
    path = out / "heads.safetensors"
    assert path.stat().st_mode & 0o777 == 0o644
    whole, heads = path.read_bytes(), load_file(path)
    if damage == "junk":
        path.write_bytes(b"junk" * 20)
    elif damage == "half":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "shapes":
        save_file({name: torch.cat([x, x]) for name, x in heads.items()}, path)
    else:
        save_file({f"other.{name}": x for name, x in heads.items()}, path)
    assert not missing(error_line(out, tmp_path, capsys), str(path))


@pytest.mark.parametrize(
    ("words", "facts"),
    [('["a", "b"]', ("2", "39")), ('{"a": 1}', ()), ("[1, 2]", ()), ("[", ("line 1 column 2",))],
)
def test_a_vocabulary_that_does_not_fit_is_named(
    words: str, facts: tuple[str, ...], tmp_path: Path, capsys: Output
) -> None:
    out = exported(tmp_path, "translate")
    engine = engine_of("ctranslate2", out, load_run(out))
    assert engine is not None
    [path] = out.glob("*vocabulary.json")
    path.write_text(words)
    with pytest.raises(FolderError) as caught:
        cast(Any, engine).vocabulary("target")
    assert not missing(caught.value, str(path), *facts)
    path.write_text(json.dumps(["a", "b"]))
    assert "vocabulary" in error_line(out, tmp_path, capsys).lower()


def graph_of(run: Path, name: str) -> Session:
    """What a session would say of itself."""
    loaded = open_plain(str(run))
    [graph] = [graph for graph in graphs_of(loaded.model, loaded.settings) if graph.name == name]
    with torch.no_grad():
        found = graph.module(*graph.example.values())
    outputs = {name: list(x.shape) for name, x in zip(graph.outputs, found, strict=True)}
    facts = {"task": loaded.settings.task}
    return cast(Session, SimpleNamespace(inputs=graph.example, outputs=outputs, facts=facts))


def test_a_graph_in_the_place_of_another(tmp_path: Path) -> None:
    tasks = ("translate", "complete", "fill", "embed", "tag", "classify")
    runs = {task: tiny_run(tmp_path / task, task) for task in tasks}
    places = [("translate", "encoder"), ("translate", "decoder")]
    places += [(task, "model") for task in tasks[1:]]
    graphs = {place: graph_of(runs[place[0]], place[1]) for place in places}
    for task, name in places:
        for place, graph in graphs.items():
            path, settings = tmp_path / f"{name}.onnx", load_run(runs[task])
            wanted = expected_graphs(settings)[name]
            if place == (task, name):
                check_graph(path, wanted, graph, settings)
                continue
            with pytest.raises(FolderError, match=rf"{path}\b"):
                check_graph(path, wanted, graph, settings)
            # Also where the file says nothing false of its task.
            graph = cast(Session, SimpleNamespace(**{**vars(graph), "facts": {"task": task}}))
            if {place[0], task} != {"tag", "classify"} and "fill" not in (place[0], task):
                with pytest.raises(
                    FolderError, match=rf"{path}\b.*\b(input_ids|sentence_embedding|logits)\b"
                ):
                    check_graph(path, wanted, graph, settings)


def test_a_graph_of_another_vocabulary(tmp_path: Path) -> None:
    graph = graph_of(tiny_run(tmp_path / "run", "complete"), "model")
    other = tiny_run(tmp_path / "other", "complete", vocab_size=99)
    with pytest.raises(FolderError, match=r"\b39\b.*config\.toml\b.*\b99\b"):
        check_graph(tmp_path, expected_graphs(load_run(other))["model"], graph, load_run(other))


def test_a_folder_for_another_engine_is_named(tmp_path: Path) -> None:
    out = exported(tmp_path, "complete")
    with pytest.raises(FolderError, match=rf"{out}\b.*engine=.ctranslate2..*\bonnx\b"):
        engine_of("onnx", out, load_run(out))


def imported(tmp_path: Path, task: str | None = None) -> Path:
    source = saved(reference(*DECODERS["gpt2"]), tmp_path / "theirs")
    write_words(source)
    import_run(str(source), tmp_path / "run", task=task)
    return tmp_path / "run"


def test_a_decoder_for_vectors_is_an_error_before_it_is_written(tmp_path: Path) -> None:
    run = imported(tmp_path, "embed")
    with pytest.raises(ConfigError, match=r"task='embed'.*to=.onnx."):
        export_run(str(run), "ctranslate2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_records_of_an_import_are_named(tmp_path: Path) -> None:
    run = imported(tmp_path)
    (kept := run / "ignored.safetensors").write_bytes(b"junk" * 9)
    with pytest.raises(FolderError, match=rf"{kept}\b.*import\.json\b"):
        export_run(str(run), "hf", tmp_path / "out")
    kept.unlink()
    facts = json.loads((run / "import.json").read_text())
    for wrong in (7, None, "nn", "no such type"):
        name = next(iter(facts["tensors"]))
        changed = facts | {"tensors": facts["tensors"] | {name: wrong}}
        (run / "import.json").write_text(json.dumps(changed))
        with pytest.raises(FolderError, match=r"import\.json"):
            export_run(str(run), "hf", tmp_path / "out")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_folder_of_another_kind_is_an_error_with_the_right_command(
    tmp_path: Path, capsys: Output
) -> None:
    run = imported(tmp_path)
    assert main(["predict", str(tmp_path / "theirs"), "-"]) == 2
    assert f"headway import {tmp_path / 'theirs'} --out RUN" in capsys.readouterr().err
    with pytest.raises(FolderError, match=rf"{run}\b.*config\.toml\b.*--from\b"):
        import_run(str(run), tmp_path / "again")


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_device_does_not_go_with_another_engine(
    command: str, tmp_path: Path, capsys: Output
) -> None:
    words = [command, str(tmp_path), "--engine", "onnx", "--device", "cuda:1"]
    assert main(words) == 2
    assert not missing(capsys.readouterr().err, "--device cuda:1", "--engine onnx")


def test_two_precisions_do_not_go_together(tmp_path: Path, capsys: Output) -> None:
    run = tiny_run(tmp_path / "run", "complete")
    assert main(["predict", str(run), "-", "--int8", "decode.precision=bf16"]) == 2
    assert not missing(capsys.readouterr().err, "--int8", "decode.precision=bf16")


def test_translations_that_differ_are_not_all_listed(tmp_path: Path) -> None:
    out = exported(tmp_path, "translate")
    loaded = open_plain(str(tmp_path / "run"))
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(-1)
    lines = ["ba de", "go", "fi ko ga", "de", "ka ke", "mo pu"]
    proof = to_ctranslate2.prove(loaded, out, lines, int8=False)
    differing = [note for note in proof.notes if "\n" in note]  # two texts, one below the other
    assert len(differing) == 3
    assert any(re.search(r"^\D*\b[1-3]\b\D*$", note) for note in proof.notes)  # the others
