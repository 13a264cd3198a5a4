"""How training examples are changed at random, so that a model learns what does not matter."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import ConfigError
from headway.settings.body import check_values
from headway.settings.made import Made
from headway.settings.value_types import check_least

SHARES = ("erase", "speed")
MOST_OPERATIONS = 10
"""More of them leave nothing to see."""

OF_PICTURES = ("flip", "crop", "rand", "magnitude", "erase", "mixup", "cutmix")
OF_SOUNDS = ("bands", "band_width", "spans", "span_width", "speed", "noise", "gain_db")


@dataclass(frozen=True, kw_only=True)
class AugmentSettings(Made):
    """`OF_PICTURES` are for pictures and videos, `OF_SOUNDS` for recordings."""

    flip: bool = False
    """Half of the pictures are mirrored."""

    crop: int = 0
    """Pictures move by up to so many pixels, over a black edge."""

    rand: int = 0
    """Operations a picture, drawn from a list as in RandAugment: turn, shear, brighten, ..."""

    magnitude: float = 9.0
    """How strong they are: 0 to 10."""

    erase: float = 0.0
    """The share of pictures of which a rectangle is covered by noise."""

    mixup: float = 0.0
    """Two pictures laid over each other; this is alpha of the weight's Beta distribution."""

    cutmix: float = 0.0
    """A rectangle of another picture, likewise."""

    bands: int = 0
    """SpecAugment: so many stretches of mel bands are taken out of a recording ..."""

    band_width: int = 27
    """... each of up to so many bands ..."""

    spans: int = 0
    """... and so many spans of time ..."""

    span_width: int = 40
    """... each of up to so many frames."""

    speed: float = 0.0
    """Recordings become quicker or slower by up to this share."""

    noise: float = 0.0
    """Noise of up to this share of a recording's loudness."""

    gain_db: float = 0.0
    """Louder or quieter by up to so many decibels."""

    def __post_init__(self) -> None:
        check_values(self)
        for name in SHARES:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be a share below 1.")
        if not 0.0 <= self.magnitude <= 10.0:
            raise ConfigError(f"magnitude={self.magnitude:g} must be 0 to 10.")
        if self.rand > MOST_OPERATIONS:
            raise ConfigError(f"rand={self.rand} must be {MOST_OPERATIONS} at most.")
        counts = ("crop", "rand", "mixup", "cutmix", "bands", "band_width", "spans", "span_width")
        check_least(self, 0, *counts, "noise", "gain_db")

    def without_effect(self, reads: str) -> list[str]:
        """Names of what is set for the other kind, where a run reads "pictures" or "sounds"."""
        others = OF_SOUNDS if reads == "pictures" else OF_PICTURES
        usual = AugmentSettings()
        return [name for name in others if getattr(self, name) != getattr(usual, name)]
