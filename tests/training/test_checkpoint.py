"""Checkpoints: exact, whole or absent whatever happens, and never trusted unchecked."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.errors import FolderError
from headway.training.checkpoint import Checkpoints, Snapshot
from headway.training.snapshot import verify

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def snapshot(step: int, size: int = 16) -> Snapshot:
    """Values that depend on the step alone, of many types and shapes."""
    noise = torch.Generator().manual_seed(step)
    model = {
        "a.weight": torch.randn(size, 3, generator=noise),
        "a.half": torch.randn(size, generator=noise).bfloat16(),
        "scalar": torch.tensor(step / 3),
    }
    optimizer = {
        "0.moment": torch.randn(size, 3, generator=noise, dtype=torch.float64),
        "0.step": torch.tensor(float(step)),
        "rng": torch.randint(256, (40,), generator=noise, dtype=torch.uint8),
        "none": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
    }
    state = {"epoch": 1, "index": step, "best": 1 / 3 * step, "loss": 1e-310, "list": [0.1, None]}
    return Snapshot(step, {"model": model, "optimizer": optimizer}, state)


def same(a: Snapshot | None, b: Snapshot) -> bool:
    """Bit for bit."""
    if a is None or (a.step, a.state, a.tensors.keys()) != (b.step, b.state, b.tensors.keys()):
        return False
    return all(
        a.tensors[file].keys() == tensors.keys()
        and all(same_bits(a.tensors[file][name], tensor) for name, tensor in tensors.items())
        for file, tensors in b.tensors.items()
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    raw = [tensor.reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def quiet(line: str) -> None:
    raise AssertionError(f"unexpected message: {line}")


def steps(checkpoints: Checkpoints) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoints.paths()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def digest(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with steps 1 and 2, of which 1 is the best."""
    made = Checkpoints(tmp_path / "run", keep=2, log=quiet)
    assert made.save(snapshot(1), best=True)
    assert made.save(snapshot(2))
    return tmp_path / "run"


# Exactness


def test_what_is_saved_comes_back_bit_for_bit(run: Path) -> None:
    loaded = Checkpoints(run, keep=2, log=quiet).newest()
    assert same(loaded, snapshot(2))
    assert not same(loaded, snapshot(1))  # it can fail
    assert loaded is not None
    changed = snapshot(2)
    changed.tensors["model"]["a.weight"][0, 0] += 1e-6
    assert not same(loaded, changed)


def test_a_folder_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    empty = Checkpoints(tmp_path / "nothing", keep=2, log=quiet)
    assert empty.newest() is None
    assert empty.paths() == []
    assert empty.best_path() is None
    assert not (tmp_path / "nothing").exists()


def test_the_same_state_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    other = Checkpoints(tmp_path / "other", keep=2, log=quiet)
    other.save(snapshot(1), best=True)
    other.save(snapshot(2))
    assert digest(tmp_path / "other") == digest(run)
    assert sorted(p.name for p in other.paths()[-1].iterdir()) == FILES


def test_the_manifest_names_the_files_and_what_wrote_them(run: Path) -> None:
    manifest = json.loads((run / "checkpoints" / "step-2" / "manifest.json").read_text())
    assert sorted([*manifest["files"], "manifest.json"]) == FILES
    assert manifest["torch"] == torch.__version__
    assert manifest["step"] == 2
    state = run / "checkpoints" / "step-2" / "state.json"
    assert manifest["files"]["state.json"]["size"] == state.stat().st_size


def test_shared_memory_and_strided_views_are_saved_by_value(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": base, "again": base, "row": base[1], "turned": base.T, "part": base[:, 1:3]}
    made = Checkpoints(tmp_path, keep=1, log=quiet)
    made.save(Snapshot(1, {"model": dict(tensors)}, {}))
    loaded = made.newest()
    assert loaded is not None
    assert loaded.tensors["model"].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded.tensors["model"][name], tensor), name


def test_parameters_are_saved_without_their_gradients(tmp_path: Path) -> None:
    layer = nn.Linear(3, 3)
    made = Checkpoints(tmp_path, keep=1, log=quiet)
    made.save(Snapshot(1, {"model": dict(layer.named_parameters()), "rng": {}}, {}))
    loaded = made.newest()
    assert loaded is not None
    assert torch.equal(loaded.tensors["model"]["weight"], layer.weight)
    assert loaded.tensors["rng"] == {}


def test_weights_are_those_of_the_running_average_where_there_is_one(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path, keep=2, log=quiet)
    model = {"w": torch.ones(3), "buffer": torch.full((2,), 5.0)}
    plain = made.save(Snapshot(1, {"model": model}, {}))
    averaged = made.save(
        Snapshot(2, {"model": model, "ema": {"w": torch.zeros(3), "updates": torch.tensor(2)}}, {})
    )
    assert plain is not None
    assert averaged is not None
    assert Checkpoints.weights(plain)["w"].tolist() == [1, 1, 1]
    assert Checkpoints.weights(averaged)["w"].tolist() == [0, 0, 0]
    assert Checkpoints.weights(averaged).keys() == {"w", "buffer"}


# What is kept


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path, keep=2, log=quiet)
    for step in range(1, 8):
        made.save(snapshot(step), best=step in (1, 3))
        expected = {1: [1], 2: [1, 2], 3: [2, 3], 4: [3, 4], 5: [3, 4, 5], 6: [3, 5, 6]}
        assert steps(made) == expected.get(step, [3, 6, 7])
    assert names(tmp_path) == ["step-3", "step-6", "step-7"]
    assert made.best_path() == tmp_path / "checkpoints" / "step-3"


def test_the_order_is_by_number_and_not_by_name(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path, keep=3, log=quiet)
    for step in (8, 9, 10, 100):
        made.save(snapshot(step))
    assert steps(made) == [9, 10, 100]
    assert same(made.newest(), snapshot(100))


def test_the_best_is_remembered_by_the_next_process(run: Path) -> None:
    later = Checkpoints(run, keep=1, log=quiet)
    assert later.best_path() == run / "checkpoints" / "step-1"
    later.newest()
    later.save(snapshot(3))
    later.save(snapshot(4))
    assert steps(later) == [1, 4]
    assert Checkpoints(run, keep=1, log=quiet).best_path() == run / "checkpoints" / "step-1"


def test_a_damaged_or_missing_best_checkpoint_is_not_an_error(run: Path) -> None:
    best = run / "checkpoints" / "step-1"
    flip(best / "model.safetensors", 100)
    made = Checkpoints(run, keep=2, log=quiet)
    assert made.best_path() is None
    assert same(made.newest(), snapshot(2))
    shutil.rmtree(best)
    assert made.best_path() is None
    made.save(snapshot(3), best=True)
    assert made.best_path() == run / "checkpoints" / "step-3"


def test_the_best_is_that_of_the_checkpoint_gone_back_to(run: Path) -> None:
    Checkpoints(run, keep=3, log=quiet).save(snapshot(3), best=True)
    flip(run / "checkpoints" / "step-3" / "model.safetensors", 100)
    made = Checkpoints(run, keep=1, log=lambda line: None)
    assert same(made.newest(), snapshot(2))
    assert made.best_path() == run / "checkpoints" / "step-1"
    made.save(snapshot(4))
    assert names(run) == ["step-1", "step-4"]


def test_a_passing_one_is_resumed_from_but_not_kept(run: Path) -> None:
    made = Checkpoints(run, keep=2, log=quiet)
    made.save(snapshot(3), passing=True)
    assert steps(made) == [1, 2]
    loaded = Checkpoints(run, keep=2, log=quiet).newest()
    assert same(loaded, snapshot(3))
    assert loaded is not None
    assert loaded.transient
    made.save(snapshot(4))
    assert names(run) == ["step-1", "step-2", "step-4"]  # 1 is the best
    made.save(snapshot(4), passing=True)
    assert steps(made)[-1] == 4  # the regular one of this step serves


def test_a_passing_one_is_replaced_by_the_regular_one_of_its_step(run: Path) -> None:
    made = Checkpoints(run, keep=2, log=quiet)
    made.save(snapshot(3), passing=True)
    made.save(snapshot(3), best=True)
    assert steps(made) == [2, 3]
    assert made.best_path() == run / "checkpoints" / "step-3"


def test_saving_a_step_again_replaces_it(run: Path) -> None:
    made = Checkpoints(run, keep=2, log=quiet)
    changed = Snapshot(2, snapshot(5).tensors, {"other": 1})
    assert made.save(changed)
    assert same(made.newest(), changed)
    assert names(run) == ["step-1", "step-2"]


def test_what_is_newer_than_a_save_does_not_push_it_out(run: Path) -> None:
    """After falling back from damaged checkpoints they must not count among the newest."""
    for step in (1, 2):
        flip(run / "checkpoints" / f"step-{step}" / "model.safetensors", 100)
    found: list[str] = []
    made = Checkpoints(run, keep=1, log=found.append)
    assert made.newest() is None
    assert len(found) == 2
    made.save(snapshot(1))
    assert names(run) == ["step-1"]
    assert same(made.newest(), snapshot(1))


def test_what_a_killed_process_did_not_come_to_remove_is_removed_at_the_start(run: Path) -> None:
    Checkpoints(run, keep=9, log=quiet).save(snapshot(3), best=True)
    assert names(run) == ["step-1", "step-2", "step-3"]
    Checkpoints(run, keep=2, log=quiet, owner=False).newest()
    assert names(run) == ["step-1", "step-2", "step-3"]
    Checkpoints(run, keep=2, log=quiet).newest()
    assert names(run) == ["step-2", "step-3"]


def test_a_damaged_one_stays_for_inspection_until_the_next_save(run: Path) -> None:
    flip(run / "checkpoints" / "step-2" / "model.safetensors", 100)
    made = Checkpoints(run, keep=2, log=lambda line: None)
    assert same(made.newest(), snapshot(1))
    assert names(run) == ["step-1", "step-2"]
    made.save(snapshot(2))
    assert same(made.newest(), snapshot(2))


# Damage


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def damaged_is_passed_over(run: Path) -> None:
    found: list[str] = []
    assert same(Checkpoints(run, keep=2, log=found.append).newest(), snapshot(1))
    (line,) = found
    assert "\n" not in line
    assert line.startswith("warning: ")
    assert "step-2" in line


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_found_and_the_one_before_is_used(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-2" / name
    whole = path.read_bytes()
    chosen = random.Random(name)
    bits = [8 * byte + chosen.randrange(8) for byte in range(len(whole))]
    found = 0
    for bit in bits:
        flip(path, bit)
        with pytest.raises(FolderError, match=re.escape(name)):
            verify(path.parent)
        found += 1
        path.write_bytes(whole)
    assert found == len(whole)
    verify(path.parent)  # it can pass
    for bit in chosen.sample(bits, 10):
        flip(path, bit)
        damaged_is_passed_over(run)
        path.write_bytes(whole)


@pytest.mark.parametrize("name", FILES)
def test_a_cut_empty_or_missing_file_is_found(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-2" / name
    whole = path.read_bytes()
    for part in range(64):
        path.write_bytes(whole[: len(whole) * part // 64])
        damaged_is_passed_over(run)
    path.write_bytes(whole + b"\n")
    damaged_is_passed_over(run)
    if name != "manifest.json":
        with pytest.raises(FolderError, match=rf"{name}\b.*\b{len(whole) + 1}\b.*\b{len(whole)}\b"):
            verify(path.parent)
    path.unlink()
    damaged_is_passed_over(run)
    path.mkdir()
    damaged_is_passed_over(run)


def test_swapped_files_and_folders_are_found(run: Path) -> None:
    old, new = run / "checkpoints" / "step-1", run / "checkpoints" / "step-2"
    for name in FILES:
        whole = (new / name).read_bytes()
        shutil.copyfile(old / name, new / name)
        damaged_is_passed_over(run)
        (new / name).write_bytes(whole)
    shutil.rmtree(new)
    shutil.copytree(old, new)  # whole, but not what its name says
    damaged_is_passed_over(run)
    shutil.rmtree(new)
    new.write_text("a file where a folder should be")
    damaged_is_passed_over(run)


def test_weights_of_a_damaged_checkpoint_are_an_error(run: Path) -> None:
    path = run / "checkpoints" / "step-2"
    assert Checkpoints.weights(path).keys() == snapshot(2).tensors["model"].keys()
    flip(path / "model.safetensors", 999)
    with pytest.raises(FolderError, match=r"step-2\b.*SHA-256.*\bmodel\.safetensors"):
        Checkpoints.weights(path)
    with pytest.raises(FolderError, match="step-77"):
        Checkpoints.weights(run / "checkpoints" / "step-77")


def test_an_unreadable_checkpoint_does_not_cause_a_fallback(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older work must not replace newer work because of a right that can be given back."""

    def refuse(path: Path, *rest: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("headway.training.checkpoint.verify", refuse)
    with pytest.raises(FolderError, match=rf"step-2\b.*{os.strerror(errno.EACCES)}"):
        Checkpoints(run, keep=2, log=quiet).newest()


def test_only_the_owner_tidies(run: Path) -> None:
    stray = run / "checkpoints" / ".step-3.tmp"
    shutil.copytree(run / "checkpoints" / "step-2", stray)
    assert same(Checkpoints(run, keep=2, log=quiet, owner=False).newest(), snapshot(2))
    assert stray.exists()
    assert same(Checkpoints(run, keep=2, log=quiet).newest(), snapshot(2))
    assert not stray.exists()


# Kills and full disks


class Killed(BaseException):
    """Nothing of ours catches it: what would come next does not happen, as with kill -9."""


def fail_at(number: int, error: BaseException, action: Callable[[], object]) -> int:
    """Raise in place of the number-th call into the operating system. Returns how many there were.

    Every call of a C function of `os` or of a file counts, and that of safetensors, so no list of
    such functions can be incomplete.
    """
    count = 0

    def watch(frame: Any, event: str, function: Any) -> None:
        nonlocal count
        owner = getattr(function, "__self__", None)
        module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
        known = module in ("posix", "io", "_io") or isinstance(owner, io.IOBase)
        name = getattr(function, "__name__", "")
        if event == "c_call" and (known or "serialize" in name) and name != "fspath":
            count += 1
            if count == number:
                raise error

    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


AGAIN = Snapshot(2, snapshot(3).tensors, {"other": 1})
SAVES = {"new": (snapshot(3), 2), "again": (AGAIN, 2), "the only one again": (AGAIN, 1)}


def prepared(run: Path, folder: Path, case: str) -> tuple[Checkpoints, list[str]]:
    """A copy of the run, which a save of step 3 as the best then relieves of step 1."""
    shutil.copytree(run, folder)
    if case == "the only one again":
        shutil.rmtree(folder / "checkpoints" / "step-1")
    found: list[str] = []
    return Checkpoints(folder, keep=SAVES[case][1], log=found.append), found


@pytest.fixture
def unclosed() -> Iterator[None]:
    """Files that a simulated kill left open go before another test would be blamed for them."""
    yield
    gc.collect()


def check_recovery(folder: Path, new: Snapshot) -> bool:
    """Whether the new one is there; the old one must be otherwise."""
    after = Checkpoints(folder, keep=2, log=quiet)
    assert not [name for name in names(folder) if name.startswith(".")]
    for path in after.paths():
        verify(path)
    loaded = after.newest()
    assert same(loaded, snapshot(2)) or same(loaded, new)
    assert after.save(snapshot(9))
    assert same(Checkpoints(folder, keep=2, log=quiet).newest(), snapshot(9))
    return same(loaded, new)


@pytest.mark.usefixtures("unclosed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("case", SAVES)
def test_a_kill_at_any_operation_of_a_save_leaves_the_old_or_the_new(
    run: Path, tmp_path: Path, case: str
) -> None:
    new = SAVES[case][0]
    found = []
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        made, _ = prepared(run, folder, case)
        try:
            fail_at(number, Killed(), partial(made.save, new, best=True))
        except Killed:
            found.append(check_recovery(folder, new))
        else:
            break
    assert len(found) > 40, "too few operations were seen"
    assert found == sorted(found)  # old until the rename, new from there on
    assert set(found) == {False, True}


@pytest.mark.usefixtures("unclosed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("case", SAVES)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_an_error_at_any_operation_loses_nothing_and_is_reported_in_one_line(
    run: Path, tmp_path: Path, case: str, number: int
) -> None:
    new = SAVES[case][0]
    made, _ = prepared(run, tmp_path / "count", case)
    total = fail_at(0, OSError(), partial(made.save, new, best=True))
    results = set()
    for k in range(1, total + 1):
        folder = tmp_path / str(k)
        made, found = prepared(run, folder, case)
        fail_at(k, OSError(number, os.strerror(number)), partial(made.save, new, best=True))
        assert len(found) <= 1
        assert all(os.strerror(number) in line and line.startswith("warning: ") for line in found)
        assert made.failed == [new.step] * sum(f"step {new.step} " in line for line in found)
        assert made.newest() is not None  # at once, not only after the next start
        results.add(check_recovery(folder, new))
    assert results == {False, True}


def test_a_full_disk_is_a_warning_and_training_continues(run: Path) -> None:
    """One failure in the middle of the weights, as a disk that fills up gives it."""
    before, found = digest(run), list[str]()
    made = Checkpoints(run, keep=2, log=found.append)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # then write gives EFBIG
    try:
        assert made.save(snapshot(3, size=10_000)) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(made.failed) == 1
    assert len(found) == 1
    assert found[0].startswith("warning: ")
    assert "step 3" in found[0]
    assert os.strerror(errno.EFBIG) in found[0]
    assert digest(run) == before
    assert names(run) == ["step-1", "step-2"]
    assert made.save(snapshot(3, size=10_000))
    assert len(made.failed) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    found: list[str] = []
    made = Checkpoints(small_disk / "run", keep=2, log=found.append)
    saved = [made.save(snapshot(step, size=800)) for step in range(1, 10)]
    assert saved[0] is not None
    assert saved[-1] is None
    assert len(made.failed) == len(found) == saved.count(None)
    assert os.strerror(errno.ENOSPC) in found[0]
    after = Checkpoints(small_disk / "run", keep=2, log=quiet)
    good = max(step for step, path in enumerate(saved, 1) if path)
    assert same(after.newest(), snapshot(good, size=800))
    assert not [name for name in names(small_disk / "run") if name.startswith(".")]


def test_a_folder_that_becomes_read_only(small_disk: Path) -> None:
    found: list[str] = []
    made = Checkpoints(small_disk / "run", keep=2, log=found.append)
    made.save(snapshot(1))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert made.save(snapshot(2)) is None
    assert len(found) == 1
    assert os.strerror(errno.EROFS) in found[0]
    assert same(Checkpoints(small_disk / "run", keep=2, log=quiet).newest(), snapshot(1))


def test_a_folder_that_was_removed_is_made_again(run: Path) -> None:
    made = Checkpoints(run, keep=2, log=quiet)
    shutil.rmtree(run)
    assert made.save(snapshot(3))
    assert same(Checkpoints(run, keep=2, log=quiet).newest(), snapshot(3))


@pytest.mark.parametrize("file", ["model", "ema"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_never_written(
    run: Path, file: str, value: float
) -> None:  # fmt: skip
    found: list[str] = []
    made = Checkpoints(run, keep=2, log=found.append)
    bad = snapshot(3)
    bad.tensors["ema"] = {"a.weight": torch.zeros(4, 4)}
    bad.tensors[file]["a.weight"][2, 1] = value
    assert made.save(bad) is None
    assert "a.weight" in found[0]
    assert len(made.failed) == 1
    assert names(run) == ["step-1", "step-2"]


def test_a_sum_that_overflows_is_not_taken_for_a_bad_weight(run: Path) -> None:
    made = Checkpoints(run, keep=2, log=quiet)
    large = snapshot(3)
    large.tensors["model"]["a.weight"].fill_(3e38)
    assert made.save(large)
