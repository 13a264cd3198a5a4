"""Training examples changed at random, as `[augment]` says: what a model learns then is what stays
the same. All random numbers follow from those of the step, or from the epoch and the item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headway.config.augment import AugmentSettings
from headway.models.parts.pictures import Pictures
from headway.models.parts.sounds import Sound, SoundFront
from headway.nn.augment import Augment
from headway.nn.mel import SpecAugment


class PictureChanges:
    """Of pictures and videos, on the device that they are on."""

    def __init__(self, settings: AugmentSettings) -> None:
        self.augment = Augment(settings)
        changed = ("flip", "crop", "rand", "erase", "mixup", "cutmix")
        self.none = not any(getattr(settings, name) for name in changed)

    def __call__(self, given: Pictures, targets_BC: Tensor) -> tuple[Pictures, Tensor]:
        """All of one size; targets (B C) are shared out where two pictures become one."""
        if self.none:
            return given, targets_BC
        (group,) = given.groups
        with torch.no_grad():
            x_BTCYX = self.augment(group)
            if self.augment.mixes:
                x_BTCYX, targets_BC, *_ = self.augment.mix(x_BTCYX, targets_BC)
        return replace(given, groups=(x_BTCYX,)), targets_BC


@dataclass(frozen=True)
class SoundChanges:
    """Of recordings: their speed is drawn before they are collated, the rest on the device."""

    settings: AugmentSettings

    @torch.no_grad()
    def __call__(self, front: SoundFront, sound: Sound) -> Sound:
        """Loudness, noise, and stretches of bands and time that are not heard."""
        settings = self.settings
        if settings.noise or settings.gain_db:
            sound = replace(sound, samples_S=self._disturbed(sound))
        if settings.bands or settings.spans:
            hide = SpecAugment(
                settings.bands, settings.band_width, settings.spans, settings.span_width
            )
            mel_AF = hide(front.mel(sound), sound.number_A, sound.n_recordings)
            sound = replace(sound, mel_AF=mel_AF)
        return sound

    def _disturbed(self, sound: Sound) -> Tensor:
        """Each recording louder or quieter, with noise of a share of its own loudness."""
        samples_S, n = sound.samples_S, sound.n_recordings
        number_S = _numbers(sound)
        draw_2B = torch.rand(2, n, device=samples_S.device)
        if self.settings.noise:
            sizes_B = torch.bincount(number_S, minlength=n).clamp(min=1)
            power_B = samples_S.new_zeros(n).index_add(0, number_S, samples_S.square()) / sizes_B
            share_B = self.settings.noise * draw_2B[0] * power_B.sqrt()
            samples_S = samples_S + torch.randn_like(samples_S) * share_B[number_S]
        decibels_B = self.settings.gain_db * (2 * draw_2B[1] - 1)
        return samples_S * (10 ** (decibels_B / 20))[number_S]

    def speeds(self, rows: Sequence[int], *key: int) -> list[float] | None:
        """How much quicker each of these recordings is heard; it is then shorter and higher too.
        `key`: what the draws follow from beside the number of a recording."""
        share = self.settings.speed
        if not share:
            return None
        draws = [np.random.Generator(np.random.PCG64([*key, row])) for row in rows]
        return [float(draw.uniform(1 - share, 1 + share)) for draw in draws]


def _numbers(sound: Sound) -> Tensor:
    """The recording of each sample."""
    begins_S = torch.zeros_like(sound.samples_S, dtype=torch.long)
    begins_S[sound.low_A] = 1
    return begins_S.cumsum(0) - 1
