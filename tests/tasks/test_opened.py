"""Runs are opened in one way: their weights are read once, and nobody changes what is opened."""

from __future__ import annotations

import re
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.config import run as config_run
from headway.errors import FolderError, UserError
from headway.nn.layout import Layout
from headway.tasks import opened as opened_module
from headway.tasks.opened import Opened, open_plain, open_run

from ..interop.padded_runs import tiny_run
from ..once import once


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        for task in ("translate", "complete", "classify", "fill"):
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


def said(run: Opened) -> Tensor:
    tokens_N = torch.tensor([2, 5, 7, 3])
    with torch.no_grad():
        x_ND: Tensor = run.model(tokens_N, Layout.of([4]))
    return x_ND


def test_weights_are_read_when_they_are_wanted_and_once_whoever_asks(
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
    before, twin = said(run), run.twin()
    pairs = zip(run.model.parameters(), twin.model.parameters(), strict=True)
    assert all(one is other for one, other in pairs)
    mine = {id(part) for part in run.model.modules()}
    assert not any(id(part) in mine for part in twin.model.modules())
    for part in twin.model.modules():
        part.register_forward_hook(lambda part, given, out: torch.zeros_like(out))
    assert torch.equal(said(twin), torch.zeros_like(before))
    assert torch.equal(said(run), before)
    assert reads == [runs / "complete"]
    assert twin.lock is not run.lock


def test_a_twin_of_rounded_weights_reads_those_of_the_folder(runs: Path) -> None:
    whole, rounded = (
        open_run(runs / "complete", device="cpu", precision=p) for p in ("fp32", "int8")
    )
    assert not torch.equal(said(whole), said(rounded))
    assert torch.equal(said(whole), said(rounded.twin()))


def test_precision_is_the_runs_own_unless_someone_says_another(runs: Path, tmp_path: Path) -> None:
    text = (runs / "complete" / "config.toml").read_text()
    assert open_run(runs / "complete", device="cpu").precision == "fp32"
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(runs / "complete" / name)
    (tmp_path / "config.toml").write_text(text.replace('precision = "fp32"', 'precision = "bf16"'))
    run = open_run(tmp_path, device="cpu")
    assert {weight.dtype for weight in run.model.parameters()} == {torch.bfloat16}
    plain = open_plain(tmp_path)
    assert {weight.dtype for weight in plain.model.parameters()} == {torch.float32}
    with pytest.raises(UserError, match=r"precision has no choice 'int4'.*int8"):
        open_run(tmp_path, precision="int4")


def test_another_model_stands_in_the_place_of_the_runs_own(runs: Path, reads: list[Path]) -> None:
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
    with pytest.raises(UserError, match="only if their task is the same"):
        open_run(runs / "complete", runs / "fill")
    with pytest.raises(FolderError, match="is not the vocabulary of"):
        open_run(runs / "complete", "stories")
    with pytest.raises(FolderError, match="an empty list of runs"):
        open_run()


def test_a_tokenizer_that_does_not_fit_and_a_run_without_weights_are_refused_at_once(
    runs: Path, tmp_path: Path
) -> None:
    for name in ("config.toml", "tokenizer.json"):
        (tmp_path / name).write_bytes((runs / "complete" / name).read_bytes())
    with pytest.raises(FolderError, match=r"no model\.safetensors"):
        open_run(tmp_path)
    text = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(re.sub("vocab_size = .*", "vocab_size = 50", text))
    with pytest.raises(FolderError, match=r"does not fit the model beside it.*and the model 50"):
        open_run(tmp_path)
