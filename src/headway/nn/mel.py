"""Log-mel spectrograms of audio on flat batches, with Whisper's parameters.

Recordings are contiguous in `samples_S`. A frame is a window around its middle sample, reflected at
the ends of its own recording as in `torch.stft(center=True)`. Everything is computed in fp32,
because a spectrum spans ten orders of magnitude, which 16 bits cannot represent.

Axes: Q frequencies of the Fourier transform, F mel bands, W samples of a window, A frames, B
recordings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

LogMelScaling = Literal["whisper", "standard"]

FLOOR = 1e-10
"""Lower bound of the power, so that the logarithm of silence is finite."""

BREAK_HZ, BREAK_MEL, STEP = 1000.0, 15.0, math.log(6.4) / 27.0
"""Slaney's scale: 3 mel per 200 Hz up to 1 kHz, then 27 mel for each factor of 6.4."""

FRAMES_AT_ONCE = {"cpu": 1024}
MOST_FRAMES_AT_ONCE = 16_384
"""Maximum number of frames computed at a time. On a CPU, this many fit into the cache; on other
devices, the limit bounds the memory."""


def mel_filters(rate: int, n_fft: int, bands: int) -> Tensor:
    """Return triangular filters of equal area on Slaney's mel scale, from 0 Hz to half the sampling
    rate (Q F). Bands that are narrower than the frequency resolution are empty."""
    top = _mel_of(rate / 2)
    edges = _hertz_of(torch.linspace(0.0, top, bands + 2, dtype=torch.float64))
    low_F, peak_F, high_F = edges[:-2], edges[1:-1], edges[2:]
    hertz_Q1 = torch.linspace(0.0, rate / 2, n_fft // 2 + 1, dtype=torch.float64)[:, None]
    up_QF = (hertz_Q1 - low_F) / (peak_F - low_F)
    down_QF = (high_F - hertz_Q1) / (high_F - peak_F)
    height_F = 2.0 / (high_F - low_F)
    return (torch.minimum(up_QF, down_QF).clamp(min=0.0) * height_F).float()


def _mel_of(hertz: float) -> float:
    if hertz < BREAK_HZ:
        return hertz * 3.0 / 200.0
    return BREAK_MEL + math.log(hertz / BREAK_HZ) / STEP


def _hertz_of(mel: Tensor) -> Tensor:
    above = BREAK_HZ * torch.exp(STEP * (mel - BREAK_MEL))
    return torch.where(mel < BREAK_MEL, mel * 200.0 / 3.0, above)


class LogMel(nn.Module):
    """Log-mel frames of audio samples. Each recording is scaled independently of the others.

    `scale="whisper"`: log10 of the power, clipped at the recording's maximum − 8, then (x + 4) / 4.
    `scale="standard"`: natural logarithm, then mean 0 and variance 1 in each band of a recording.
    """

    window_W: Tensor
    filters_QF: Tensor

    def __init__(self, rate: int, n_fft: int, hop: int, bands: int, scale: LogMelScaling) -> None:
        super().__init__()
        self.rate, self.n_fft, self.hop, self.bands = rate, n_fft, hop, bands
        self.scale: LogMelScaling = scale
        # Copy the window, because PyTorch returns a view of a longer one, which `torch.export`
        # cannot save.
        self.register_buffer("window_W", torch.hann_window(n_fft).clone(), persistent=False)
        self.register_buffer("filters_QF", mel_filters(rate, n_fft, bands), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep the window and the filters in fp32 when the model is cast to 16 bits."""
        super()._apply(fn, recurse)
        if self.window_W.dtype != torch.float32:
            device = self.window_W.device
            self.window_W = torch.hann_window(self.n_fft, device=device)
            self.filters_QF = mel_filters(self.rate, self.n_fft, self.bands).to(device)
        return self

    def forward(
        self,
        samples_S: Tensor,
        centre_A: Tensor,
        low_A: Tensor,
        high_A: Tensor,
        number_A: Tensor,
        n_recordings: int,
        speed_A: Tensor | None = None,
    ) -> Tensor:
        """Return the frames around the samples `centre_A`, of recordings in the samples `low_A` up
        to, but not including, `high_A`.

        `number_A`: index of the recording of each frame; the frames of a recording are scaled
        together. `speed_A`: distance between the samples of a window, in samples of the recording,
        with linear interpolation. Recordings shorter than the window are reflected as often as
        needed.
        """
        size = FRAMES_AT_ONCE.get(samples_S.device.type, MOST_FRAMES_AT_ONCE)
        inputs = [centre_A, low_A, high_A, *([] if speed_A is None else [speed_A])]
        parts = zip(*(x_A.split(size) for x_A in inputs), strict=True)
        powers = [self._power(samples_S.float(), *part) for part in parts]
        power_AF = torch.cat(powers) if powers else samples_S.new_zeros(0, self.bands)
        if self.scale == "whisper":
            return _whisper_scale(power_AF, number_A, n_recordings)
        return _standard_scale(power_AF, number_A, n_recordings)

    def _power(
        self,
        samples_S: Tensor,
        centre_A: Tensor,
        low_A: Tensor,
        high_A: Tensor,
        speed_A: Tensor | None = None,
    ) -> Tensor:
        offset_W = torch.arange(self.n_fft, device=samples_S.device) - self.n_fft // 2
        # Reflection at both ends of n samples has a period of 2 (n − 1) samples.
        last_A1 = (high_A - low_A - 1)[:, None]
        round_A1 = (2 * last_A1).clamp(min=1)
        begin_A1 = (centre_A - low_A)[:, None]
        offset_AW = offset_W if speed_A is None else offset_W * speed_A[:, None]
        place_AW = (begin_A1 + offset_AW).remainder(round_A1)
        place_AW = torch.minimum(place_AW, round_A1 - place_AW)
        if speed_A is None:
            heard_AW = samples_S[place_AW + low_A[:, None]]
        else:
            before_AW = place_AW.floor().long().clamp(min=0).minimum(last_A1)
            after_AW = (before_AW + 1).minimum(last_A1)
            first_AW, second_AW = (
                samples_S[one_AW + low_A[:, None]] for one_AW in (before_AW, after_AW)
            )
            heard_AW = torch.lerp(first_AW, second_AW, place_AW - before_AW)
        spectrum_AQ = torch.fft.rfft(heard_AW * self.window_W)
        return (spectrum_AQ.real.square() + spectrum_AQ.imag.square()) @ self.filters_QF


def _whisper_scale(power_AF: Tensor, number_A: Tensor, n_recordings: int) -> Tensor:
    log_AF = power_AF.clamp(min=FLOOR).log10()
    top_B = log_AF.new_full((n_recordings,), -math.inf)
    top_B = top_B.scatter_reduce(0, number_A.long(), log_AF.amax(1), "amax")
    return (torch.maximum(log_AF, top_B[number_A, None] - 8.0) + 4.0) / 4.0


def _standard_scale(power_AF: Tensor, number_A: Tensor, n_recordings: int) -> Tensor:
    log_AF = power_AF.clamp(min=FLOOR).log()
    centred_AF = log_AF - means_of_recordings(log_AF, number_A, n_recordings)[number_A]
    variance_BF = means_of_recordings(centred_AF.square(), number_A, n_recordings)
    # A constant band, as in digital silence, gets zeros.
    return centred_AF * variance_BF.clamp(min=1e-6).rsqrt()[number_A]


def means_of_recordings(x_AF: Tensor, number_A: Tensor, n_recordings: int) -> Tensor:
    # A GPU sums in any order. In fp64 the rounding error is so small that the mean in fp32 is the
    # same each time.
    total_BF = x_AF.new_zeros(n_recordings, x_AF.shape[1], dtype=torch.float64)
    total_BF = total_BF.index_add(0, number_A, x_AF.double())
    count_B = total_BF.new_zeros(n_recordings).index_add(
        0, number_A, total_BF.new_ones(len(number_A))
    )
    return (total_BF / count_B.clamp(min=1)[:, None]).to(x_AF.dtype)


def log_mel(
    samples_S: Tensor,
    *,
    rate: int = 16_000,
    n_fft: int = 400,
    hop: int = 160,
    bands: int = 80,
    scale: LogMelScaling = "whisper",
) -> Tensor:
    """Return the log-mel frames of one recording (A F), one for each whole hop and at least one.

    As in Whisper, the frame centred on the end of the recording is omitted. The implementation uses
    `torch.stft`.
    """
    half = n_fft // 2
    padded = torch.from_numpy(np.pad(samples_S.float().numpy(), half, mode="reflect"))
    spectrum_QA = torch.stft(
        padded, n_fft, hop, window=torch.hann_window(n_fft), center=False, return_complex=True
    )
    n_frames = max(1, len(samples_S) // hop)
    power_AF = spectrum_QA[:, :n_frames].abs().square().T @ mel_filters(rate, n_fft, bands)
    if scale == "whisper":
        log_AF = power_AF.clamp(min=FLOOR).log10()
        return (log_AF.clamp(min=log_AF.max() - 8.0) + 4.0) / 4.0
    log_AF = power_AF.clamp(min=FLOOR).log()
    variance_F, mean_F = torch.var_mean(log_AF, 0, correction=0)
    return (log_AF - mean_F) / variance_F.clamp(min=1e-6).sqrt()
