"""Detect wrong transcripts by repetition, low probability or silence (Radford et al. 2022, §4.5).

A decoder that fails often repeats itself, and repetitive text compresses well.
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
"""Temperatures tried in order if the output of the search is doubtful."""

SILENT_LEVEL = 10 ** (-60 / 20)
"""RMS level of the loudest tenth of a second, relative to full scale, below which there is no
speech."""


def compression_ratio(text: str) -> float:
    """Compression ratio of a text in bytes. It is below 1 for short texts."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


@dataclass(frozen=True)
class TranscriptCheck:
    """Evidence against the transcript of a window."""

    ratio: float
    log_prob: float
    """Mean log-probability of the tokens, including the end token."""

    finished: bool

    @property
    def is_repetitive(self) -> bool:
        return self.ratio > MOST_RATIO or not self.finished

    @property
    def is_doubtful(self) -> bool:
        return self.is_repetitive or self.log_prob < LEAST_LOG_PROB

    def is_better_than(self, other: TranscriptCheck) -> bool:
        """Whether this transcript is better: first without a loop, then with a higher
        probability."""
        return (not self.is_repetitive, self.log_prob) > (not other.is_repetitive, other.log_prob)


def is_silent(samples: NDArray[np.floating[Any]], rate: int) -> bool:
    """Whether every tenth of a second is too quiet for speech."""
    step = max(1, rate // 10)
    if not len(samples):
        return True
    ends = np.arange(0, len(samples), step)
    power = np.add.reduceat(samples.astype(np.float64) ** 2, ends) / step
    return bool(np.sqrt(power.max()) < SILENT_LEVEL)
