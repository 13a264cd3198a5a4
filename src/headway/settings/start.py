"""What a run starts from: the weights of another, with LoRA or without, or a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import check_values
from headway.settings.made import Made
from headway.settings.value_types import check_least, check_positive


@dataclass(frozen=True, kw_only=True)
class StartSettings(Made):
    """Where the weights come from before training: `--from RUN`."""

    run: str = ""
    """The run whose weights this one starts with."""

    freeze: int = 0
    """The front and so many of the first layers stay as they are; -1: all but the heads."""

    layer_decay: float = 1.0
    """Each layer learns at this share of the rate of the one above it."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.freeze < -1:
            raise ConfigError(f"freeze={self.freeze} must be -1 (all but the heads), 0 or more.")
        if not 0.0 < self.layer_decay <= 1.0:
            raise ConfigError(f"layer_decay={self.layer_decay:g} must be above 0, at most 1.")


@dataclass(frozen=True, kw_only=True)
class LoraSettings(Made):
    """Low-rank changes of frozen weights (Hu et al. 2021); 0: train the weights themselves."""

    rank: int = 0
    """Of the low-rank changes; 0: train the weights themselves."""

    alpha: float = 16.0
    """Their scale: alpha / rank."""

    targets: Literal["attention", "all"] = "all"
    """Which matrices: those of attention, or those of the feed-forward layers too."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.rank < 0:
            raise ConfigError(f"rank={self.rank} must be 0 (no LoRA) or more.")
        check_positive(self, "alpha")


@dataclass(frozen=True, kw_only=True)
class DistilSettings(Made):
    """Learning from a teacher run, as DistilBERT: the weights of the terms of its loss."""

    teacher: str = ""
    """The run to learn from."""

    layers: int | None = None
    """Layers of the student. None: half of the teacher's."""

    temperature: float = 2.0
    """That softens the probabilities of both, where there are any."""

    soft: float = 5.0
    """For agreeing with the teacher's probabilities ..."""

    hard: float = 2.0
    """... for the task itself ..."""

    cosine: float = 1.0
    """... for last hidden states that point the same way ..."""

    between: float = 0.0
    """... and for those that each layer is given, as the teacher's that it started from."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 0, "soft", "hard", "cosine", "between")
        check_positive(self, "temperature")
        check_least(self, 1, "layers")
