"""The loop under a budget: it ends in time, and a run that was killed ends with the same weights as
one that made the same decisions without a break."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.errors import Stopped
from headway.nn.stack import Stack
from headway.training.budget import PLAN, Budget, Decision, Journal, UnlimitedEvaluations
from headway.training.loop import Loop, interrupting
from headway.training.schedule import learning_rate, schedule_steps

from .toy import N, ToyTask, toy_loop, weights

TOTAL = 300.0


class Killed(BaseException):
    """Nobody gets to save anything."""


class Clock:
    t = 0.0

    def now(self) -> float:
        return self.t


def loop_of(
    folder: Path, step_s: Callable[[float], float], *, killed_at: int | None = None
) -> tuple[Loop, Clock]:
    """Where a step takes so long at a time, an evaluation as long as four, and a kill comes in the
    middle of a step."""
    clock, task, done = Clock(), ToyTask(), [0]

    def on_loss(loss: Tensor, rows: Tensor) -> Tensor:
        if len(rows) < 6:  # of a step
            done[0] += 1
            if done[0] == killed_at:
                raise Killed
            clock.t += step_s(clock.t)
        else:
            clock.t += 4 * step_s(clock.t) * len(rows) / N
        return loss

    task.on_loss = on_loss
    folder.mkdir(exist_ok=True)
    loop = toy_loop(folder, task=task, steps=100, dropout=0.1)
    wanted = UnlimitedEvaluations(n_quick=N, n_valid=N)
    loop.budget = Budget(TOTAL, wanted, Journal(folder / PLAN), started=0.0, now=clock.now)
    loop.budget.timed(step_s(0.0), 4 * step_s(0.0) / N)
    loop.budget.save_s = 0.0
    loop.lr_at = lambda step: 0.02 * (1.0 - step / (loop.settings.steps + 1))
    return loop, clock


def trained(folder: Path, step_s: Callable[[float], float]) -> Loop:
    loop, _ = loop_of(folder, step_s)
    loop.resume()
    loop.run()
    return loop


def test_it_ends_in_time_and_saves_its_last_step(tmp_path: Path) -> None:
    loop, clock = loop_of(tmp_path, lambda t: 2.0 if t < 100 else 10.0)
    loop.run()
    assert 0.85 * TOTAL <= clock.t <= TOTAL
    assert loop.checkpoints.paths()[-1].name == f"step-{loop.state.step}"
    assert 40 < loop.state.step < 80
    rates = loop.log.values("train", "lr")  # type: ignore[attr-defined]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.002


@pytest.mark.parametrize("killed_at", [1, 9, 26, 43])
def test_a_killed_run_goes_the_way_that_is_written_down(tmp_path: Path, killed_at: int) -> None:
    first, _ = loop_of(tmp_path / "a", lambda t: 3.0, killed_at=killed_at)
    with pytest.raises(Killed):
        first.run()
    before = Journal(tmp_path / "a" / PLAN).plans
    again = trained(tmp_path / "a", lambda t: 5.0)  # another speed, other decisions from here on
    after = Journal(tmp_path / "a" / PLAN).plans
    assert {step: after[step] for step in before} == before
    # The same decisions, no break, and a machine that would have led to others.
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / PLAN, tmp_path / "b" / PLAN)
    Journal(tmp_path / "b" / PLAN).add("final", 0.0, examples=0, careful=False)
    whole = trained(tmp_path / "b", lambda t: 0.01)
    assert whole.state.step == again.state.step
    assert whole.state.best == again.state.best
    assert torch.equal(weights(whole), weights(again))


def test_a_run_that_ended_is_not_trained_further(tmp_path: Path) -> None:
    first = trained(tmp_path, lambda t: 3.0)
    again, _ = loop_of(tmp_path, lambda t: 3.0)
    again.resume()
    again.run()
    assert again.state.step == first.state.step
    assert torch.equal(weights(first), weights(again))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "noam", "trapezoid", "constant"])
def test_a_set_warmup_reaches_the_peak_despite_replanning(tmp_path: Path, schedule: str) -> None:
    """A first plan of 50 steps, because nobody knew; then 5,000, and at step 1,000 only 3,000."""
    loop = toy_loop(tmp_path, steps=50, warmup=400, schedule=schedule, lr=1.0)
    loop.lr_at = learning_rate(loop.settings, schedule_steps(loop.settings), 64)
    loop.plan = Decision(step=0, steps=50, until=50, examples=0, progress=0.0, warmup=400)
    rates = [loop._rate(1)]
    for step in range(1, 3000):
        assert loop.plan is not None
        if steps := {1: 5000, 1000: 3000}.get(step):
            progress = loop.plan.progress_at(step)
            loop.plan = replace(loop.plan, step=step, steps=steps, progress=progress)
        rates.append(loop._rate(step + 1))
    assert rates[:400] == pytest.approx([step / 400 for step in range(1, 401)])
    assert max(abs(b - a) for a, b in pairwise(rates)) < 0.005
    if schedule in ("linear", "cosine", "trapezoid"):
        assert rates[-1] < 0.005


def test_a_stop_is_noticed_during_a_search() -> None:
    stack, passes = Stack([]), [0]

    def asked() -> bool:
        passes[0] += 1
        return passes[0] > 2

    with interrupting(nn.Sequential(stack), asked):
        stack(torch.zeros(1, 1), None)
        stack(torch.zeros(1, 1), None)
        with pytest.raises(Stopped):
            stack(torch.zeros(1, 1), None)
    assert passes == [3]
    stack(torch.zeros(1, 1), None)
    assert passes == [3]
