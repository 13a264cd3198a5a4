"""Long recordings in windows: cut where it is quiet, with never more than a window in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.floating[Any]]

SEARCHED = 1 / 3
"""The share of a window, at its end, in which the quietest place is looked for."""

QUIET_S = 0.2
"""A cut goes through the middle of the quietest stretch of this length, or of a quarter of where it
is looked for."""


@dataclass(frozen=True)
class Window:
    start: float
    """Seconds from the beginning of the recording."""

    samples: Samples


def windows_of(blocks: Iterable[Samples], rate: int, longest_s: float) -> Iterator[Window]:
    """A recording, given as blocks of samples, in windows of at most so many seconds.

    Side by side they are the recording: nothing is heard twice and nothing is lost. What is short
    enough is one window. A recording without samples is one window without any.
    """
    longest = max(1, int(longest_s * rate))
    enough = int((1 + SEARCHED) * longest) + 1
    held: Samples = np.zeros(0, np.float32)
    done = 0
    source = iter(blocks)
    ended = False
    while not ended or len(held) > longest:
        while len(held) < enough and not ended:
            block = next(source, None)
            ended = block is None
            held = held if block is None else np.concatenate([held, block])
        if len(held) > longest:
            is_last = len(held) < enough
            # What is left for two windows is shared out, so that the last is no mere scrap.
            ends = (len(held) // 3, 2 * len(held) // 3) if is_last else (_first(longest), longest)
            cut = quiet_place(held, *ends, rate)
            yield Window(done / rate, held[:cut])
            held, done = held[cut:], done + cut
    if len(held) or not done:
        yield Window(done / rate, held)


def _first(longest: int) -> int:
    return int(longest * (1 - SEARCHED))


def quiet_place(samples: Samples, first: int, last: int, rate: int) -> int:
    """Where to cut: in the middle of the quietest stretch between these samples."""
    stretch = max(1, min(int(QUIET_S * rate), (last - first) // 4))
    power = np.cumsum(samples[first:last].astype(np.float64) ** 2)
    power = np.concatenate([[0.0], power])
    of_stretch = power[stretch:] - power[:-stretch]
    # Of equally quiet places the last: windows as long as they may be.
    place = len(of_stretch) - 1 - int(np.argmin(of_stretch[::-1]))
    return max(1, first + place + stretch // 2)
