"""Fewer threads where other work holds the cores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headway.training.budget import Journal
from headway.training.threads import CHECK_S, ThreadPlan, fastest, threads_here


class Cores:
    """Work takes so many seconds with so many threads."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.threads, self.clock = seconds, 0, 0.0
        self.taken: list[int] = []

    def take(self, threads: int) -> None:
        self.threads = threads
        self.taken.append(threads)

    def work(self) -> None:
        self.clock += self.seconds[self.threads]

    def best(self) -> int:
        return fastest(list(self.seconds), self.take, self.work, lambda: self.clock)


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        ({4: 1.0, 2: 1.8, 1: 3.5}, 4),
        ({4: 9.0, 2: 2.0, 1: 1.0}, 1),
        ({4: 9.0, 2: 1.0, 1: 2.0}, 2),
        ({4: 1.1, 2: 1.0, 1: 2.0}, 4),
    ],
)
def test_the_quickest_number_is_taken_and_all_where_others_gain_little(
    seconds: dict[int, float], number: int
) -> None:
    cores = Cores(seconds)
    assert cores.best() == number
    assert cores.taken[:6] == [4, 2, 1, 4, 2, 1]  # in turn


def test_idle_machines_and_set_threads_are_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never() -> float:
        raise AssertionError

    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_here(never, lambda: 0.2) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert threads_here(never, lambda: 99.0) == 8


class Machine:
    """A clock, a load and the fastest number of threads, all set by hand."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.load, self.fastest, self.measured = path, 0.0, 0.0, 1, 0

    def plan(self, first: int, most: int = 2) -> ThreadPlan:
        return ThreadPlan(
            first, most, Journal(self.path), lambda text: None,
            now=lambda: self.clock, load=lambda: self.load, measure=self.measure,
        )  # fmt: skip

    def measure(self, most: int) -> int:
        self.measured += 1
        return self.fastest


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    before = torch.get_num_threads()
    yield Machine(tmp_path / "plan.jsonl")
    torch.set_num_threads(before)


def test_a_run_that_began_on_a_busy_machine_takes_all_threads_when_it_is_free(
    machine: Machine,
) -> None:
    machine.load, machine.fastest = 3.0, 2
    plan = machine.plan(first=1)
    plan.update(1)
    assert torch.get_num_threads() == 1
    machine.load = 1.0  # this run's own thread
    plan.update(2)
    assert torch.get_num_threads() == 1  # the load is looked at once a minute
    machine.clock += CHECK_S
    plan.update(3)
    assert torch.get_num_threads() == 2
    assert machine.measured == 1


def test_a_steady_load_is_not_measured_again_and_again(machine: Machine) -> None:
    machine.load, machine.fastest = 6.0, 2
    plan = machine.plan(first=2)
    for step in range(5):
        machine.clock += CHECK_S
        plan.update(step)
    assert machine.measured == 1


def test_a_resumed_run_repeats_the_recorded_changes_and_plans_only_after_them(
    machine: Machine,
) -> None:
    machine.load, machine.fastest = 1.0, 2
    plan = machine.plan(first=1)
    machine.clock += CHECK_S
    plan.update(10)
    assert machine.path.exists()
    machine.fastest, machine.load = 1, 9.0
    resumed = machine.plan(first=1)
    found = []
    for step in (5, 9, 10, 11):
        resumed.update(step)
        found.append(torch.get_num_threads())
    assert found == [1, 1, 2, 2]
    machine.clock += CHECK_S
    resumed.update(9)
    assert machine.measured == 1  # step 9 is before the last change on record
    resumed.update(12)
    assert torch.get_num_threads() == 1
    assert Journal(machine.path).threads == {10: 2, 12: 1}
