"""Fewer threads where other work holds the cores."""

from __future__ import annotations

import pytest
import torch

from headway.training.threads import quickest, threads_here


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
        return quickest(list(self.seconds), self.take, self.work, lambda: self.clock)


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


def test_a_quiet_machine_and_what_was_asked_for_are_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never() -> float:
        raise AssertionError

    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_here(never, lambda: 0.2) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert threads_here(never, lambda: 99.0) == 8
