"""Runs that start from a run or from a teacher, and one whose settings are in old words: killed or
stopped anywhere and run again, they end with the same bytes. `tests/contract` breaks off a run of
every task."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest
from safetensors import safe_open

from .fork_server import Server, hook
from .shown import write_images
from .test_kill import SAVE, STEP, assert_same

STEPS = 6
WORDS = ["the", "old", "red", "house", "tree", "dog", "cat", "sees", "finds", "never", "here"]
TRAINING = [
    f"train.steps={STEPS}", "train.batch_tokens=120", "train.micro_tokens=60", "train.save_every=1",
    "train.eval_every=3", "train.keep=3", "train.average=3", "data.valid_size=8",
]  # fmt: skip
MODEL = ["model.family=encoder", "model.d_model=16", "model.n_layers=2", "model.n_heads=2",
         "model.d_ff=24", "model.dropout=0.1", "tokenizer.kind=words"]  # fmt: skip
IMAGES = [*(word for word in MODEL[1:] if word.startswith("model.")), "augment.rand=1",
       "augment.cutmix=1"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, str]:
    chosen = random.Random(0)
    lines = [" ".join(chosen.choices(WORDS, k=chosen.randint(3, 8))) for _ in range(100)]
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    labelled = "".join(f"{line}\t{'dog' in line}\n" for line in lines)
    (folder / "labelled.tsv").write_text(labelled)
    images = write_images(folder / "image", 48)
    return {
        "text": str(folder / "text"),
        "labelled": str(folder / "labelled.tsv"),
        "image": images,
    }


@pytest.fixture(scope="module")
def filled(server: Server, folder: Path, files: dict[str, str]) -> Path:
    """A run that others start from."""
    out = folder / "filled"
    words = ["train", "fill", "--device", "cpu", "--text", files["text"], "data.unit=line"]
    assert server.run([*words, *MODEL, *TRAINING, "--out", str(out)]) == 0, server.said()
    return out


def command(kind: str, files: dict[str, str], filled: Path) -> list[str]:
    fill = ["--device", "cpu", "--text", files["text"], "data.unit=line", *TRAINING]
    classify = ["--device", "cpu", "--text", files["labelled"], *TRAINING, "--from", str(filled)]
    images = ["--device", "cpu", "--media", files["image"], *IMAGES, *TRAINING]
    return {
        "lora": ["train", "classify", *classify, "lora.rank=2"],
        "frozen": ["train", "classify", *classify, "start.freeze=1", "start.layer_decay=0.5"],
        "distil": ["train", "distil", "--teacher", str(filled), *fill],
        "images": ["train", "classify", *images],
    }[kind]


@pytest.mark.parametrize("kind", ["lora", "frozen", "distil", "images"])
def test_killed_and_stopped_it_ends_with_the_same_bytes(
    server: Server, folder: Path, files: dict[str, str], filled: Path, kind: str
) -> None:
    words = command(kind, files, filled)
    straight, out = folder / f"{kind}-straight", folder / f"{kind}-killed"
    untimed = hook("headway.tasks.distil:_speed", 1, onward=True, gives=1)  # takes seconds
    assert server.run([*words, "--out", str(straight)], untimed) == 0, server.said()
    words = [*words, "--out", str(out)]
    for place, count, number in (
        (STEP, 2, signal.SIGKILL),
        (SAVE, 2, signal.SIGKILL),
        (STEP, 1, signal.SIGTERM),
        *([("headway.training.trainer:average_of", 1, signal.SIGKILL)] if kind == "frozen" else []),
    ):
        code = server.run(words, hook(place, count, signal=number))
        assert code == (75 if number == signal.SIGTERM else -number), server.said()
    assert server.run(words, untimed) == 0, server.said()
    assert_same(out, straight)


def test_a_run_with_lora_is_saved_as_a_plain_model(
    server: Server, folder: Path, files: dict[str, str], filled: Path
) -> None:
    words = command("lora", files, filled)
    out = folder / "lora-plain"
    assert server.run([*words, "--out", str(out)]) == 0, server.said()
    assert re.search(r"\bwords \(\d+ tensors\)", server.said())  # left out
    with safe_open(out / "model.safetensors", framework="pt") as file:
        assert not any("lora" in name for name in file.keys())  # noqa: SIM118
    newest = max((out / "checkpoints").iterdir(), key=lambda path: int(path.name[5:]))
    with safe_open(newest / "model.safetensors", framework="pt") as file:
        assert any("lora" in name for name in file.keys())  # noqa: SIM118
    assert server.run(["predict", str(out), files["text"]]) == 0, server.said()
