"""Long recordings in windows, and the signs of silence and of loops."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from headway.decode.speech.transcriber import (
    AnyFloatArray,
    TranscriptCheck,
    compression_ratio,
    is_too_quiet_for_speech,
    windows_of,
)

RATE = 1000


def noisy(seconds: float, quiet: list[tuple[float, float]], seed: int = 0) -> AnyFloatArray:
    draw = np.random.default_rng(seed)
    samples = draw.normal(0, 0.1, int(seconds * RATE)).astype(np.float32)
    for start, end in quiet:
        samples[int(start * RATE) : int(end * RATE)] *= 1e-3
    return samples


def blocks(samples: AnyFloatArray, size: int) -> Iterator[AnyFloatArray]:
    for first in range(0, len(samples), size):
        yield samples[first : first + size]


@pytest.mark.parametrize("size", [7, 1000, 100_000])
def test_windows_side_by_side_are_the_recording(size: int) -> None:
    samples = noisy(33.3, [(8.5, 9.0), (17.2, 17.6)])
    found = list(windows_of(blocks(samples, size), RATE, 10.0))
    assert np.array_equal(np.concatenate([window.samples for window in found]), samples)
    starts = np.cumsum([0, *(len(window.samples) for window in found[:-1])]) / RATE
    assert [window.start for window in found] == pytest.approx(starts.tolist())
    assert all(len(window.samples) <= 10 * RATE for window in found)
    whole = list(windows_of([samples], RATE, 10.0))
    assert [len(window.samples) for window in whole] == [len(window.samples) for window in found]


def test_a_cut_goes_through_a_quiet_place() -> None:
    samples = noisy(14.0, [(8.4, 8.8)])
    first = next(windows_of([samples], RATE, 10.0))
    assert 8.4 < len(first.samples) / RATE < 8.8


def test_the_last_window_is_not_too_short() -> None:
    """A moment more than a window is shared out."""
    found = list(windows_of([noisy(10.05, [(5.0, 5.4)])], RATE, 10.0))
    assert [round(len(window.samples) / RATE) for window in found] == [5, 5]


def test_what_is_short_enough_is_one_window() -> None:
    samples = noisy(10.0, [(4.0, 5.0)])
    [window] = windows_of(blocks(samples, 333), RATE, 10.0)
    assert window.start == 0.0
    assert np.array_equal(window.samples, samples)
    [empty] = windows_of([], RATE, 10.0)
    assert len(empty.samples) == 0


def test_ten_hours_take_the_memory_of_a_window() -> None:
    block = np.zeros(4 * RATE, np.float32)
    tracemalloc.start()
    n = sum(len(w.samples) for w in windows_of((block for _ in range(9000)), RATE, 30.0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n == 9000 * len(block)
    assert peak < 10_000_000


def test_repetition_is_what_compresses_well() -> None:
    found = "we saw the old house at the river and then went home before it was dark"
    assert compression_ratio(found) < 1.5
    assert compression_ratio("and then " * 30) > 2.4
    assert compression_ratio("") == 0.0


def test_a_loop_is_worse_than_an_unlikely_text() -> None:
    loop = TranscriptCheck(ratio=9.0, log_prob=-0.1, finished=True)
    endless = TranscriptCheck(ratio=1.0, log_prob=-0.1, finished=False)
    unlikely = TranscriptCheck(ratio=1.0, log_prob=-2.0, finished=True)
    good = TranscriptCheck(ratio=1.0, log_prob=-0.5, finished=True)
    assert [d.is_doubtful for d in (loop, endless, unlikely, good)] == [True, True, True, False]
    assert unlikely.is_better_than(loop)
    assert unlikely.is_better_than(endless)
    assert good.is_better_than(unlikely)
    assert not loop.is_better_than(unlikely)


def test_silence_is_known_by_its_loudness() -> None:
    draw = np.random.default_rng(0)
    hiss = draw.normal(0, 3e-4, RATE).astype(np.float32)
    assert is_too_quiet_for_speech(hiss, RATE)
    assert is_too_quiet_for_speech(np.zeros(0, np.float32), RATE)
    hiss[500:600] += 0.05 * np.sin(np.arange(100)).astype(np.float32)
    assert not is_too_quiet_for_speech(hiss, RATE)
