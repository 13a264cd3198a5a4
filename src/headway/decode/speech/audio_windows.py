"""Split long recordings into windows at quiet places, with little more than a window in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyFloatArray = NDArray[np.floating[Any]]

SEARCHED = 1 / 3
"""Fraction of a window, at its end, that is searched for the quietest place."""

QUIET_S = 0.2
"""A window ends in the middle of the quietest stretch of this length, but at most a quarter of the
searched part."""


@dataclass(frozen=True)
class AudioWindow:
    start: float
    """Seconds from the start of the recording."""

    samples: AnyFloatArray


def windows_of(
    blocks: Iterable[AnyFloatArray], rate: int, longest_s: float
) -> Iterator[AudioWindow]:
    """Split a recording, given as blocks of samples, into windows of at most `longest_s` seconds.

    The windows add up to the recording, without overlaps or gaps. A short recording is one window,
    and so is one without samples.
    """
    longest = max(1, int(longest_s * rate))
    enough = int((1 + SEARCHED) * longest) + 1
    held: AnyFloatArray = np.zeros(0, np.float32)
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
            # The rest is divided between two windows, so that the last one is not very short.
            ends = (len(held) // 3, 2 * len(held) // 3) if is_last else (_first(longest), longest)
            cut = quiet_place(held, *ends, rate)
            yield AudioWindow(done / rate, held[:cut])
            held, done = held[cut:], done + cut
    if len(held) or not done:
        yield AudioWindow(done / rate, held)


def _first(longest: int) -> int:
    return int(longest * (1 - SEARCHED))


def quiet_place(samples: AnyFloatArray, first: int, last: int, rate: int) -> int:
    """Return where to cut: the middle of the quietest stretch between two samples."""
    stretch = max(1, min(int(QUIET_S * rate), (last - first) // 4))
    power = np.cumsum(samples[first:last].astype(np.float64) ** 2)
    power = np.concatenate([[0.0], power])
    of_stretch = power[stretch:] - power[:-stretch]
    # The last of equally quiet places, so that windows are as long as possible.
    place = len(of_stretch) - 1 - int(np.argmin(of_stretch[::-1]))
    return max(1, first + place + stretch // 2)
