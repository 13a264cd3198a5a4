"""A budget is kept, whatever the machine does: with a clock that the test holds."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.training.budget import (
    PLAN,
    READ,
    SEARCHED,
    Budget,
    Decision,
    Final,
    Journal,
    UnlimitedEvaluations,
)


class TooLate(Exception):
    """The deadline of an evaluation has passed."""


@dataclass
class Machine:
    """Work takes so many seconds at usual speed, and `slow(t)` times as many at time t."""

    slow: Callable[[float], float] = lambda t: 1.0
    t: float = 0.0

    def now(self) -> float:
        return self.t

    def work(
        self, seconds: float, deadline: float | None = None, grain: float | None = None
    ) -> None:
        """In pieces, between which the deadline is looked at."""
        grain = seconds / 40 if grain is None else grain
        while seconds > 1e-9:
            piece = min(grain, seconds)
            self.t += piece * self.slow(self.t)
            seconds -= piece
            if deadline is not None and self.t > deadline:
                raise TooLate


@dataclass
class World:
    """A run without a model: what a loop does, with costs in place of work."""

    total: float
    step: float
    example: float = 0.01
    careful: float = 2.5
    planned: float = SEARCHED
    n_valid: int = 1000
    n_quick: int = 500
    save: float = 0.1
    before: float = 5.0
    first_examples: float = 1.0
    """How much more an example costs while the model knows nothing."""

    eval_every: int | None = None
    save_every: int | None = None
    warmup: int = 0
    slow: Callable[[float], float] = lambda t: 1.0
    look: int | None = 1
    rehearsed: bool = True
    path: Path | None = None
    killed_at: int | None = None
    begin_at: int = 0
    plan: Decision | None = None
    saves: list[int] = field(default_factory=list)
    evaluations: dict[int, int] = field(default_factory=dict)
    progress: list[float] = field(default_factory=list)
    final: Final | None = None

    def run(self) -> float:
        machine = Machine(self.slow)
        machine.work(self.before)
        wanted = UnlimitedEvaluations(
            n_quick=self.n_quick, n_valid=self.n_valid,
            eval_every=self.eval_every, save_every=self.save_every, warmup=self.warmup,
            careful=self.planned,
        )  # fmt: skip
        budget = Budget(
            self.total, wanted, Journal(self.path), started=0.0, now=machine.now, look=self.look
        )
        if self.rehearsed:
            start = machine.now()
            machine.work(self.step)
            step_s = machine.now() - start
            start = machine.now()
            with suppress(TooLate):
                machine.work(8 * self.example * self.first_examples, start + 0.05 * self.total)
            budget.timed(step_s, (machine.now() - start) / 8)
        self.ready = machine.now()
        step, plan = self.begin_at, self.plan
        budget.mark(step)
        while True:
            if plan is None or plan.looks(step):
                plan = budget.decide(step, plan) or plan
            assert plan is not None
            last = step == plan.steps
            if step and (last or step == plan.until or step % (self.eval_every or 10**9) == 0):
                self.evaluate(budget, machine, step, plan)
                self.store(budget, machine, step)
                budget.mark(step)
            elif step and step % (self.save_every or 10**9) == 0:
                self.store(budget, machine, step)
                budget.mark(step)
            if last:
                break
            if step == self.killed_at:
                return machine.t
            step += 1
            self.progress.append(plan.progress_at(step))
            machine.work(self.step, grain=self.step)
        self.steps, self.last_plan = step, plan
        for final, deadline in budget.comparisons(2):
            self.final = final
            if not final.examples:
                break
            try:
                each = self.example * (self.careful if final.careful else 1.0)
                machine.work(2 * final.examples * each, deadline)
                break
            except TooLate:
                continue
        machine.work(self.save + 0.5)
        return machine.t

    def evaluate(self, budget: Budget, machine: Machine, step: int, plan: Decision) -> None:
        examples = plan.examples
        while examples:
            examples, deadline = budget.evaluation(step, examples)
            if not examples:
                return
            start = machine.now()
            knows = min(1.0, step * self.step / (0.2 * self.total))
            each = self.example * (1.0 + (self.first_examples - 1.0) * (1.0 - knows))
            try:
                machine.work(examples * each, deadline)
            except TooLate:
                examples = budget.aborted(step, examples, machine.now() - start)
                continue
            budget.evaluated(examples, machine.now() - start)
            self.evaluations[step] = examples
            return

    def store(self, budget: Budget, machine: Machine, step: int) -> None:
        start = machine.now()
        machine.work(self.save)
        budget.saved(machine.now() - start)
        self.saves.append(step)


def kept(world: World) -> bool:
    took = world.run()
    return abs(took - world.total) <= max(0.1 * world.total, 20.0)


FACTORS = {"quiet": 1.0, "five times slower": 5.0, "five times faster": 0.2}


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("total", [60.0, 120.0, 240.0, 900.0, 7200.0])
@pytest.mark.parametrize("share", [0.0005, 0.003, 0.01])
def test_the_time_is_kept_on_a_machine_that_changes_midway(
    total: float, share: float, name: str
) -> None:
    world = World(total, share * total, slow=lambda t: FACTORS[name] if t > total / 2 else 1.0)
    took = world.run()
    assert abs(took - total) <= max(0.1 * total, 20.0), (took, world.steps)
    assert world.saves[-1] == world.steps >= 1


@settings(max_examples=300, deadline=None)
@given(
    total=st.floats(30.0, 3600.0),
    step=st.floats(0.0005, 0.012),
    example=st.floats(0.000001, 0.0005),
    n_valid=st.integers(1, 5000),
    save=st.floats(0.0, 0.004),
    before=st.floats(0.0, 0.5),
    when=st.floats(0.0, 1.0),
    factor=st.sampled_from([0.2, 0.5, 1.0, 2.0, 5.0]),
    first_examples=st.floats(1.0, 10.0),
    look=st.sampled_from([1, None]),
)
def test_the_time_is_kept_in_every_world(
    total: float, step: float, example: float, n_valid: int, save: float, before: float,
    when: float, factor: float, first_examples: float, look: int | None,
) -> None:  # fmt: skip
    """Costs are shares of the budget; the change comes at any time. Nobody can prepare the data
    sooner than the machine does."""
    world = World(
        total, step * total, example * total, n_valid=n_valid, n_quick=min(500, n_valid),
        save=save * total, before=before * total, first_examples=first_examples, look=look,
        slow=lambda t: factor if t > when * total else 1.0,
    )  # fmt: skip
    took, tolerance = world.run(), max(0.1 * total, 20.0)
    assert total - tolerance <= took <= max(total, world.ready) + tolerance, world.steps
    assert world.saves[-1] == world.steps >= 1


def test_evaluations_do_not_take_the_time_that_preparing_has_left() -> None:
    world = World(
        120.0, 1.8, example=0.03, n_valid=13, n_quick=13, save=0.0, before=90.0, first_examples=2.0
    )
    assert kept(world)
    assert world.steps > 4


def test_an_untrained_model_that_never_ends_does_not_decide() -> None:
    """An example takes 30 times as long before the model knows when to stop."""
    world = World(120.0, 0.05, first_examples=30.0)
    assert kept(world)
    assert world.steps * world.step > 0.6 * 120.0
    assert max(world.evaluations.values()) >= 100


@pytest.mark.parametrize("total", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("rehearsed", [True, False])
def test_there_is_a_step_and_a_save_whatever_the_budget(total: float, rehearsed: bool) -> None:
    world = World(total, 3.0, before=12.0, rehearsed=rehearsed)
    took = world.run()
    assert world.saves[-1] == world.steps >= 1
    # Never refused, and nothing beyond what had to be: preparing, a trial, one step, two saves.
    assert took <= max(total, 12.0 + 3.0 * (1 + rehearsed)) + 8.0


@pytest.mark.parametrize(("total", "first_step"), [(60.0, 0.05), (600.0, 0.05), (600.0, 30.0)])
def test_time_without_a_trial_is_used(total: float, first_step: float) -> None:
    """Preparing took most of it, or a kill came before the first plan: the steps themselves tell
    what they take, and the very first may say little about the others."""
    world = World(
        total, 0.05, before=0.5 * total, rehearsed=False,
        slow=lambda t: first_step / 0.05 if t == 0.5 * total else 1.0,
    )  # fmt: skip
    assert kept(world)
    assert world.steps * world.step > 0.5 * (0.5 * total - first_step)
    # The rates go through their schedule, too.
    assert max(b - a for a, b in zip(world.progress, world.progress[1:], strict=False)) < 0.2
    assert world.progress[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("total", [20.0, 60.0, 600.0])
@pytest.mark.parametrize("share", [0.03, 0.06])
def test_one_step_that_stalls_does_not_end_a_run(total: float, share: float) -> None:
    """A disk or another program holds everything up for a moment: the next steps are as before."""
    step, stalls = total / 800, [share * total]

    def slow(t: float) -> float:
        return stalls.pop() / step if t > 0.3 * total and stalls else 1.0

    world = World(
        total, step, example=total / 1e6, save=total / 1e3, before=total / 20, slow=slow
    )  # fmt: skip
    world.run()
    assert world.steps * step > 0.65 * total
    assert max(b - a for a, b in zip(world.progress, world.progress[1:], strict=False)) < 0.02


def test_more_examples_are_compared_at_the_end_where_none_is_searched_for() -> None:
    """As labels are: their probabilities are fitted to what is compared then."""
    searched = World(300.0, 0.1, example=0.02)
    read = World(300.0, 0.1, example=0.02, careful=1.0, planned=READ)
    assert kept(searched)
    assert kept(read)
    assert searched.final is not None
    assert read.final is not None
    assert read.final.examples > 2 * searched.final.examples


def test_evaluations_that_are_dear_become_small_and_then_few() -> None:
    dear = World(300.0, 0.1, example=0.2)
    assert kept(dear)
    assert max(dear.evaluations.values()) < 100
    dearer = World(300.0, 0.1, example=3.0)
    assert kept(dearer)
    assert set(dearer.evaluations.values()) <= {8}
    impossible = World(120.0, 0.1, example=20.0)
    assert kept(impossible)
    assert not impossible.evaluations
    assert impossible.final == Final(examples=0, careful=False)


@pytest.mark.parametrize("example_s", [None, 0.05])
def test_an_evaluation_that_crawls_is_broken_off_until_it_is_small_enough(
    monkeypatch: pytest.MonkeyPatch, example_s: float | None
) -> None:
    """Nobody knows what an example takes, or it is thought to take a twentieth of that."""
    world = World(120.0, 0.1, example=1.0, rehearsed=example_s is not None)
    tries: list[tuple[int, int]] = []
    real = Budget.aborted

    def noted(self: Budget, step: int, examples: int, seconds: float) -> int:
        tries.append((examples, real(self, step, examples, seconds)))
        return tries[-1][1]

    def told(self: Budget, step_s: float, _: float) -> None:
        self.step_s, self.example_s = step_s, example_s

    monkeypatch.setattr(Budget, "aborted", noted)
    monkeypatch.setattr(Budget, "timed", told)
    assert kept(world)
    assert len(tries) > 1
    assert all(fewer < examples for examples, fewer in tries)


def test_the_schedule_has_no_jump_and_ends_at_its_end() -> None:
    world = World(300.0, 0.1, slow=lambda t: 5.0 if t > 150.0 else 1.0)
    world.run()
    ways = [b - a for a, b in zip([0.0, *world.progress], world.progress, strict=False)]
    assert all(way > 0.0 for way in ways)
    assert max(ways) < 0.02
    assert world.progress[-1] == pytest.approx(1.0, abs=0.02)


def test_a_set_warmup_is_not_scaled_with_the_run(tmp_path: Path) -> None:
    """Also where the first plan knows nothing, and where a run is taken up again."""
    words = {"rehearsed": False, "warmup": 80, "path": tmp_path / PLAN}
    World(120.0, 0.1, killed_at=30, **words).run()  # type: ignore[arg-type]
    world = World(120.0, 0.1, slow=lambda t: 3.0 if t > 60.0 else 1.0, **words)  # type: ignore[arg-type]
    world.run()
    assert {plan.warmup for plan in Journal(tmp_path / PLAN).plans.values()} == {80}
    assert world.progress[:80] == [0.0] * 80
    ways = [b - a for a, b in zip(world.progress[79:], world.progress[80:], strict=False)]
    assert 0.0 < min(ways) <= max(ways) < 0.02
    assert world.progress[-1] == pytest.approx(1.0)


def test_evaluations_happen_at_the_set_steps() -> None:
    world = World(120.0, 0.1, eval_every=50, save_every=20)
    assert kept(world)
    assert set(world.evaluations) == {*range(50, world.steps, 50), world.steps}
    assert set(range(20, world.steps, 20)) <= set(world.saves)


def test_recorded_decisions_are_replayed_and_the_rest_is_decided_again(tmp_path: Path) -> None:
    """Killed at step 500 and taken up at step 0: the same plans up to there."""
    path = tmp_path / PLAN
    World(120.0, 0.1, path=path, killed_at=500).run()
    recorded = Journal(path)
    slow = World(120.0, 0.1, path=path, slow=lambda t: 2.0)
    slow.run()
    after = Journal(path)
    assert {s: after.plans[s] for s in recorded.plans} == recorded.plans
    assert len(after.plans) > len(recorded.plans)
    again = World(120.0, 0.1, path=path, slow=lambda t: 0.5)
    again.run()
    assert (again.steps, again.evaluations, again.progress, again.final) == (
        slow.steps, slow.evaluations, slow.progress, slow.final,
    )  # fmt: skip
    assert Journal(path).plans == after.plans


def test_time_that_was_used_up_before_a_kill_counts(tmp_path: Path) -> None:
    path = tmp_path / PLAN
    first = World(120.0, 0.1, path=path, killed_at=500)
    used = first.run()
    spent = Journal(path).spent_s
    assert 0.8 * used <= spent <= used
    second = World(120.0, 0.1, path=path, begin_at=450, plan=Journal(path).plans[0])
    assert spent + second.run() == pytest.approx(120.0, abs=20.0)


def test_a_torn_line_and_a_flipped_bit_are_found(tmp_path: Path) -> None:
    path = tmp_path / PLAN
    World(120.0, 0.1, path=path).run()
    whole = path.read_bytes()
    found: list[str] = []
    path.write_bytes(whole[:-7])
    assert Journal(path, found.append).plans == Journal(path).plans
    assert not found
    assert path.read_bytes() == whole[: whole.rindex(b"\n", 0, -1) + 1]
    path.write_bytes(whole[:-1])
    Journal(path, found.append).add("time", 1.0)
    assert path.read_bytes().startswith(whole)
    assert Journal(path, found.append).plans == Journal(path).plans
    assert not found
    flipped = bytearray(whole)
    place = whole.index(b'"steps"') + 10
    flipped[place] ^= 1
    path.write_bytes(flipped)
    assert not Journal(path, found.append).plans
    assert str(path) in found[0]
    assert "line 1" in found[0]


def test_every_line_has_its_kind_and_time(tmp_path: Path) -> None:
    path = tmp_path / PLAN
    World(60.0, 0.1, path=path).run()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["kind"] == "plan"
    assert lines[-1]["kind"] == "final"
    assert all({"elapsed_s", "sum"} <= set(line) for line in lines)


def test_a_disk_that_is_full_stops_nothing(tmp_path: Path) -> None:
    found: list[str] = []
    journal = Journal(tmp_path / "gone" / PLAN, found.append)
    journal.add("final", 1.0, examples=8, careful=False)
    assert journal.final == Final(examples=8, careful=False)
    assert str(tmp_path / "gone" / PLAN) in found[0]


def test_half_a_line_on_a_full_disk_does_not_spoil_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, found = Journal(tmp_path / PLAN), list[str]()
    journal.add("final", 1.0, examples=8, careful=False)
    whole = (tmp_path / PLAN).read_bytes()

    def full(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-9])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("headway.training.budget.sync", full)
        journal.add("final", 2.0, examples=2, careful=False)
    assert (tmp_path / PLAN).read_bytes() == whole
    journal.add("final", 3.0, examples=4, careful=False)
    assert Journal(tmp_path / PLAN, found.append).final == Final(examples=4, careful=False)
    assert not found
