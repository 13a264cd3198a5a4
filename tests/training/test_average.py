"""The mean of checkpoints, by function and by command."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.cli import average as command
from headway.errors import FolderError, UserError
from headway.models.build import build_model
from headway.models.folder import load_model, model_weights
from headway.settings.presets import preset
from headway.settings.toml import to_toml
from headway.training.average import average, average_of
from headway.training.checkpoint import Checkpoints, Snapshot

SETTINGS = preset("transformer-test")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Steps 1, 2 and 3 with random weights; step 2 is the best; 4 is only for resuming."""
    folder = tmp_path / "run"
    made = Checkpoints(folder, keep=5, log=lambda line: None)
    for step in range(1, 5):
        weights = model_weights(build_model(SETTINGS, seed=step))
        made.save(Snapshot(step, {"model": weights}, {}), best=step == 2, passing=step == 4)
    (folder / "config.toml").write_text(to_toml(SETTINGS))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return model_weights(load_model(folder))


def mean_of(*steps: int) -> dict[str, torch.Tensor]:
    several = [model_weights(build_model(SETTINGS, seed=step)) for step in steps]
    return {name: torch.stack([w[name] for w in several]).mean(0) for name in several[0]}


def test_the_mean_is_the_mean() -> None:
    rows = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([2.0, 4.0])}]
    assert average(rows)["w"].tolist() == [1.5, 3.0]
    assert average(iter(rows))["w"].dtype == torch.float32


def test_the_mean_of_equal_weights_is_exact_in_any_type() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        tensor = torch.randn(100, generator=torch.Generator().manual_seed(0)).to(dtype)
        for n in (1, 3, 7):
            assert torch.equal(average([{"w": tensor}] * n)["w"], tensor)


def test_adding_up_in_half_precision_would_be_wrong() -> None:
    """In bf16, 256 + 1 is 256: adding 300 ones there never gets beyond it."""
    ones = {"w": torch.ones(3, dtype=torch.bfloat16)}
    assert average([ones] * 300)["w"].tolist() == [1, 1, 1]
    large = [{"w": torch.tensor([1e8])}, {"w": torch.tensor([1.0])}, {"w": torch.tensor([-1e8])}]
    assert average(large)["w"].item() == pytest.approx(1 / 3)  # in fp32 it would be 0


def test_counters_are_those_of_the_last_and_the_inputs_are_untouched() -> None:
    first = {"w": torch.ones(2), "n": torch.tensor(3)}
    last = {"w": torch.zeros(2), "n": torch.tensor(9)}
    mean = average([first, last])
    assert mean["n"].item() == 9
    mean["w"].zero_()
    mean["n"].zero_()
    assert (first["w"].sum(), last["n"].item()) == (2, 9)


def test_weights_of_different_models_are_an_error_with_the_difference() -> None:
    with pytest.raises(FolderError, match=r"\bw\b.*\(3,\).*\(2,\)"):
        average([{"w": torch.zeros(2)}, {"w": torch.zeros(3)}])
    with pytest.raises(ValueError, match="average"):
        average([])


def test_checkpoints_are_averaged(run: Path) -> None:
    paths = Checkpoints(run, keep=5, log=print).paths()
    mean = average_of(paths[1:])
    for name, tensor in mean_of(2, 3).items():
        torch.testing.assert_close(mean[name], tensor)


def test_the_command_replaces_the_model_of_the_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in run.iterdir())
    command.average(run, last=3)
    for name, tensor in weights_of(run).items():
        torch.testing.assert_close(tensor, mean_of(1, 2, 3)[name])
    out = capsys.readouterr().out
    path = str(run / "model.safetensors")
    assert path in out
    assert re.findall(r"\d+", out.replace(path, "")) == ["1", "2", "3"]
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, "model.safetensors"])


def test_the_command_makes_a_complete_folder(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    command.average(run, last=2, out=out)
    names = sorted(path.name for path in out.iterdir())
    assert names == ["config.toml", "model.safetensors", "tokenizer.json"]
    for name, tensor in weights_of(out).items():
        torch.testing.assert_close(tensor, mean_of(2, 3)[name])
    assert not (run / "model.safetensors").exists()
    with pytest.raises(FolderError, match=r"(?=.*new/folder\b)(?=.*out=)"):
        command.average(run, last=2, out=out)


def test_the_best_is_taken_as_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.average(run, best=True)
    for name, tensor in weights_of(run).items():
        assert torch.equal(tensor, mean_of(2)[name])
    printed = capsys.readouterr().out.replace(str(run), "")
    assert re.findall(r"\d+", printed) == ["2"]
    with pytest.raises(UserError, match=r"(?=.*--best\b)(?=.*--last\b)"):
        command.average(run, last=2, best=True)


def test_too_few_checkpoints_are_an_error_with_their_number(run: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"(?=.* 3 )(?=.* 5 )(?=.*last=3\b)"):
        command.average(run)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.toml").write_text(to_toml(SETTINGS))
    with pytest.raises(FolderError, match=r"(?=.*/empty\b)(?=.* 0 )(?=.* 5 )"):
        command.average(empty)
    with pytest.raises(FolderError, match=r"(?=.*/empty\b)(?=.*\bbest\b)(?=.*last=)"):
        command.average(empty, best=True)
    with pytest.raises(FolderError, match="nowhere"):
        command.average(tmp_path / "nowhere")


def test_a_damaged_one_is_left_out_and_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    path = run / "checkpoints" / "step-2" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    command.average(run, last=2)
    streams = capsys.readouterr()
    assert re.findall(r"\d+", streams.out.replace(str(run), "")) == ["1", "3"]
    assert "step-2" in streams.err
    with pytest.raises(FolderError, match=r"(?=.* 2 )(?=.* 3 )(?=.*last=2\b)"):
        command.average(run, last=3)


def test_checkpoints_of_another_model_are_an_error(run: Path) -> None:
    (run / "config.toml").write_text(to_toml(replace(SETTINGS, d_ff=48)))
    with pytest.raises(FolderError, match=r"(?s)config\.toml.*feed_forward.*\(64,\).*\(48,\)"):
        command.average(run, last=3)
    assert not (run / "model.safetensors").exists()


def test_averaging_while_a_run_is_saving_leaves_its_unfinished_checkpoint(run: Path) -> None:
    (run / "checkpoints" / ".step-5.tmp").mkdir()
    command.average(run, last=3)
    assert (run / "checkpoints" / ".step-5.tmp").is_dir()


def test_one_flipped_bit_of_the_written_model_is_found(run: Path) -> None:
    command.average(run, last=3)
    path = run / "model.safetensors"
    whole = path.read_bytes()
    size = 8 + int.from_bytes(whole[:8], "little")
    assert isinstance(load_model(run), nn.Module)
    for place in (size, size + 1001, len(whole) - 1):
        content = bytearray(whole)
        content[place] ^= 16
        path.write_bytes(content)
        with pytest.raises(FolderError, match=r"model\.safetensors\b"):
            load_model(run)
