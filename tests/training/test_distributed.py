"""Several processes train as one does: the same losses, one of them writes, all stop together."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headway.cli.train import AGAIN
from headway.errors import UserError
from headway.nn.devices import pick_device
from headway.training.distributed import Distributed
from headway.training.feed import part_tokens

from .fork_server import Server, hook
from .rank_server import RankServer, free_port
from .toy import contents

STEPS = 12
WORDS = ["the", "old", "red", "house", "tree", "dog", "cat", "sees", "finds", "never", "here"]
SETTINGS = [
    "model.preset=transformer-test",
    "model.n_layers=1",
    "model.decoder.n_layers=1",
    "model.dropout=0.0",
    "tokenizer.kind=words",
    f"train.steps={STEPS}",
    "train.batch_tokens=60",  # of one part in a single process
    "train.save_every=6",
    "train.eval_every=6",
    "train.metric=loss",
    "train.lr=1e-3",
    "data.valid_size=8",
    "decode.max_len=3",
]
STEP = "headway.training.step:Step.finish"
EVALUATE = "headway.tasks.seq2seq:Seq2SeqObjective.evaluate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def server(server: Server, folder: Path) -> RankServer:
    return RankServer(server, folder)


@pytest.fixture(scope="module")
def command(folder: Path) -> list[str]:
    chosen = random.Random(0)
    lines = [chosen.choices(WORDS, k=chosen.randint(3, 8)) for _ in range(100)]
    (folder / "a").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "b").write_text("".join(" ".join(line[::-1]) + "\n" for line in lines))
    data = ["--source", str(folder / "a"), "--target", str(folder / "b")]
    return ["train", "translate", "--device", "cpu", *data, *SETTINGS]


@pytest.fixture
def out(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder)) / "run"


@pytest.fixture(scope="module")
def alone(server: RankServer, command: list[str], folder: Path) -> Path:
    """One process, in steps of one part."""
    out = folder / "alone"
    assert server.run([*command, "--out", str(out)], world=1) == [0], server.said(0)
    return out


@pytest.fixture(scope="module")
def together(server: RankServer, command: list[str], folder: Path) -> Path:
    out = folder / "together"
    assert server.run([*command, "--out", str(out)]) == [0, 0], server.said(0) + server.said(1)
    assert re.search(r"\bfp32\b.*\bcpu\b.*\b2\b", server.said(0))
    assert server.said(1) == ""
    return out


def curve(folder: Path) -> list[tuple[str, int, float]]:
    entries = map(json.loads, (folder / "metrics.jsonl").read_text().split("\n")[:-1])
    return [(e["kind"], e["step"], e["loss"]) for e in entries if e["kind"] in ("train", "valid")]


def assert_follows(ours: Path, theirs: Path) -> None:
    """The same losses in the log, and weights close to the same."""
    ours_at, theirs_at = ([entry[:2] for entry in curve(x)] for x in (ours, theirs))
    assert ours_at == theirs_at
    assert len(theirs_at) == STEPS + 2
    for (_, _, a), (_, _, b) in zip(curve(ours), curve(theirs), strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    for file in ("model.safetensors", f"checkpoints/step-{STEPS}/model.safetensors"):
        mine, other = load_file(ours / file), load_file(theirs / file)
        for name, tensor in other.items():
            assert (mine[name] - tensor).norm() <= 1e-3 * tensor.norm(), name


def test_two_ranks_follow_the_run_of_one(alone: Path, together: Path) -> None:
    assert_follows(together, alone)


def test_each_rank_has_a_part_of_a_step(server: RankServer, command: list[str], out: Path) -> None:
    """Also where one process would take the step as one part. And when one rank breaks, the
    others end too and say why."""
    broken = hook("headway.training.step:Step.add", 1, errno=errno.EIO)
    assert server.run([*command, "--out", str(out)], rank_1=broken) == [2, 1]
    assert "rank" in server.said(0)
    assert os.strerror(errno.EIO) in server.said(1)


def test_more_ranks_than_parts_do_no_harm(
    server: RankServer, command: list[str], alone: Path, out: Path
) -> None:
    assert server.run([*command, "--out", str(out)], world=3) == [0, 0, 0]
    assert_follows(out, alone)


@pytest.mark.parametrize(
    ("place", "count", "ranks"),
    [
        (STEP, 5, [1]),
        pytest.param(STEP, 5, [0], marks=pytest.mark.slow),
        pytest.param(STEP, 7, [0, 1], marks=pytest.mark.slow),
        (EVALUATE, 1, [0]),  # while the other waits for the result
        (EVALUATE, 3, [0]),  # the comparison at the end
    ],
)
def test_a_stop_is_agreed_and_costs_nothing(
    server: RankServer,
    command: list[str],
    together: Path,
    out: Path,
    place: str,
    count: int,
    ranks: list[int],
) -> None:
    words = [*command, "--out", str(out)]
    hooks = {f"rank_{rank}": hook(place, count, signal=signal.SIGTERM) for rank in ranks}
    assert server.run(words, **hooks) == [AGAIN, AGAIN], server.said(0) + server.said(1)
    assert re.search(r"(?i)\bsig(nal|term)\b", server.said(0))
    assert "Traceback" not in server.said(0) + server.said(1)
    newest = max(int(path.name.split("-")[1]) for path in (out / "checkpoints").iterdir())
    assert server.run(words) == [0, 0], server.said(0) + server.said(1)
    assert re.search(rf"\bstep {newest}\b(?![/:])", server.said(0))  # where the run resumes
    assert curve(out) == curve(together)
    assert contents(out) == contents(together)


def test_one_rank_resumes_a_run_of_two(
    server: RankServer, command: list[str], alone: Path, out: Path
) -> None:
    words = [*command, "--out", str(out)]
    assert server.run(words, rank_0=hook(STEP, 5, signal=signal.SIGTERM)) == [AGAIN, AGAIN]
    assert server.run(words, world=1) == [0]
    assert_follows(out, alone)


def test_an_error_on_one_rank_is_reported_once_and_ends_all(
    server: RankServer, command: list[str], out: Path
) -> None:
    out.mkdir()
    (out / "thesis.tex").touch()
    assert server.run([*command, "--out", str(out)]) == [2, 2]
    assert str(out) in server.said(0)
    assert str(out) not in server.said(1)
    assert "rank" in server.said(1)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_a_budget_is_measured_together(server: RankServer, command: list[str], out: Path) -> None:
    words = [word for word in command if not word.startswith("train.steps")]
    assert server.run([*words, "--budget", "15s", "--out", str(out)]) == [0, 0], server.said(0)


def test_torchrun_starts_and_stops_it(
    server: RankServer, command: list[str], together: Path, out: Path
) -> None:
    """The launcher itself exits with 1 whatever its processes say, and prints their codes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words = [*command, "--out", str(out)]
    process = subprocess.Popen(
        [*launcher, "-m", "headway", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 1):
        time.sleep(0.001)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    os.kill(int(children.read_text().split()[1]), signal.SIGTERM)
    _, found = process.communicate(timeout=300)
    assert process.returncode == 1, found
    assert "exitcode  : 75" in found
    assert server.run(words) == [0, 0], server.said(0)
    assert curve(out) == curve(together)
    assert contents(out) == contents(together)


JOIN = """
import os, time
from datetime import timedelta
from pathlib import Path
from headway.training import distributed as ranks
ranks.JOINING = timedelta(seconds=5)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch has much to say about it
go_on = Path({go_on!r})
start = time.monotonic()
try:
    mine = ranks.Distributed.start("cpu")
    print("joined", flush=True)
    if {dies}:
        os._exit(9)
    while mine.is_first and not go_on.exists():
        time.sleep(0.01)  # busy with something, for longer than joining may take
    mine.wait()
except ranks.RankLost as error:
    print(f"{{time.monotonic() - start:.1f}} {{error}}", flush=True)
"""


def test_a_rank_that_cannot_rejoin_ends_soon_with_an_error(
    server: RankServer, tmp_path: Path
) -> None:
    """One is killed and started again, as a launcher with restarts does, while the other is still
    in the old group, where it may wait for long: for the new one there is no place."""
    go_on = tmp_path / "go on"
    lives, dies = (JOIN.format(go_on=str(go_on), dies=dies) for dies in (False, True))
    port = free_port()
    first, killed = server.start(lives, 0, 2, port), server.start(dies, 1, 2, port)
    try:
        assert server.server.wait(killed) == 9, server.said(1)
        assert server.said(1) == "joined\n"
        assert server.server.wait(server.start(lives, 1, 2, port)) == 0
    finally:
        go_on.touch()
    seconds, _, error = server.said(1).partition(" ")
    assert re.search(r"\brank 1\b.*\b2\b.*\b5 s\b", error)
    assert float(seconds) < 60  # five, and what a busy machine adds
    assert server.server.wait(first) == 0
    assert server.said(0).startswith("joined\n")  # in time, and nobody gave up on it since
    assert "rank" in server.said(0)


# Without other processes


def test_one_process_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    ranks = Distributed.start("cpu")
    assert ranks == Distributed(rank=0, world=1, device=torch.device("cpu"))
    tensor = torch.ones(3)
    ranks.sum_([tensor])
    ranks.wait()
    ranks.close()
    assert tensor.tolist() == [1, 1, 1]
    assert (ranks.any(True), ranks.any(False), ranks.broadcast("x")) == (True, False, "x")


def test_every_rank_gets_a_part_of_a_step() -> None:
    assert part_tokens(2048, 2048, Distributed(world=1)) == 2048
    assert 1024 <= part_tokens(2048, 2048, Distributed(world=2)) <= 1100
    assert part_tokens(512, 2048, Distributed(world=2)) == 512
    assert part_tokens(10, 3, Distributed(world=8)) == 1


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="'gpu'"):
        pick_device("gpu")
    with pytest.raises(UserError, match=r"device=.mps..*device=.cpu."):
        pick_device("mps")
    with pytest.raises(UserError, match=r"device=.xpu..*\bCUDA\b"):
        pick_device("xpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match=r"device=.cuda."):
            pick_device("cuda")
        assert pick_device("auto") == torch.device("cpu")
