"""Resample audio with a windowed sinc filter, at once or block by block."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headway.errors import DataError

Float32Array = NDArray[np.float32]

LOBES = 50
"""Number of zero crossings of the sinc filter on each side, at the lower of the two sampling
rates."""

BETA = 7.86
"""Shape parameter of the Kaiser window, for a stop-band attenuation of 80 dB."""

CUTOFF = 0.95
"""Cutoff frequency relative to the lower Nyquist frequency. The transition band is from 0.9 to 1.0
of it."""

MOST_PHASES = 1000
"""Maximum numerator and denominator of the ratio of sampling rates. Other ratios are approximated,
with an error of a few millionths at most."""

FEWEST_PHASES = 32
"""Minimum number of output samples that one matrix product computes. Computing single samples would
be slow."""


def resample(samples_S: Float32Array, from_rate: int, to_rate: int) -> Float32Array:
    """Return audio resampled to ⌈n × to / from⌉ samples. Silence is assumed before and after it."""
    resampler = Resampler(from_rate, to_rate)
    return np.concatenate([resampler.push(samples_S), resampler.finish()])


class Resampler:
    """Streaming resampler. Its output blocks, concatenated, equal the result of `resample`."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        if min(from_rate, to_rate) < 1:
            raise DataError(
                f"sampling rates must be at least 1 Hz, but are {from_rate} and {to_rate} Hz."
            )
        ratio = Fraction(from_rate, to_rate)
        if max(ratio.numerator, ratio.denominator) > MOST_PHASES:
            ratio = _near(ratio)
        at_once = -(-FEWEST_PHASES // ratio.denominator)
        self._step, self._phases = ratio.numerator * at_once, ratio.denominator * at_once
        self._kernel_P1K, self._width = _kernel(self._step, self._phases)
        self._waiting_S = np.zeros(self._width, dtype=np.float32)
        self._taken = self._given = 0

    def push(self, samples_S: Float32Array) -> Float32Array:
        """Take a block of samples, and return the output samples that are ready. The output is
        delayed, because the filter needs later samples."""
        self._taken += len(samples_S)
        if self._step == self._phases:
            return samples_S.astype(np.float32, copy=False)
        self._waiting_S = np.concatenate([self._waiting_S, samples_S.astype(np.float32)])
        made = self._made()
        self._given += len(made)
        return made

    def finish(self) -> Float32Array:
        """Return the remaining output samples after the last block."""
        if self._step == self._phases:
            return np.zeros(0, dtype=np.float32)
        left = -(-self._taken * self._phases // self._step) - self._given
        silence_S = np.zeros(self._width + self._step, dtype=np.float32)
        self._waiting_S = np.concatenate([self._waiting_S, silence_S])
        return self._made()[:left]

    def _made(self) -> Float32Array:
        """Apply the filters to the buffered samples and return the output. Each step advances by
        `_step` input samples and yields one output sample per phase."""
        n_steps = 1 + (len(self._waiting_S) - self._kernel_P1K.shape[2]) // self._step
        if n_steps < 1:
            return np.zeros(0, dtype=np.float32)
        waiting_11S = torch.from_numpy(self._waiting_S)[None, None]
        out_PA = F.conv1d(waiting_11S, self._kernel_P1K, stride=self._step)[0, :, :n_steps]
        self._waiting_S = self._waiting_S[n_steps * self._step :]
        return out_PA.T.flatten().numpy()


def _near(ratio: Fraction) -> Fraction:
    if ratio > 1:
        return 1 / (1 / ratio).limit_denominator(MOST_PHASES)
    return ratio.limit_denominator(MOST_PHASES)


@lru_cache(maxsize=32)
def _kernel(step: int, phases: int) -> tuple[Tensor, int]:
    """Return one filter per phase (P 1 K), and the number of earlier samples that a filter
    covers."""
    lower = min(1.0, phases / step)
    width = math.ceil(LOBES / lower)
    phase_P1 = torch.arange(phases, dtype=torch.float64)[:, None] * step / phases
    time_PK = torch.arange(2 * width + step, dtype=torch.float64) - width - phase_P1
    along_PK = (time_PK * lower / LOBES).clamp(-1.0, 1.0)
    window_PK = torch.special.i0(BETA * (1.0 - along_PK.square()).sqrt()) * (along_PK.abs() < 1.0)
    kernel_PK = torch.special.sinc(CUTOFF * lower * time_PK) * window_PK
    # Each filter sums to 1, so that a constant signal stays constant.
    return (kernel_PK / kernel_PK.sum(1, keepdim=True)).float()[:, None], width
