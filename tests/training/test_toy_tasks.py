"""Copying and reversing, learned without a mistake in under two minutes, by the real commands."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.tasks.history import read_history

SYMBOLS = [chr(ord("a") + n) for n in range(20)]
SETTINGS = [
    "tokenizer.kind=words",
    "model.d_model=64",
    "model.d_ff=256",
    "model.n_layers=2",
    "model.n_heads=4",
    "model.dropout=0.0",
    "train.label_smoothing=0.0",
    "train.batch_tokens=512",
    "train.steps=1000",
    "train.eval_every=250",
    "data.valid_size=200",
]


def lines(n: int, seed: int) -> list[tuple[str, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.choices(SYMBOLS, k=draw.randint(1, 8))) for _ in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, -1], ids=["copy", "reverse"])
def test_a_toy_task_is_learned_without_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int
) -> None:
    known = sorted(set(lines(20_000, seed=1)))
    unseen = sorted(set(lines(800, seed=2)) - set(known))
    assert len(unseen) > 400
    for name, chosen, way in (("a", known, 1), ("b", known, step), ("test", unseen, 1)):
        text = "".join(" ".join(line[::way]) + "\n" for line in chosen)
        (tmp_path / name).write_text(text)
    files = ["--source", f"{tmp_path}/a", "--target", f"{tmp_path}/b", "--out", f"{tmp_path}/run"]
    begun, used = time.monotonic(), time.process_time()
    assert main(["train", "translate", "--device", "cpu", *files, *SETTINGS]) == 0
    # On a machine that does other things too, the time that was used is what counts.
    assert min(time.monotonic() - begun, time.process_time() - used) < 120
    capsys.readouterr()
    assert main(["predict", f"{tmp_path}/run", f"{tmp_path}/test"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [" ".join(line[::step]) for line in unseen]


SHAPED = [
    "model.preset=transformer-base", "model.d_model=64", "model.d_ff=256", "model.n_heads=4",
    "model.dropout=0.0", "tokenizer.kind=words", "train.label_smoothing=0.0",
    "train.batch_tokens=512",
    "train.steps=400", "train.eval_every=200", "train.average=1", "train.metric=loss",
    "decode.beam=1", "decode.max_len=12", "data.valid_size=100",
]  # fmt: skip
"""As many layers as the paper's, with its block_layout and its schedule, and very few steps."""


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 0.0198], ids=["its own rate", "a rate far too high"])
def test_the_papers_shape_learns_in_few_steps_or_warns(tmp_path: Path, rate: float | None) -> None:
    """The high one is what its formula gives a warm-up of a tenth of these steps."""
    chosen = sorted(set(lines(8000, seed=1)))
    for name, way in (("a", 1), ("b", -1)):
        (tmp_path / name).write_text("".join(" ".join(line[::way]) + "\n" for line in chosen))
    words = ["--source", f"{tmp_path}/a", "--target", f"{tmp_path}/b", "--out", f"{tmp_path}/run"]
    words += SHAPED + ([] if rate is None else [f"train.lr={rate}", "train.warmup=40"])
    assert main(["train", "translate", "--device", "cpu", *words]) == 0
    history = read_history(tmp_path / "run")
    [end] = history.end
    [loss] = [scores["loss"] for scores in end["scores"].values()]
    trivial = end["baselines"]["token frequencies"]["loss"]
    warned = [event for event in history.event if "train.lr=" in event["text"]]
    if rate is None:
        assert loss < 0.7 * trivial
        assert not warned
        assert end["advice"] is None
    else:
        assert loss > 0.9 * trivial
        assert len(warned) == 1
        assert warned[0]["step"] <= 240
