"""Settings of data augmentation: random changes of training images, videos and audio."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_least, check_values

SHARES = ("erase", "speed")
MOST_OPERATIONS = 10
"""Maximum allowed value of `rand`. More operations make an image unrecognizable."""


@dataclass(frozen=True, kw_only=True)
class AugmentSettings(TracksExplicit):
    """Data augmentation for images and videos, or for audio."""

    flip: bool = False
    """Mirror each image left to right with probability 0.5."""

    crop: int = 0
    """Maximum shift of an image in pixels, in each direction; the border is filled with black. 0:
    off."""

    rand: int = 0
    """RandAugment: number of random operations per image (rotate, shear, brighten, …). 0: off."""

    magnitude: float = 9.0
    """RandAugment: strength of the operations, from 0 to 10."""

    erase: float = 0.0
    """Random erasing: fraction of the images in which a rectangle is replaced by noise."""

    mixup: float = 0.0
    """Mixup of two images: alpha of the Beta distribution from which the mixing weight is drawn. 0:
    off."""

    cutmix: float = 0.0
    """CutMix of two images: alpha of the Beta distribution from which the replaced area is drawn.
    0: off."""

    bands: int = 0
    """SpecAugment: number of frequency masks per recording. 0: none."""

    band_width: int = 27
    """SpecAugment: maximum width of a frequency mask, in mel bands."""

    spans: int = 0
    """SpecAugment: number of time masks per recording. 0: none."""

    span_width: int = 40
    """SpecAugment: maximum width of a time mask, in frames."""

    speed: float = 0.0
    """Maximum change of the speed of audio, as a fraction, faster or slower. 0: off."""

    noise: float = 0.0
    """Maximum level of added noise, as a fraction of the loudness of the recording. 0: off."""

    gain_db: float = 0.0
    """Maximum change of the volume in decibels, louder or quieter. 0: off."""

    def __post_init__(self) -> None:
        check_values(self)
        for name in SHARES:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be at least 0 and below 1.")
        if not 0.0 <= self.magnitude <= 10.0:
            raise ConfigError(f"magnitude={self.magnitude:g} must be from 0 to 10.")
        if self.rand > MOST_OPERATIONS:
            raise ConfigError(f"rand={self.rand} must be at most {MOST_OPERATIONS}.")
        counts = ("crop", "rand", "mixup", "cutmix", "bands", "band_width", "spans", "span_width")
        check_least(self, 0, *counts, "noise", "gain_db")
