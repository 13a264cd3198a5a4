"""A transcriber whose recordings are changed at random: killed, stopped and run again, it ends with
the same bytes."""

from __future__ import annotations

import signal
from pathlib import Path

from .fork_server import Server, hook
from .spoken import texts, write_manifest
from .test_kill import SAVE, STEP, assert_same

WORDS = [
    "--device", "cpu", "model.d_model=16", "model.n_layers=1", "model.n_decoder_layers=1",
    "model.n_heads=2", "model.d_ff=24", "model.dropout=0.1", "model.sound.bands=12",
    "augment.bands=1", "augment.spans=1", "augment.speed=0.1", "augment.noise=0.1",
    "augment.gain_db=3", "train.steps=6", "train.batch_tokens=300", "train.micro_tokens=150",
    "train.save_every=1", "train.eval_every=3", "train.keep=3", "train.average=3",
    "data.valid_size=6", "decode.max_len=8",
]  # fmt: skip


def test_killed_and_stopped_it_ends_with_the_same_bytes(server: Server, tmp_path: Path) -> None:
    list_of_all = write_manifest(tmp_path, "all", texts(60, seed=1))
    words = ["train", "transcribe", "--media", list_of_all, *WORDS]
    straight, out = tmp_path / "straight", tmp_path / "killed"
    assert server.run([*words, "--out", str(straight)]) == 0, server.said()
    words += ["--out", str(out)]
    for place, count, number in (
        (SAVE, 2, signal.SIGKILL),
        (STEP, 1, signal.SIGTERM),
    ):
        code = server.run(words, hook(place, count, signal=number))
        assert code == (75 if number == signal.SIGTERM else -number), server.said()
    assert server.run(words) == 0, server.said()
    assert_same(out, straight)
