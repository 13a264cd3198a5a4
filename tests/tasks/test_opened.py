"""Runs are opened in one way: their weights are read once, and nobody changes what is opened."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.cli.main import main
from headway.cli.play import Player
from headway.errors import FolderError, UserError
from headway.nn.layout import Layout
from headway.run import load
from headway.settings import run as config_run
from headway.settings.run import RunSettings
from headway.tasks import loaded_run as opened_module
from headway.tasks.loaded_run import LoadedRun, open_plain, open_run
from headway.tasks.seq2seq_answers import writer_of
from headway.tasks.task import InferenceRequest, find_task

from ..interop.padded_runs import decoding, lines_for, tiny_run
from ..once import once


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        for task in ("translate", "complete", "classify", "fill", "tag", "embed"):
            tiny_run(folder / task, task)
        tiny_run(folder / "other", "complete", n_layers=3)

    return once(tmp_path_factory, "opened-runs", make)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders whose weights were read, as often as they were."""
    found: list[Path] = []
    real = opened_module.load_model

    def load_model(folder: Path, *more: object) -> nn.Module:
        found.append(folder)
        return real(folder, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(opened_module, "load_model", load_model)
    return found


def output_of(run: LoadedRun) -> Tensor:
    tokens_N = torch.tensor([2, 5, 7, 3])
    with torch.no_grad():
        x_ND: Tensor = run.model(tokens_N, Layout.of([4]))
    return x_ND


def test_weights_are_read_once_and_not_before_they_are_needed(
    runs: Path, reads: list[Path]
) -> None:
    run = open_run(runs / "complete", device="cpu")
    assert reads == []
    found: list[list[nn.Module]] = []
    threads = [threading.Thread(target=lambda: found.append(run.models)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reads == [runs / "complete"]
    assert all(models[0] is run.model for models in found)
    assert not run.model.training


def test_settings_are_parsed_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[object] = []
    real = config_run.parse
    monkeypatch.setattr(
        config_run, "parse", lambda text, path: (parsed.append(path), real(text, path))[1]
    )
    open_plain(runs / "complete")
    assert len(parsed) == 1
    settings = open_run(runs / "complete", device="cpu").settings
    parsed.clear()
    assert open_run(runs / "complete", device="cpu", settings=settings).model
    assert parsed == []


def test_what_is_opened_does_not_change(runs: Path) -> None:
    run = open_run(runs / "complete", device="cpu")
    with pytest.raises(FrozenInstanceError):
        run.device = torch.device("meta")  # type: ignore[misc]
    run.models.clear()
    assert len(run.models) == 1


def test_a_twin_has_the_weights_and_not_the_hooks(runs: Path, reads: list[Path]) -> None:
    run = open_run(runs / "complete", device="cpu")
    before, twin = output_of(run), run.inspection_copy()
    for one, other in zip(run.model.parameters(), twin.model.parameters(), strict=True):
        assert one.data_ptr() == other.data_ptr()
    twin.model(torch.tensor([2, 3]), Layout.of([2])).sum().backward()
    assert all(weight.grad is None for weight in run.model.parameters())
    mine = {id(part) for part in run.model.modules()}
    assert not any(id(part) in mine for part in twin.model.modules())
    for part in twin.model.modules():
        part.register_forward_hook(lambda part, given, out: torch.zeros_like(out))
    assert torch.equal(output_of(twin), torch.zeros_like(before))
    assert torch.equal(output_of(run), before)
    assert reads == [runs / "complete"]
    assert twin.lock is not run.lock


def test_a_twin_of_rounded_weights_reads_those_of_the_folder(runs: Path) -> None:
    whole, rounded = (
        open_run(runs / "complete", device="cpu", precision=p) for p in ("fp32", "int8")
    )
    assert not torch.equal(output_of(whole), output_of(rounded))
    assert torch.equal(output_of(whole), output_of(rounded.inspection_copy()))


def test_precision_is_that_of_the_run_unless_given(runs: Path, tmp_path: Path) -> None:
    text = (runs / "complete" / "config.toml").read_text()
    assert open_run(runs / "complete", device="cpu").precision == "fp32"
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(runs / "complete" / name)
    (tmp_path / "config.toml").write_text(text.replace('precision = "fp32"', 'precision = "bf16"'))
    run = open_run(tmp_path, device="cpu")
    assert {weight.dtype for weight in run.model.parameters()} == {torch.bfloat16}
    plain = open_plain(tmp_path)
    assert {weight.dtype for weight in plain.model.parameters()} == {torch.float32}
    with pytest.raises(UserError, match=r"precision.*'int4'.*int8"):
        open_run(tmp_path, precision="int4")


def test_another_model_replaces_that_of_the_run(runs: Path, reads: list[Path]) -> None:
    run = open_run(runs / "complete", device="cpu")
    model = nn.Identity()
    assert run.with_model(model).model is model
    assert run.with_model(model).vocab is run.vocab
    assert reads == []


def test_several_runs_answer_together_only_if_they_can(runs: Path, tmp_path: Path) -> None:
    both = open_run(runs / "complete", runs / "other", device="cpu")
    assert [len(model.stack.blocks) for model in both.models] == [  # type: ignore[union-attr, arg-type]
        len(open_run(runs / name, device="cpu").model.stack.blocks)  # type: ignore[union-attr, arg-type]
        for name in ("complete", "other")
    ]
    with pytest.raises(UserError, match=r"\bfill\b.*\bcomplete\b"):
        open_run(runs / "complete", runs / "fill")
    with pytest.raises(FolderError, match=r"\bstories/tokenizer\.json\b.*/complete\b"):
        open_run(runs / "complete", "stories")
    with pytest.raises(FolderError):
        open_run()


def test_a_tokenizer_that_does_not_fit_and_missing_weights_are_an_error_at_once(
    runs: Path, tmp_path: Path
) -> None:
    for name in ("config.toml", "tokenizer.json"):
        (tmp_path / name).write_bytes((runs / "complete" / name).read_bytes())
    with pytest.raises(FolderError, match=r"\bmodel\.safetensors\b"):
        open_run(tmp_path)
    text = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(re.sub("vocab_size = .*", "vocab_size = 50", text))
    with pytest.raises(FolderError, match=r"/tokenizer\.json\b.*\b50\b"):
        open_run(tmp_path)


ASKED: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "translate": [
        ({"beam": 1}, {}),
        ({"beam": 4, "n_best": 2}, {}),
        ({"beam": 1}, {"alignments": True}),
    ],
    "complete": [
        ({"beam": 1, "sample": False}, {}),
        ({"seed": 3}, {"scores": True}),
        ({"n_best": 2}, {}),
    ],
    "classify": [({}, {}), ({}, {"scores": True})],
    "fill": [({}, {}), ({"beam": 3, "n_best": 3}, {})],
    "tag": [({}, {}), ({"batch_tokens": 16}, {})],
    "embed": [({}, {}), ({"batch_tokens": 16}, {})],
}
"""Changes to how it decodes, and options."""


def answers(opened: LoadedRun, decode: dict[str, Any], options: dict[str, Any]) -> list[Any]:
    settings = decoding(opened.settings, **decode)
    predictor = find_task(settings).predictor(InferenceRequest(opened, settings, options))
    return [
        (answer.text, answer.to_dict()) for answer in predictor.answers(lines_for(settings.task))
    ]


@pytest.mark.parametrize("task", ASKED)
def test_options_of_one_call_do_not_change_the_next(
    runs: Path, reads: list[Path], task: str
) -> None:
    """Each answers as if it were alone, and the weights are read once for all."""
    alone = [answers(open_run(runs / task, device="cpu"), *asked) for asked in ASKED[task]]
    reads.clear()
    opened = open_run(runs / task, device="cpu")
    for _ in range(2):
        for asked, found in zip(ASKED[task], alone, strict=True):
            assert answers(opened, *asked) == found
    assert reads == [runs / task]
    assert not any(part.training for part in opened.model.modules())


def test_calls_that_take_turns_do_not_hear_each_other(runs: Path) -> None:
    opened = open_run(runs / "translate", device="cpu")
    lines = lines_for("translate") * 3
    wide, narrow = (decoding(opened.settings, beam=beam, batch_tokens=16) for beam in (4, 1))
    kind = find_task(wide)

    def asked(settings: RunSettings) -> Iterator[str]:
        found = kind.predictor(InferenceRequest(opened, settings)).answers(lines, live=True)
        return (answer.text for answer in found)

    alone = [list(asked(settings)) for settings in (wide, narrow)]
    pairs = list(zip(asked(wide), asked(narrow), strict=True))
    assert [list(side) for side in zip(*pairs, strict=True)] == alone


def test_a_draft_is_read_once_too(runs: Path, reads: list[Path]) -> None:
    opened = open_run(runs / "complete", device="cpu")
    for _ in range(2):
        answers(opened, {"beam": 1, "sample": False}, {"draft": str(runs / "other")})
    assert reads == [runs / "complete", runs / "other"]


def test_searchers_are_reused_for_equal_settings(runs: Path) -> None:
    opened = open_run(runs / "translate", device="cpu")
    settings = opened.settings.decode
    one, same = (writer_of(opened, settings) for _ in range(2))
    other = writer_of(opened, replace(settings, beam=7))
    assert one.searcher is same.searcher
    assert one.searcher is not other.searcher
    for beam in range(8, 13):
        writer_of(opened, replace(settings, beam=beam))
    assert writer_of(opened, settings).searcher is not one.searcher, "only the last few are"


COMMANDS: dict[str, Sequence[str]] = {
    "predict": ("predict", "{run}", "--text", "ba de", "--beam", "1"),
    "evaluate": ("evaluate", "{run}", "--source", "{lines}", "--target", "{lines}", "--beam", "1"),
    "score": ("score", "{run}", "--source", "{lines}", "--target", "{lines}"),
    "look": ("look", "{run}", "--text", "ba de", "--terminal"),
    "truth": ("truth", "{run}", "--pairs", "{pairs}", "--maps", "rollout"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_parses_the_settings_and_reads_the_weights_of_a_run_once(
    runs: Path, tmp_path: Path, name: str, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "translate", run)
    places = {"run": str(run)}
    for file, text in (("lines", "ba de\nde ba\n"), ("pairs", "ba de\tde ba\n")):
        (tmp_path / file).write_text(text)
        places[file] = str(tmp_path / file)
    parsed: list[Path] = []
    real = config_run.parse
    monkeypatch.setattr(
        config_run, "parse", lambda text, path: (parsed.append(path), real(text, path))[1]
    )
    assert main([word.format(**places) for word in COMMANDS[name]]) == 0
    assert [path for path in parsed if path == run / "config.toml"] == [run / "config.toml"]
    assert [folder for folder in reads if folder == run] == [run]


def test_a_setting_that_is_changed_while_playing_reads_no_weights_unless_it_is_theirs(
    runs: Path, reads: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "translate"
    player = Player(load(run, device="cpu"), [])
    for line in ("ba de", "/set decode.beam=1", "ba de"):
        player.process(line)
    assert reads == [run]
    player.process("/set decode.precision=int8")
    player.process("ba de")
    assert reads == [run, run]
    assert "error" not in capsys.readouterr().err
