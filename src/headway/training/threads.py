"""Choice of the number of threads on a CPU, where other programs may keep the cores busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from headway.training.budget import Journal

BUSY = 0.5
"""Load by other programs, in running processes, from which it is worthwhile to measure which number
of threads is fastest."""

ROUNDS, WORK = 3, 12
"""Number of rounds of a measurement, and number of feed-forward layers in each timing. They are
enough for a comparison, and take a fraction of a second."""

GAIN = 1.15
"""Minimum speed-up for which fewer threads are used. Smaller differences may be noise from other
programs."""


def threads_here(
    now: Callable[[], float] = time.perf_counter,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
) -> int:
    """Return the number of threads that is fastest now: all of PyTorch's threads, or fewer on a
    busy machine.

    If OMP_NUM_THREADS is set, the number of threads is not changed.
    """
    most = torch.get_num_threads()
    if most == 1 or "OMP_NUM_THREADS" in os.environ or load() < BUSY:
        return most
    return fastest_threads(most, now)


def fastest_threads(most: int, now: Callable[[], float] = time.perf_counter) -> int:
    """Return which number of threads is fastest: `most`, half as many, or one. PyTorch's setting is
    restored afterwards."""
    before = torch.get_num_threads()
    try:
        return fastest([most, max(1, most // 2), 1], torch.set_num_threads, _some_work, now)
    finally:
        torch.set_num_threads(before)


CHECK_S = 60.0
"""Number of seconds between two readings of the load, which the system averages over one minute."""


class ThreadPlan:
    """Number of threads of a training run on a CPU, measured again when the machine's load changes.

    The number of threads changes how sums are rounded. Every change is therefore in the journal
    before the first step that it affects, and a resumed run repeats the recorded changes.
    """

    def __init__(
        self,
        first: int,
        most: int,
        journal: Journal,
        note: Callable[[str], None],
        *,
        now: Callable[[], float] = time.monotonic,
        load: Callable[[], float] = lambda: os.getloadavg()[0],
        measure: Callable[[int], int] = fastest_threads,
    ) -> None:
        self.most, self.journal, self.note = most, journal, note
        self.now, self.load, self.measure = now, load, measure
        self.recorded = {0: first, **journal.threads}
        self.checked = now()
        self.measured_at: float | None = None
        """Load by other programs, in running processes, at the last measurement; None before the
        first."""

    def update(self, step: int) -> bool:
        """Set the number of threads for the next step. Return True if it was measured, which takes
        time."""
        last = max(self.recorded)
        threads = self.recorded[max(one for one in self.recorded if one <= step)]
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if step < last or self.now() - self.checked < CHECK_S or self.most == 1:
            return False
        self.checked = self.now()
        others = max(0.0, self.load() - threads)
        if not self._has_changed(others, threads):
            return False
        self.measured_at = others
        if (better := self.measure(self.most)) != threads:
            self.journal.add("threads", self.journal.spent_s, step=step, threads=better)
            self.recorded[step] = better
            torch.set_num_threads(better)
            self.note(f"using {better} of {self.most} threads from step {step + 1:,}")
        return True

    def _has_changed(self, others: float, threads: int) -> bool:
        """Return whether a measurement may give another number of threads.

        After a measurement, this is the case if the load has changed by at least one core since
        then. Before the first measurement, it is the case if the load does not fit the present
        number.
        """
        if self.measured_at is not None:
            return abs(others - self.measured_at) >= 1.0
        return (others >= BUSY) == (threads == self.most)


def fastest(
    numbers: Sequence[int],
    take: Callable[[int], object],
    work: Callable[[], object],
    now: Callable[[], float],
) -> int:
    """Return the number of threads that is fastest for some work. If the gain over the first number
    is below `GAIN`, return the first.

    The numbers take turns, so that disturbances affect all of them.
    """
    spent = dict.fromkeys(numbers, 0.0)
    for _ in range(ROUNDS):
        for number in spent:
            take(number)
            work()  # creates the thread pool of this size
            start = now()
            work()
            spent[number] += now() - start
    best = min(spent, key=lambda number: spent[number])
    return best if spent[numbers[0]] > GAIN * spent[best] else numbers[0]


def _some_work() -> None:
    """Run work that resembles a small model: large matrix products with small operations between
    them."""
    x_ND = torch.ones(512, 256)
    w_DF = torch.ones(256, 512) / 256
    for _ in range(WORK):
        h_NF = F.gelu(x_ND @ w_DF)
        x_ND = F.layer_norm(x_ND + h_NF @ w_DF.T, (256,))
