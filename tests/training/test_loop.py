"""The loop around a task that it has never heard of: what happens when, and that nothing is lost
whatever comes in between."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.errors import Stopped, UserError
from headway.specs.metrics import METRICS
from headway.training.distributed import Distributed
from headway.training.feed import StepItem
from headway.training.loop import Diverged, Loop, State, ranking

from .toy import (
    PER_EPOCH,
    PER_STEP,
    Events,
    N,
    ToyTask,
    contents,
    run_until_done,
    steps_of,
    toy_loop,
    weights,
)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on the power staying on, and forcing to a disk is slow."""
    for module in ("checkpoint", "snapshot"):
        monkeypatch.setattr(f"headway.training.{module}.sync", lambda path: None)


def log_of(loop: Any) -> Events:
    assert isinstance(loop.log, Events)
    return loop.log


def test_it_learns(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path, steps=200, eval_every=200, save_every=200, lr=0.03)
    state = loop.run()
    log = log_of(loop)
    assert log.values("valid", "loss")[0] < 0.1 * log.values("train", "loss")[0]
    assert state.targets == 40 * N
    assert (state.epoch, state.index) == (200 // PER_EPOCH, 0)


def test_events_of_a_training_happen_in_order(tmp_path: Path) -> None:
    """Train, look, keep; the last step is always looked at and kept."""
    loop = toy_loop(tmp_path, steps=7, eval_every=3, save_every=2, lr=0.001)
    loop.run()
    assert log_of(loop).order == [
        ("train", 1),
        ("train", 2), ("save", 2),
        ("train", 3), ("valid", 3), ("best", 3),
        ("train", 4), ("save", 4),
        ("train", 5),
        ("train", 6), ("valid", 6), ("best", 6),
        ("train", 7), ("valid", 7), ("best", 7),
    ]  # fmt: skip


@pytest.mark.parametrize(("eval_every", "save_every"), [(1, 1), (5, 2), (2, 5), (4, 4), (100, 100)])
def test_evaluations_and_saves_follow_their_intervals(
    tmp_path: Path, eval_every: int, save_every: int
) -> None:
    task = ToyTask()
    task.scores = lambda loss: {"loss": 1.0}  # only the first is the best
    loop = toy_loop(tmp_path, task=task, eval_every=eval_every, save_every=save_every)
    loop.run()
    log = log_of(loop)
    looked = sorted({*range(eval_every, 13, eval_every), 12})
    assert log.of("valid") == looked
    saves = sorted({*range(save_every, 13, save_every), 12, looked[0]})
    assert sorted(log.of("save") + log.of("best")) == saves
    assert log.of("best") == looked[:1]


def test_logged_numbers_are_those_of_the_step(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path, steps=3, lr=0.05)
    before = loop.loss_of(loop.model, torch.tensor(loop.objective.epoch(0)[0]))
    loop.run()
    first = log_of(loop).entries[0]
    assert first["loss"] == pytest.approx(before.sum.item() / PER_STEP, rel=1e-6)
    assert first["nll"] == pytest.approx(before.nll.item() / PER_STEP, rel=1e-6)
    assert first["lr"] == 0.05
    assert first["grad_norm"] > 0
    assert first["tokens_per_s"] > 0
    assert 0 <= first["stall"] <= 1


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    task = ToyTask()
    found = iter([3.0, 1.0, 2.0, 2.5, 1.5, 4.0])
    task.scores = lambda loss: {"loss": next(found)}
    loop = toy_loop(tmp_path, task=task, eval_every=2, save_every=2, keep=3)
    state = loop.run()
    assert steps_of(tmp_path) == [4, 8, 10, 12]
    best = loop.checkpoints.best_path()
    assert best is not None
    assert (best.name, state.best_step, state.best) == ("step-4", 4, [-1.0, -1.0])


def test_the_direction_of_a_metric_is_respected(tmp_path: Path) -> None:
    task = ToyTask()
    task.metric = METRICS["accuracy"]
    found = iter([(0.5, 1.0), (0.7, 2.0), (0.7, 1.9), (0.7, 3.0), (math.nan, 0.1), (0.6, 0.1)])
    task.scores = lambda loss: dict(zip(("accuracy", "loss"), next(found), strict=True))
    loop = toy_loop(tmp_path, task=task, eval_every=2)
    assert loop.run().best_step == 6  # the same as at 4, with less loss
    assert log_of(loop).values("valid", "best") == [True, True, True, False, False, False]


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_an_evaluation_that_is_not_a_number_is_worse_than_any(name: str) -> None:
    task = ToyTask()
    task.metric = METRICS[name]
    good = ranking({"loss": 5.0, "accuracy": 0.0}, task)
    bad = ranking({"loss": math.nan, "accuracy": 0.0}, task)
    assert good > bad
    assert not bad > good


def test_with_a_running_average_that_is_what_is_looked_at(tmp_path: Path) -> None:
    task, seen = ToyTask(), list[Tensor]()
    task.on_evaluate = lambda: seen.append(weights(loop).clone())
    loop = toy_loop(tmp_path, task=task, steps=4, eval_every=4, ema=0.9)
    loop.run()
    assert loop.ema is not None
    averages = torch.cat([average.flatten() for average in loop.ema.averages.values()])
    assert torch.equal(seen[0], averages)
    assert not torch.equal(weights(loop), averages)  # which goes on with its own


def test_it_stops_early_when_nothing_gets_better(tmp_path: Path) -> None:
    task = ToyTask()
    found = iter([3.0, 2.0, 2.5, 2.0, 1.0])
    task.scores = lambda loss: {"loss": next(found)}
    make = lambda: toy_loop(tmp_path, task=task, eval_every=2, patience=2)  # noqa: E731
    loop = make()
    assert loop.run().step == 8
    [line] = log_of(loop).said
    assert re.search(r"\b2\b", line)
    again = make()
    assert again.resume()
    assert again.run().step == 8  # and stays so


def test_gains_in_between_keep_it_going(tmp_path: Path) -> None:
    task = ToyTask()
    found = iter([3.0, 4.0, 2.0, 4.0, 1.0, 4.0])
    task.scores = lambda loss: {"loss": next(found)}
    assert toy_loop(tmp_path, task=task, eval_every=2, patience=2).run().step == 12


# Numbers that are none


def poisoned(task: ToyTask, *steps: int) -> ToyTask:
    """Its loss is not a number in these steps, counted from 1."""
    calls = 0

    def on_loss(loss: Tensor, rows: Tensor) -> Tensor:
        nonlocal calls
        if not torch.is_grad_enabled():
            return loss
        calls += 1
        return loss * math.nan if calls in steps else loss

    task.on_loss = on_loss
    return task


def test_a_step_that_is_not_a_number_is_skipped_and_counted(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path / "a", task=poisoned(ToyTask(), 3, 5, 6), steps=8)
    state = loop.run()
    assert (state.step, state.bad_steps, state.bad_in_a_row) == (8, 3, 0)
    assert len(log_of(loop).said) == 3
    # The weights are those of a run in which these steps had a rate of zero.
    other = toy_loop(tmp_path / "b", task=poisoned(ToyTask(), 3, 5, 6), steps=8, max_bad_steps=99)
    before: list[Tensor] = []
    finish = other._one_step

    def watched(feed: Any) -> Any:
        before.append(weights(other))
        return finish(feed)

    other._one_step = watched  # type: ignore[method-assign]
    other.run()
    assert torch.equal(weights(loop), weights(other))
    same = [torch.equal(a, b) for a, b in zip(before, [*before[1:], weights(other)], strict=True)]
    assert same == [False, False, True, False, True, True, False, False]


def test_too_many_in_a_row_stop_it_with_the_examples_at_hand(tmp_path: Path) -> None:
    found: list[tuple[StepItem, State]] = []
    loop = toy_loop(
        tmp_path,
        task=poisoned(ToyTask(), 2, 4, 5, 6),
        on_bad=lambda item, state: found.append((item, state)),
        save_every=100,
    )
    with pytest.raises(Diverged, match=r"\bstep 6\b.*\b3\b.*train\.lr\b"):
        loop.run()
    ((item, state),) = found
    assert (state.step, state.bad_steps) == (6, 4)
    assert [part.rows for part in item.parts] == [loop.objective.epoch(1)[0]]


@pytest.mark.parametrize("stop_after", [4, 5, 6])
def test_the_count_of_bad_steps_outlives_a_stop(tmp_path: Path, stop_after: int) -> None:
    """Also when the checkpoint is of the very step that was bad."""
    bad = (2, 4, 5)
    loop = toy_loop(
        tmp_path,
        task=poisoned(ToyTask(), *bad),
        save_every=1,
        stop_asked=lambda: loop.state.step == stop_after,
    )
    with pytest.raises(Stopped):
        loop.run()
    again = toy_loop(tmp_path, task=poisoned(ToyTask(), *(n - stop_after for n in bad)))
    assert again.resume()
    assert again.run().bad_steps == 3


def test_a_diverged_run_reports_it_again(tmp_path: Path) -> None:
    found: list[Any] = []

    def make() -> Any:
        return toy_loop(
            tmp_path,
            task=poisoned(ToyTask(), *range(1, 50)),
            save_every=1,
            on_bad=lambda item, state: found.append(item),
        )

    for _ in range(3):
        loop = make()
        loop.resume()
        with pytest.raises(Diverged):
            loop.run()
    assert found
    assert None not in found


# Out of memory


def no_room_on_a_gpu() -> None:
    raise torch.OutOfMemoryError("no room")


def no_room_on_a_cpu() -> None:
    torch.empty(1 << 58, dtype=torch.uint8)


def no_room_for_numpy() -> None:
    np.empty(1 << 58, np.uint8)


def short_of_memory(
    task: ToyTask, *calls: int, fail: Callable[[], None] = no_room_on_a_gpu
) -> ToyTask:
    """It runs out at these micro-batches, counted from 1."""
    made = 0

    def on_loss(loss: Tensor, rows: Tensor) -> Tensor:
        nonlocal made
        made += torch.is_grad_enabled()
        if torch.is_grad_enabled() and made in calls:
            fail()
        return loss

    task.on_loss = on_loss
    return task


@pytest.mark.parametrize("fail", [no_room_on_a_gpu, no_room_on_a_cpu, no_room_for_numpy])
@pytest.mark.parametrize("at", [1, 2, 7])  # in the second of two parts, too
def test_out_of_memory_halves_what_is_computed_at_a_time_and_changes_nothing(
    tmp_path: Path, at: int, fail: Callable[[], None]
) -> None:
    plain = toy_loop(tmp_path / "plain", micro_tokens=4)
    plain.run()
    task = short_of_memory(ToyTask(), at, fail=fail)
    loop = toy_loop(tmp_path / "short", task=task, micro_tokens=4)
    state = loop.run()
    assert (state.step, state.micro_tokens, state.targets) == (12, 2, plain.state.targets)
    [line] = log_of(loop).said
    assert re.search(r"\b2\b", line)
    assert set(task.cut_to) == {4, 2}
    assert (weights(loop) - weights(plain)).norm() <= 1e-6 * weights(plain).norm()
    ours, theirs = (log_of(x).values("train", "loss") for x in (loop, plain))
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_resumed_run_keeps_the_smaller_parts(tmp_path: Path) -> None:
    task = short_of_memory(ToyTask(), 3)
    loop = toy_loop(tmp_path / "a", task=task, stop_asked=lambda: loop.state.step == 5)
    with pytest.raises(Stopped):
        loop.run()
    again = toy_loop(tmp_path / "a")
    again.resume()
    again.run()
    assert again.objective.cut_to[0] == again.state.micro_tokens == PER_STEP // 2
    straight = toy_loop(tmp_path / "b", task=short_of_memory(ToyTask(), 3))
    straight.run()
    assert torch.equal(weights(again), weights(straight))


def test_running_out_twice_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path, task=short_of_memory(ToyTask(), 3, 6), micro_tokens=4, save_every=1)
    with pytest.raises(UserError, match=r"\b2\b.*train\.micro_tokens=1\b"):
        loop.run()
    assert steps_of(tmp_path)  # nothing was lost


def test_other_errors_of_torch_are_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    def fail() -> None:
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError, match="size"):
        toy_loop(tmp_path, task=short_of_memory(ToyTask(), 2, fail=fail)).run()


def test_running_out_while_batches_are_made_counts_too(tmp_path: Path) -> None:
    task, tries = ToyTask(), 0

    def on_batch(part: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            raise torch.OutOfMemoryError("no room")

    task.on_batch = on_batch
    assert toy_loop(tmp_path, task=task).run().step == 12


# Stopping and going on

KINDS: list[dict[str, Any]] = [
    {"dropout": 0.3},
    {"dropout": 0.3, "ema": 0.9},
    {"dropout": 0.3, "optimizer": "muon", "micro_tokens": 2},
    {"ema": 0.8, "micro_tokens": 3, "eval_every": 1, "save_every": 5, "patience": 4},
]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def unstopped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Loop, Path]:
    """The settings of a kind, a loop that ran with them, and its folder."""
    folder = tmp_path_factory.mktemp("unstopped")
    loop = toy_loop(folder, **request.param)
    loop.run()
    return request.param, loop, folder


@pytest.mark.parametrize("at", [1, 3, 4, PER_EPOCH, 8, 11, 12])
def test_stopped_at_a_step_it_ends_with_the_same_bits(
    tmp_path: Path, unstopped: tuple[dict[str, Any], Loop, Path], at: int
) -> None:
    """Mid-epoch, at an epoch's end, where an evaluation or a save is due, and after the last."""
    kind, straight, folder = unstopped
    task = ToyTask()
    task.heeds = False  # the loop itself has to
    loop = toy_loop(
        tmp_path / "stopped", task=task, stop_asked=lambda: loop.state.step == at, **kind
    )
    if at == 12:
        loop.run()
    else:
        with pytest.raises(Stopped):
            loop.run()
    assert max(steps_of(tmp_path / "stopped")) == at
    again = toy_loop(tmp_path / "stopped", **kind)
    assert again.resume()
    assert again.state.step == at
    again.run()
    assert_same(again, straight, tmp_path / "stopped", folder)
    history = log_of(loop).order + log_of(again).order
    for event in ("valid", "train"):
        assert [s for k, s in history if k == event] == log_of(straight).of(event)


def assert_same(ours: Any, theirs: Any, our_folder: Path, their_folder: Path) -> None:
    assert torch.equal(weights(ours), weights(theirs))
    assert ours.state == theirs.state
    assert contents(our_folder) == contents(their_folder)


def test_stopped_during_an_evaluation_it_does_that_again(
    tmp_path: Path, unstopped: tuple[dict[str, Any], Loop, Path]
) -> None:
    kind, straight, folder = unstopped
    task = ToyTask()
    asked = False

    def ask() -> None:
        nonlocal asked
        asked = True

    task.on_evaluate = ask
    loop = toy_loop(tmp_path / "stopped", task=task, stop_asked=lambda: asked, **kind)
    with pytest.raises(Stopped):
        loop.run()
    at = kind.get("eval_every", 4)
    assert log_of(loop).order[-1] == ("pass", at)
    assert not log_of(loop).of("valid")
    own = toy_loop(tmp_path / "stopped", **kind)
    assert own.resume()
    assert (own.state.step, own.state.evaluated) == (at, 0)
    own.run()
    assert log_of(own).order[0] == ("valid", at)
    assert_same(own, straight, tmp_path / "stopped", folder)


def test_stopped_after_every_step_it_ends_with_the_same_bits(
    tmp_path: Path, unstopped: tuple[dict[str, Any], Loop, Path]
) -> None:
    kind, straight, folder = unstopped

    def make() -> Any:
        loop = toy_loop(tmp_path / "stopped", stop_asked=lambda: loop.state.step > begun(), **kind)
        begun: Callable[[], int] = lambda: newest  # noqa: E731
        newest = max(steps_of(tmp_path / "stopped"), default=0)
        return loop

    done = run_until_done(make)
    assert_same(done, straight, tmp_path / "stopped", folder)


def test_it_stops_before_the_first_step(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path, stop_asked=lambda: True)
    with pytest.raises(Stopped):
        loop.run()
    again = toy_loop(tmp_path)
    assert again.resume()
    assert again.run().step == 12


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    toy_loop(tmp_path).run()
    before = contents(tmp_path)
    again = toy_loop(tmp_path)
    assert again.resume()
    again.run()
    assert log_of(again).order == []
    assert contents(tmp_path) == before


def test_an_error_of_the_task_comes_through_and_loses_nothing(tmp_path: Path) -> None:
    task = ToyTask()

    def broken(loss: Tensor, rows: Tensor) -> Tensor:
        if loop.state.step == 6:
            raise ZeroDivisionError("task")
        return loss

    task.on_loss = broken
    loop = toy_loop(tmp_path, task=task)
    with pytest.raises(ZeroDivisionError, match="task"):
        loop.run()
    assert max(steps_of(tmp_path)) == 6


class Second(Distributed):
    """Whose first rank has just had enough."""

    @property
    def is_first(self) -> bool:
        return False

    def any(self, mine: bool) -> bool:
        return True

    def broadcast(self, value: object) -> object:
        return "time"


def test_all_ranks_end_where_the_first_has_had_enough(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path, steps=8)
    loop.ranks = Second()
    loop.get_end_reason = lambda: pytest.fail("only the first rank is asked")
    loop.step = loop._new_step()
    assert loop._was_ended()
    assert loop.state.ended == "time"
    assert steps_of(tmp_path) == []  # nor does another rank write


def test_an_early_end_is_final(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path, steps=8)
    loop.get_end_reason = lambda: "time" * (loop.state.step == 3)
    assert loop.run().step == 3
    [line] = log_of(loop).said
    assert "time" in line
    assert log_of(loop).order[-2:] == [("event", 3), ("pass", 3)]
    again = toy_loop(tmp_path, steps=8)
    again.resume()
    assert again.run().step == 3
    assert log_of(again).said == []
