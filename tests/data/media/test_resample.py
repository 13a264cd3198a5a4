"""Resampling against sines, whose samples one knows, and in blocks against the whole."""

from __future__ import annotations

import numpy as np
import pytest

from headway.data.media.resample import Resampler, resample
from headway.errors import DataError
from tests.facts import naming


def decibels(power: np.floating, of: np.floating) -> float:
    return float(10 * np.log10(power / of))


@pytest.mark.parametrize(
    ("source", "target"),
    [(8_000, 16_000), (16_000, 8_000), (44_100, 16_000), (48_000, 16_000), (100, 93), (16, 17)],
)
def test_a_sine_below_nine_tenths_of_nyquist_stays_itself(source: int, target: int) -> None:
    for share in (0.03, 0.5, 0.89):
        turns = 2 * np.pi * share * min(source, target) / 2
        n = max(source, 4_000)
        found = resample(np.sin(turns * np.arange(n) / source).astype(np.float32), source, target)
        assert len(found) == -(-n * target // source)
        expected = np.sin(turns * np.arange(len(found)) / target)
        middle = slice(len(found) // 4, -len(found) // 4)  # the ends border on silence
        error = np.square(found - expected)[middle].mean()
        assert decibels(np.square(expected)[middle].mean(), error) > 60


def test_what_the_lower_rate_cannot_hold_is_gone() -> None:
    high = np.sin(2 * np.pi * 4_080 * np.arange(16_000) / 16_000).astype(np.float32)
    found = resample(high, 16_000, 8_000)[1000:-1000]
    assert decibels(np.square(found).mean(), np.float64(0.5)) < -60


@pytest.mark.parametrize(("source", "target"), [(8_000, 16_000), (44_100, 16_000), (7, 5), (5, 5)])
def test_blocks_give_what_the_whole_gives(source: int, target: int) -> None:
    draw = np.random.default_rng(0)
    samples = draw.standard_normal(5_000).astype(np.float32)
    resampler = Resampler(source, target)
    blocks = np.split(samples, np.sort(draw.integers(0, 5_000, 20)))
    found = np.concatenate([*map(resampler.push, blocks), resampler.finish()])
    np.testing.assert_allclose(found, resample(samples, source, target), atol=1e-5)


def test_odd_lengths_and_odd_rates_work() -> None:
    assert len(resample(np.ones(1, np.float32), 8_000, 16_000)) == 2
    assert len(resample(np.ones(0, np.float32), 8_000, 16_000)) == 0
    constant = resample(np.ones(50_000, np.float32), 44_101, 16_001)
    np.testing.assert_allclose(constant[1000:-1000], 1, atol=1e-4)
    with pytest.raises(DataError, match=naming(1, 0, 16000)):
        resample(np.ones(1, np.float32), 0, 16_000)
