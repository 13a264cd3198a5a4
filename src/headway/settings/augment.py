"""Settings of data augmentation: random changes of training images, videos and audio."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_least, check_values

SHARES = ("erase", "speed")
MOST_OPERATIONS = 10
"""Upper limit of `rand`: more operations make an image unrecognisable."""


@dataclass(frozen=True, kw_only=True)
class AugmentSettings(TracksExplicit):
    """Data augmentation for images and videos, or for audio."""

    flip: bool = False
    """Mirror each image with probability 0.5."""

    crop: int = 0
    """Shift images by up to this many pixels, with black padding."""

    rand: int = 0
    """RandAugment: number of random operations per image (rotate, shear, brighten, …)."""

    magnitude: float = 9.0
    """RandAugment: strength of the operations, 0 to 10."""

    erase: float = 0.0
    """Random erasing: the share of images in which a rectangle is replaced by noise."""

    mixup: float = 0.0
    """Mixup of two images: alpha of the Beta distribution of the mixing weight; 0: off."""

    cutmix: float = 0.0
    """CutMix of two images: alpha of the Beta distribution of the area; 0: off."""

    bands: int = 0
    """SpecAugment: number of frequency masks per recording."""

    band_width: int = 27
    """SpecAugment: largest width of a frequency mask, in mel bands."""

    spans: int = 0
    """SpecAugment: number of time masks per recording."""

    span_width: int = 40
    """SpecAugment: largest width of a time mask, in frames."""

    speed: float = 0.0
    """Change the speed of audio by up to this share, faster or slower."""

    noise: float = 0.0
    """Add noise of up to this share of the loudness of the recording."""

    gain_db: float = 0.0
    """Change the volume by up to this many decibels."""

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
