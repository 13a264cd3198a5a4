"""Settings of fine-tuning, LoRA and distillation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_least, check_positive, check_values


@dataclass(frozen=True, kw_only=True)
class StartSettings(TracksExplicit):
    """Fine-tuning, which starts from the weights of another run (`--from RUN`)."""

    run: str = ""
    """Name or folder of the run whose weights training starts from. Empty: train from scratch."""

    freeze: int = 0
    """Number of first layers to freeze, together with the embeddings. 0: none. -1: freeze all
    parameters except the heads."""

    layer_decay: float = 1.0
    """Layer-wise learning-rate decay: factor on the learning rate from each layer to the layer
    below. 1: no decay."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.freeze < -1:
            raise ConfigError(
                f"freeze={self.freeze} must be 0 or more, or -1 to freeze all but the heads."
            )
        if not 0.0 < self.layer_decay <= 1.0:
            raise ConfigError(f"layer_decay={self.layer_decay:g} must be above 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class LoraSettings(TracksExplicit):
    """LoRA: low-rank updates of frozen weights (Hu et al. 2021)."""

    rank: int = 0
    """Rank of the LoRA updates. 0: no LoRA, so all weights are trained."""

    alpha: float = 16.0
    """Scale of the LoRA updates: they are multiplied by alpha / rank."""

    targets: Literal["attention", "all"] = "all"
    """Matrices that get LoRA updates: those of attention only (`attention`), or
    those of attention and feed-forward layers (`all`)."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.rank < 0:
            raise ConfigError(f"rank={self.rank} must be 0 (no LoRA) or at least 1.")
        check_positive(self, "alpha")


@dataclass(frozen=True, kw_only=True)
class DistilSettings(TracksExplicit):
    """Distillation from a teacher run, with the loss terms of DistilBERT and a weight for each."""

    teacher: str = ""
    """Name or folder of the teacher run."""

    layers: int | None = None
    """Number of layers of the student. None: half as many as the teacher."""

    temperature: float = 2.0
    """Softmax temperature that softens the probabilities of teacher and student."""

    soft: float = 5.0
    """Loss weight of matching the teacher's probabilities (soft targets)."""

    hard: float = 2.0
    """Loss weight of the task itself (hard targets)."""

    cosine: float = 1.0
    """Loss weight of the cosine similarity between the last hidden states of student and
    teacher."""

    between: float = 0.0
    """Loss weight of matching the inputs of each layer to those of the teacher layer from which it
    was initialized."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 0, "soft", "hard", "cosine", "between")
        check_positive(self, "temperature")
        check_least(self, 1, "layers")
