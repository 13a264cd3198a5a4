"""Log-mel frames against Whisper's feature extractor and torch.stft; SpecAugment by its counts."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.nn.augment import SpecAugment
from headway.nn.mel import (
    FRAMES_AT_ONCE,
    LogMel,
    LogMelScaling,
    log_mel,
    mel_filters,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import WhisperFeatureExtractor


def noise(n: int, seed: int = 0) -> Tensor:
    """Audio that is neither flat nor still: noise that grows and falls, and a tone."""
    t = torch.arange(n) / 16_000
    white = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return 0.1 * white * (3 * t).sin().square() + 0.3 * (2 * torch.pi * 440 * t).sin()


def flat(
    recordings: list[Tensor], hop: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[int]]:
    frames = [max(1, len(x) // hop) for x in recordings]
    lows = np.cumsum([0, *[len(x) for x in recordings]])
    centre = torch.cat([torch.arange(n) * hop + low for n, low in zip(frames, lows, strict=False)])
    number = torch.repeat_interleave(torch.arange(len(frames)), torch.tensor(frames))
    bounds = torch.from_numpy(lows)
    return torch.cat(recordings), centre, bounds[number], bounds[number + 1], number, frames


def test_filters_are_those_of_whisper() -> None:
    theirs = torch.from_numpy(WhisperFeatureExtractor().mel_filters).float()
    torch.testing.assert_close(mel_filters(16_000, 400, 80), theirs, rtol=0, atol=1e-6)


def test_thirty_seconds_are_as_whisper_hears_them() -> None:
    extractor = WhisperFeatureExtractor()
    samples = noise(16_000 * 7 + 123)
    theirs = extractor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    padded = torch.cat([samples, torch.zeros(480_000 - len(samples))])
    ours_AF = log_mel(padded)
    assert ours_AF.shape == (3000, 80)
    torch.testing.assert_close(ours_AF, theirs.input_features[0].T, rtol=0, atol=1e-5)
    places = flat([padded], 160)[:5]
    torch.testing.assert_close(LogMel(16_000, 400, 160, 80, "whisper")(*places, 1), ours_AF)


@pytest.mark.parametrize("scale", ["whisper", "standard"])
@pytest.mark.parametrize(
    ("rate", "n_fft", "hop", "bands"), [(16_000, 400, 160, 80), (8000, 201, 90, 40)]
)
def test_a_flat_batch_gives_each_recording_the_same_frames_as_alone(
    scale: LogMelScaling, rate: int, n_fft: int, hop: int, bands: int
) -> None:
    """Of any length: many windows, shorter than half of one, a single sample."""
    sizes = [3000, 401, 400, 201, 200, 100, 3, 2, 1, 5001]
    recordings = [noise(n, seed) + 0.01 for seed, n in enumerate(sizes)]
    *places, frames = flat(recordings, hop)
    mel = LogMel(rate, n_fft, hop, bands, scale)
    found_AF = mel(*places, len(sizes))
    for x_S, found in zip(recordings, found_AF.split(frames), strict=True):
        alone = log_mel(x_S, rate=rate, n_fft=n_fft, hop=hop, bands=bands, scale=scale)
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)


def test_frames_reflect_as_torch_stft_centred_does() -> None:
    samples = noise(2_345)
    window = torch.hann_window(400)
    spectrum = torch.stft(samples, 400, 160, window=window, return_complex=True)
    power_AF = spectrum.abs().square().T @ mel_filters(16_000, 400, 80)
    log_AF = power_AF[: 2_345 // 160].clamp(min=1e-10).log10()
    expected = (log_AF.clamp(min=log_AF.max() - 8) + 4) / 4
    torch.testing.assert_close(log_mel(samples), expected)


def test_windows_are_cut_in_parts_and_silence_stays_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = [noise(1600), torch.zeros(800)]
    *places, _ = flat(recordings, 160)
    for scale in ("whisper", "standard"):
        mel = LogMel(16_000, 400, 160, 80, scale)
        whole_AF = mel(*places, 2)
        assert whole_AF.isfinite().all()
        monkeypatch.setitem(FRAMES_AT_ONCE, "cpu", 4)
        torch.testing.assert_close(mel(*places, 2), whole_AF)


def test_a_16_bit_model_computes_audio_features_in_fp32() -> None:
    mel = LogMel(16_000, 400, 160, 80, "whisper")
    places = flat([noise(1600)], 160)[:5]
    expected = mel(*places, 1)
    torch.testing.assert_close(mel.to(torch.bfloat16)(*places, 1), expected)
    assert not mel.state_dict()


def masked(augment: SpecAugment, frames: list[int], n_bands: int) -> list[Tensor]:
    mel_AF = torch.rand(sum(frames), n_bands) + 1
    number_A = torch.repeat_interleave(torch.arange(len(frames)), torch.tensor(frames))
    out_AF = augment(mel_AF, number_A, len(frames))
    same_AF = out_AF == mel_AF
    for mel, out, same in zip(*(x.split(frames) for x in (mel_AF, out_AF, same_AF)), strict=True):
        if not same.all():  # what is hidden is hidden behind the mean of the recording
            torch.testing.assert_close(out[~same].mean(), mel.mean())
    return [~same for same in same_AF.split(frames)]


def test_spec_augment_hides_whole_bands_and_spans_within_their_limits() -> None:
    torch.manual_seed(0)
    most = {50: 7, 20: 4, 1: 0}
    widths: set[int] = set()
    spans: dict[int, set[int]] = {n: set() for n in most}
    for _ in range(60):
        for hidden in masked(SpecAugment(1, 5, 1, 7), list(most), 16):
            bands_F, spans_A = hidden.all(0), hidden.all(1)
            assert (hidden == (bands_F[None] | spans_A[:, None])).all()
            if len(hidden) > 1:  # else bands and spans look alike
                widths.add(int(bands_F.sum()))
                spans[len(hidden)].add(int(spans_A.sum()))
    assert widths == set(range(6))
    assert spans == {50: set(range(8)), 20: set(range(5)), 1: set()}


def test_spec_augment_of_nothing_changes_nothing() -> None:
    assert not any(hidden.any() for hidden in masked(SpecAugment(0, 5, 0, 7), [10, 3], 8))
