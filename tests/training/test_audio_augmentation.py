"""Speed, noise and loudness of recordings stay within what the settings say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headway.data.media.resample import resample
from headway.models.parts.audio import AudioFront, collate_audio
from headway.nn.mel import log_mel
from headway.settings.audio import AudioSettings
from headway.settings.augment import AugmentSettings
from headway.tasks.preprocess.audio import AudioAugmentation

RATE = 8_000
TONE = np.sin(2 * np.pi * 500 * np.arange(RATE) / RATE).astype(np.float32)


def loudness(samples: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(samples).mean()))


def heard(settings: AugmentSettings) -> list[NDArray[np.float32]]:
    """Recordings of different loudness after the changes, side by side in one batch."""
    waves = [TONE[: 400 + 100 * i] * (1 + i % 3) / 3 for i in range(40)]
    front = AudioFront(AudioSettings(rate=RATE, n_fft=200, hop=80, bands=40), 8)
    audio, _ = front.collate(waves)
    changed = AudioAugmentation(settings)(front, audio).samples_S.numpy()
    return np.split(changed, np.cumsum([len(wave) for wave in waves])[:-1])


def ratios(
    settings: AugmentSettings,
    of: Callable[[NDArray[np.float32], NDArray[np.float32]], float],
) -> list[float]:
    pairs = zip(heard(settings), heard(AugmentSettings()), strict=True)
    return [of(after, before) for after, before in pairs]


def test_speeds_follow_from_their_key_and_stay_within_their_share() -> None:
    changes = AudioAugmentation(AugmentSettings(speed=0.1))
    found = changes.speeds(range(100), 1, 2)
    assert found is not None
    assert found[10:20] == changes.speeds(range(10, 20), 1, 2)
    assert found != changes.speeds(range(100), 1, 3)
    assert 0.9 <= min(found) < 0.92
    assert 1.08 < max(found) <= 1.1
    assert AudioAugmentation(AugmentSettings()).speeds(range(3), 0) is None


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.13])
def test_a_recording_heard_quicker_is_as_if_it_had_been_resampled(speed: float) -> None:
    """Shorter, and higher; a neighbour of another speed does not matter."""
    shape = AudioSettings(rate=RATE, n_fft=200, hop=80, bands=40)
    front = AudioFront(shape, 8)
    glide = np.sin(np.cumsum(np.linspace(0.05, 0.6, RATE))).astype(np.float32)
    audio, rows = collate_audio([TONE[:500], glide], shape, [1.05, speed])
    found_AF = front.mel(audio)[shape.frames_of(int(500 / 1.05)) :]
    expected_AF = log_mel(
        torch.from_numpy(resample(glide, round(100 * speed), 100)),
        rate=RATE, n_fft=200, hop=80, bands=40,
    )  # fmt: skip
    assert rows[1] == shape.rows_of(int(RATE / speed))
    n = min(len(found_AF), len(expected_AF))
    assert abs(len(found_AF) - len(expected_AF)) <= 1
    # Straight lines between samples are not a sinc: a little of the loudest is heard elsewhere.
    inner = slice(2, n - 2)
    loud_AF = expected_AF[inner] > expected_AF.max() - 0.75
    away_AF = (found_AF[inner] - expected_AF[inner]).abs()
    assert away_AF[loud_AF].max() < (1e-3 if speed == 1.0 else 0.1)


def test_each_recording_is_louder_or_quieter_by_its_own_draw() -> None:
    torch.manual_seed(0)
    found = ratios(
        AugmentSettings(gain_db=6), lambda a, b: 20 * np.log10(loudness(a) / loudness(b))
    )
    assert -6.01 < min(found) < -4
    assert 4 < max(found) < 6.01
    for after, before in zip(
        heard(AugmentSettings(gain_db=6)), heard(AugmentSettings()), strict=True
    ):
        share = after[before != 0] / before[before != 0]
        assert share.max() - share.min() < 1e-3  # one factor for all of a recording


def test_noise_is_a_share_of_the_loudness_of_its_own_recording() -> None:
    torch.manual_seed(0)
    found = ratios(AugmentSettings(noise=0.5), lambda a, b: loudness(a - b) / loudness(b))
    assert min(found) < 0.1
    assert 0.4 < max(found) < 0.55
