"""The real command, killed and stopped in many places: run again, it ends with the same bytes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headway.cli.main import main
from headway.errors import FolderError
from headway.training.run_folder import RunFolder

from .fork_server import Server, hook

STEPS = 12
WORDS = ["the", "old", "red", "house", "tree", "dog", "cat", "sees", "finds", "never", "here"]
SETTINGS = [
    "model.preset=transformer-test",
    "model.n_layers=1",
    "model.decoder.n_layers=1",
    "tokenizer.kind=characters",
    f"train.steps={STEPS}",
    "train.batch_tokens=150",
    "train.save_every=1",
    "train.eval_every=5",
    "train.keep=3",
    "train.average=3",
    "train.metric=loss",
    "data.valid_size=8",
    "decode.max_len=3",
]
SAVE = "headway.training.checkpoint:write_snapshot"
STEP = "headway.training.step:Step.finish"
EVALUATE = "headway.tasks.seq2seq:Seq2SeqObjective.evaluate"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Sentences, and the same with every word turned round."""
    folder = tmp_path_factory.mktemp("data")
    chosen = random.Random(0)
    lines = [chosen.choices(WORDS, k=chosen.randint(3, 8)) for _ in range(300)]
    (folder / "a").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "b").write_text("".join(" ".join(w[::-1] for w in line) + "\n" for line in lines))
    return ["--source", str(folder / "a"), "--target", str(folder / "b")]


@pytest.fixture(scope="module")
def command(data: list[str]) -> list[str]:
    return ["train", "translate", "--device", "cpu", *data, *SETTINGS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def out(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder)) / "run"


@pytest.fixture(scope="module")
def straight(server: Server, command: list[str], folder: Path) -> Path:
    """A run that nothing interrupts."""
    out = folder / "straight"
    assert server.run([*command, "--out", str(out)]) == 0, server.said()
    assert len(result(out)) == 3 + 3 * 4  # three checkpoints of four files
    return out


def result(folder: Path) -> dict[str, bytes]:
    """Every file that must not depend on what happened on the way."""
    paths = [folder / name for name in ("config.toml", "tokenizer.json", "model.safetensors")]
    paths += (folder / "checkpoints").rglob("*")
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths) if path.is_file()
    }


def curve(folder: Path) -> list[tuple[str, int, float]]:
    """What was learned, as the log has it."""
    entries = map(json.loads, (folder / "metrics.jsonl").read_text().split("\n")[:-1])
    return [(e["kind"], e["step"], e["loss"]) for e in entries if e["kind"] in ("train", "valid")]


def assert_same(folder: Path, straight: Path) -> None:
    ours, theirs = result(folder), result(straight)
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert curve(folder) == curve(straight)
    strays = [path.name for path in folder.rglob(".*")]
    assert strays == []


def inside_a_save(folder: Path) -> bool:
    """Told by what the kill left behind."""
    checkpoints = folder / "checkpoints"
    return checkpoints.is_dir() and any(path.name[0] == "." for path in checkpoints.iterdir())


def newest(out: Path) -> int:
    return max((int(p.name[5:]) for p in (out / "checkpoints").glob("step-*")), default=0)


def kill_until_done(server: Server, words: list[str], out: Path, kills: int) -> tuple[int, int]:
    """Returns how often it was killed, and how often of these inside a save."""
    chosen = random.Random(kills)
    killed = inside = 0
    for number in range(kills):
        if number % 3 == 0:  # at some moment
            before, child = newest(out), server.start(words)
            moment = time.monotonic() + chosen.uniform(0.0, 0.5)
            while time.monotonic() < moment and newest(out) < before + 5:  # not too many steps
                time.sleep(0.002)
            os.kill(child, signal.SIGKILL)
        else:  # at some point where something is made durable, or where that is part of a save
            place = ["os:fsync", "headway.training.snapshot:sync"][number % 3 - 1]
            server.start(words, hook(place, chosen.randint(1, 15), signal=signal.SIGKILL))
        if server.wait() == 0:
            break  # all steps were done; the caller sees the count
        killed += 1
        inside += inside_a_save(out)
    assert server.run(words) == 0, server.said()
    return killed, inside


@pytest.mark.parametrize(
    ("kills", "more"),
    [
        (8, ["train.steps=60", "train.eval_every=30"]),
        pytest.param(
            200,
            ["train.steps=1000", "train.eval_every=30", "train.ema=0.9"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_killed_many_times_it_ends_with_the_same_bytes(
    server: Server, command: list[str], out: Path, kills: int, more: list[str]
) -> None:
    words = [*command, *more, "--out"]
    straight = out.with_name("straight")
    assert server.run([*words, str(straight)]) == 0, server.said()
    killed, inside = kill_until_done(server, [*words, str(out)], out, kills)
    assert killed == kills
    assert inside >= kills / 4
    assert_same(out, straight)


def test_killed_outside_of_training_it_resumes_too(
    server: Server, command: list[str], straight: Path, out: Path
) -> None:
    """While data is prepared, settings are written, weights are compared, the model is written."""
    places = [
        ("headway.data.prepare:train_vocabularies", 1),
        ("headway.data.prepare:write_manifest", 1),
        *[("headway.storage:sync", count) for count in (1, 2, 3, 4)],
        (EVALUATE, 2),
        ("headway.training.trainer:average_of", 1),
        ("headway.training.run:save_weights", 1),
        ("headway.models.folder:_checksum", 1),
        ("headway.training.run:write_report", 1),
    ]
    words = [*command, "--out", str(out)]
    for place, count in places:
        code = server.run(words, hook(place, count, signal=signal.SIGKILL))
        assert code == -signal.SIGKILL, (place, server.said())
    assert server.run(words) == 0, server.said()
    assert_same(out, straight)


@pytest.mark.parametrize(
    ("place", "count", "number"),
    [
        ("headway.tasks.translate:prepare", 1, signal.SIGTERM),
        ("headway.data.prepare:train_vocabularies", 1, signal.SIGINT),
        ("headway.training.trainer:build_model", 1, signal.SIGTERM),
        (STEP, 1, signal.SIGUSR1),
        (STEP, 7, signal.SIGINT),
        (STEP, 10, signal.SIGTERM),  # an evaluation is due after it
        (STEP, STEPS, signal.SIGTERM),
        (EVALUATE, 1, signal.SIGTERM),
        (EVALUATE, 4, signal.SIGTERM),  # the comparison at the end
        ("headway.tasks.seq2seq_scores:text_scores", 2, signal.SIGTERM),
        (SAVE, 6, signal.SIGTERM),
        (SAVE, STEPS, signal.SIGTERM),
        ("headway.training.run:save_weights", 1, signal.SIGTERM),
    ],
)
def test_a_stop_is_answered_with_75_and_costs_nothing(
    server: Server,
    command: list[str],
    straight: Path,
    out: Path,
    place: str,
    count: int,
    number: signal.Signals,
) -> None:
    words = [*command, "--out", str(out)]
    code = server.run(words, hook(place, count, signal=number))
    if place.endswith("save_weights"):
        assert code == 0, server.said()  # done before the stop could be heeded
    else:
        assert code == 75, server.said()
        assert number.name in server.said()
        assert "Traceback" not in server.said()
        assert server.run(words) == 0, server.said()
    assert_same(out, straight)


def test_stopped_again_and_again_it_ends_with_the_same_bytes(
    server: Server, command: list[str], straight: Path, out: Path
) -> None:
    words = [*command, "--out", str(out)]
    for count in (3, 2, 1, 1):
        assert server.run(words, hook(STEP, count, signal=signal.SIGTERM)) == 75, server.said()
    assert server.run(words) == 0, server.said()
    assert_same(out, straight)


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    server: Server, command: list[str], straight: Path, out: Path
) -> None:
    words = [*command, "--out", str(out)]
    assert server.run(words, hook(STEP, 9, signal=signal.SIGKILL)) == -signal.SIGKILL
    for name in ("step-8/model.safetensors", "step-7/state.json"):
        path = out / "checkpoints" / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    assert server.run(words) == 0, server.said()
    warnings = [line for line in server.said().splitlines() if line.startswith("warning: ")]
    assert sum("checkpoints/step-" in line for line in warnings) == 2
    assert re.search(r"\bstep 6\b(?![/:])", server.said())  # where the run resumes
    assert_same(out, straight)


def test_a_full_disk_during_a_save_costs_that_save_only(
    server: Server, command: list[str], straight: Path, out: Path
) -> None:
    full = [hook(SAVE, count, errno=errno.ENOSPC) for count in (2, 5, 6)]
    words = [*command, "--out", str(out)]
    assert server.run(words, *full) == 1, server.said()
    assert server.said().count(os.strerror(errno.ENOSPC)) == 3
    last = server.said().splitlines()[-1]
    assert "2, 5, 6" in last
    assert f"step {STEPS}" not in last  # nothing to resume: the same command would do nothing
    assert_same(out, straight)


def test_a_full_disk_keeps_the_last_step_and_reports_the_loss(
    server: Server, command: list[str], straight: Path, out: Path
) -> None:
    """What is in memory is the best so far, and the last checkpoint is old."""
    words = [*command, "--out", str(out)]
    assert server.run(words, hook(SAVE, 7, onward=True, errno=errno.ENOSPC)) == 1, server.said()
    printed = server.said().splitlines()[-1]
    assert "7, 8, 9, 10, 11, …" in printed
    assert "model.safetensors" in printed
    assert "step 6" in printed
    last = load_file(straight / f"checkpoints/step-{STEPS}/model.safetensors")
    kept = load_file(out / "model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in last.items())
    assert server.run(words) == 0, server.said()
    assert_same(out, straight)


@pytest.mark.parametrize(
    ("place", "count", "onward", "lost"),
    [
        ("headway.training.run:save_weights", 1, False, "model.safetensors"),
        ("headway.training.run:write_report", 1, True, "report.html"),
        ("headway.training.log:_append", 3, True, "metrics.jsonl"),
    ],
)
def test_what_the_disk_refuses_at_the_end_is_named_and_the_same_command_makes_it(
    server: Server, command: list[str], straight: Path, out: Path, place: str, count: int,
    onward: bool, lost: str,
) -> None:  # fmt: skip
    words = [*command, "--out", str(out)]
    full = hook(place, count, onward=onward, errno=errno.ENOSPC)
    assert server.run(words, full) == 1, server.said()
    printed = server.said().splitlines()[-1]
    assert lost in printed
    assert f"step {STEPS}" in printed
    assert "Traceback" not in server.said()
    assert server.run(words) == 0, server.said()
    assert (out / lost).exists()
    assert result(out) == result(straight)


def test_a_stop_whose_save_fails_does_not_promise_that_nothing_is_lost(
    server: Server, command: list[str], straight: Path, out: Path
) -> None:
    words = [*command, "--out", str(out), "train.save_every=5"]
    faults = [hook(STEP, 8, signal=signal.SIGTERM), hook(SAVE, 2, errno=errno.ENOSPC)]
    assert server.run(words, *faults) == 1, server.said()
    assert re.search(r"SIGTERM.*\bstep 8\b.*\bstep 5\b", server.said().splitlines()[-1])


@pytest.mark.parametrize(("place", "count"), [(STEP, 9), (SAVE, STEPS), (EVALUATE, 4)])
def test_a_run_folder_that_is_removed_in_mid_run_is_made_again_and_is_not_called_done(
    server: Server, command: list[str], straight: Path, out: Path, place: str, count: int
) -> None:
    """In a step, in the last save, in the comparison at the end."""
    words = [*command, "--out", str(out)]
    assert server.run(words, hook(place, count, remove=str(out))) == 1, server.said()
    printed = server.said().splitlines()[-1]
    assert str(out) in printed
    assert "model.safetensors" in printed
    assert "report.html" not in printed  # named at the end of a run that lost nothing
    assert main(["predict", str(out), "--device", "cpu", str(out / "config.toml")]) == 0
    assert server.run(words) == 0, server.said()
    last = f"checkpoints/step-{STEPS}/model.safetensors"
    assert (out / last).read_bytes() == (straight / last).read_bytes()


def test_nothing_is_written_where_another_folder_has_taken_the_place(tmp_path: Path) -> None:
    home = RunFolder(tmp_path / "run")
    with home.locked():
        assert home.exists()
        (tmp_path / "run").rename(tmp_path / "moved")
        assert not home.exists()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").touch()
        with pytest.raises(FolderError, match=re.escape(str(tmp_path / "run"))):
            home.recreate()
        (tmp_path / "run" / "thesis.tex").unlink()
        home.recreate()
        assert home.exists()


def test_other_settings_in_the_same_folder_are_refused_by_name(
    server: Server, command: list[str], out: Path
) -> None:
    words = [*command, "--out", str(out)]
    assert server.run(words, hook(STEP, 3, signal=signal.SIGTERM)) == 75
    before = {p: p.read_bytes() for p in (out).rglob("*") if p.is_file()}
    assert server.run([*words, "train.lr=0.5"]) == 2
    assert re.search(r"train\.lr\b.*\b0\.5\b", server.said())
    assert "--restart" in server.said()
    after = {p: p.read_bytes() for p in (out).rglob("*") if p.is_file()}
    assert after == before
    assert server.run([*words, "train.steps=2", "--restart"]) == 0, server.said()


def test_two_runs_in_one_folder_are_refused(server: Server, command: list[str], out: Path) -> None:
    out.mkdir()
    other = os.open(out, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)  # as the other run holds it
    try:
        assert server.run([*command, "--out", str(out)]) == 2
    finally:
        os.close(other)
    assert str(out) in server.said()
    assert list(out.iterdir()) == []
