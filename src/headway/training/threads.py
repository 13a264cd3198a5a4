"""How many threads a CPU run computes with, where other work may hold the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

BUSY = 0.5
"""Other processes that want to run, on average, from which on it is worth a measurement."""

ROUNDS, WORK = 3, 12
GAIN = 1.15
"""Fewer threads have to be quicker by so much: a measurement beside other work is a rough one."""


def threads_here(
    now: Callable[[], float] = time.perf_counter,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
) -> int:
    """All that torch would take, or fewer where those are quicker; as many as someone asked for
    with OMP_NUM_THREADS."""
    most = torch.get_num_threads()
    if most == 1 or "OMP_NUM_THREADS" in os.environ or load() < BUSY:
        return most
    try:
        return quickest([most, max(1, most // 2), 1], torch.set_num_threads, _some_work, now)
    finally:
        torch.set_num_threads(most)


def quickest(
    numbers: Sequence[int],
    take: Callable[[int], object],
    work: Callable[[], object],
    now: Callable[[], float],
) -> int:
    """The number of threads that does the work soonest; the first, if others gain little. They take
    turns, so that what comes and goes meets all of them."""
    spent = dict.fromkeys(numbers, 0.0)
    for _ in range(ROUNDS):
        for number in spent:
            take(number)
            work()  # a pool of another size is made first
            start = now()
            work()
            spent[number] += now() - start
    best = min(spent, key=lambda number: spent[number])
    return best if spent[numbers[0]] > GAIN * spent[best] else numbers[0]


def _some_work() -> None:
    """Like a small model: products worth sharing, and little things between them."""
    x_ND = torch.ones(512, 256)
    w_DF = torch.ones(256, 512) / 256
    for _ in range(WORK):
        h_NF = F.gelu(x_ND @ w_DF)
        x_ND = F.layer_norm(x_ND + h_NF @ w_DF.T, (256,))
