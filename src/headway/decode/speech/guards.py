"""Signs that a transcript is not what was said: loops, doubt, silence (Radford et al. 2022, §4.5).

A decoder that has lost the thread repeats itself, and text that repeats itself is easy to compress.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_RATIO = 2.4
LEAST_LOG_PROB = -1.0
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""What is tried, one after another, where the search's output is doubtful."""

SILENT_LEVEL = 10 ** (-60 / 20)
"""Loudness of the loudest tenth of a second, full scale being one, below which nobody speaks."""


def compression_ratio(text: str) -> float:
    """Bytes of the text for each byte that it compresses to. Short texts have less than one."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


@dataclass(frozen=True)
class Doubt:
    """How much is to be said against a transcript of one window."""

    ratio: float
    log_prob: float
    """The mean over its tokens, the end counted."""

    finished: bool

    @property
    def loops(self) -> bool:
        return self.ratio > MOST_RATIO or not self.finished

    @property
    def is_doubtful(self) -> bool:
        return self.loops or self.log_prob < LEAST_LOG_PROB

    def less_than(self, other: Doubt) -> bool:
        """A loop is worse than anything; then the likelier one is better."""
        return (not self.loops, self.log_prob) > (not other.loops, other.log_prob)


def is_silent(samples: NDArray[np.floating[Any]], rate: int) -> bool:
    """Whether no tenth of a second is loud enough for speech."""
    step = max(1, rate // 10)
    if not len(samples):
        return True
    ends = np.arange(0, len(samples), step)
    power = np.add.reduceat(samples.astype(np.float64) ** 2, ends) / step
    return bool(np.sqrt(power.max()) < SILENT_LEVEL)
