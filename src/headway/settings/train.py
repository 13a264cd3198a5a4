"""How a model is trained: batches, optimiser, schedule, checks on the way, what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from headway.errors import ConfigError
from headway.settings.body import check_values
from headway.settings.made import Made
from headway.settings.value_types import check_least, check_positive

Schedule = Literal["noam", "inverse-sqrt", "cosine", "linear", "constant", "trapezoid"]

OF_SCHEDULES = {"floor": ("cosine", "linear"), "cooldown": ("trapezoid",)}
"""Settings that only some schedules read."""


COUNTS = ("steps", "batch_tokens", "micro_tokens", "pool", "eval_every", "save_every")
"""Numbers that the user may leave open and a run may not."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Made):
    """None means: chosen from the data, the model and the device; `config.toml` says what."""

    seed: int = 1
    """Of the first weights, the order of the data and dropout."""

    steps: int | None = None
    """Optimiser steps in all."""

    epochs: float | None = None
    """The same counted in passes over the training data; they become steps when its batches are
    known."""

    batch_tokens: int | None = None
    """Target tokens of one optimiser step, over all micro-batches and ranks."""

    micro_tokens: int | None = None
    """Target tokens computed at a time; a step of more is accumulated. Changes memory and speed,
    never the gradient."""

    pool: int | None = None
    """Steps whose examples are sorted by length together before they are cut, so that those of a
    step are alike in length; 1: none are. None: 32 on a CPU, where that is faster, 1 on a GPU,
    where all steps then are alike and fill one fixed form."""

    optimizer: Literal["adam", "adamw", "muon", "lamb"] = "adam"
    """`muon` is for matrices, with Adam for the rest. `lamb` moves each matrix by a share of its
    size; the SHA-RNN was trained with it."""

    lr: float | None = None
    """The peak. None: `noam`'s own d_model^-0.5 · warmup^-0.5 of at least 4000 steps, however short
    the warm-up, or 1e-3 for other schedules."""

    schedule: Schedule = "noam"
    """How the rate goes up and down."""

    warmup: int | None = None
    """Steps until the peak. None: 4000, or when the steps are few a tenth of them, for `noam` half.
    """

    cooldown: float = 0.2
    """The share of steps in which `trapezoid` goes down to zero."""

    floor: float = 0.0
    """The share of the peak that `cosine` and `linear` end at."""

    beta1: float = 0.9
    """Of Adam."""

    beta2: float = 0.98
    """Of Adam."""

    eps: float = 1e-9
    """Of Adam."""

    weight_decay: float = 0.0
    """Of matrices, with `adamw`, `muon` and `lamb`."""

    clip: float = 0.0
    """Largest norm of the gradient; 0 does not clip."""

    smoothing: float = 0.1
    """Label smoothing."""

    smoothing_kind: Literal["paper", "torch"] = "paper"
    """Over the wrong words (`paper`), or over all words as torch has it."""

    rdrop: float = 0.0
    """Weight of R-Drop: two passes with different dropout should agree. Twice the work."""

    ema: float = 0.0
    """Decay of a running average of the weights, which is then what is evaluated; 0: none."""

    threads: int | None = None
    """Threads of a CPU run. None: all, or fewer while other programs keep the cores busy."""

    recompute: bool = False
    """Gradient checkpointing: keep less, compute blocks twice."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: `bf16` on GPUs that have it."""

    compile: Literal["auto", "yes", "no"] = "auto"
    """On a GPU the step is recorded, and with `auto` the blocks are compiled where the training is
    long enough to gain by it. `yes` compiles always, `no` does neither."""

    eval_every: int | None = None
    """Steps between evaluations. None: 20 of them."""

    save_every: int | None = None
    """Steps between checkpoints. None: with every evaluation."""

    metric: str | None = None
    """What the best checkpoint is best at: a score of the task, or `loss`. None: the task's own."""

    patience: int = 0
    """Stop after this many evaluations without a better one; 0: never."""

    keep: int = 5
    """Newest checkpoints kept, besides the best one."""

    average: int = 5
    """Newest checkpoints averaged at the end; 1: none."""

    tensorboard: bool = False
    """Also write the numbers for TensorBoard, into the run folder; needs that extra."""

    max_bad_steps: int = 10
    """Steps in a row whose loss or gradient is not a number before training stops."""

    least: ClassVar[int] = 1
    """Of whole numbers that the user may leave open."""

    def __post_init__(self) -> None:
        check_values(self)
        for name in (*COUNTS, "threads"):
            value = getattr(self, name)
            if value is not None and value < self.least:
                raise ConfigError(f"{name}={value} must be at least 1.")
        if self.epochs is not None and self.epochs <= 0:
            raise ConfigError(f"epochs={self.epochs:g} must be more than 0.")
        if self.epochs is not None and self.steps:
            raise ConfigError(
                f"steps={self.steps} and epochs={self.epochs:g} both say how long to train. Leave "
                "one of them out."
            )
        check_least(self, 0, "warmup")
        for name in ("beta1", "beta2", "smoothing", "ema"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be at least 0, below 1.")
        check_least(self, 0, "weight_decay", "clip", "rdrop")
        if not 0.0 <= self.floor <= 1.0:
            raise ConfigError(f"floor={self.floor:g} is a share of the peak rate: 0 to 1.")
        if not 0.0 <= self.cooldown <= 1.0:
            raise ConfigError(f"cooldown={self.cooldown:g} is a share of the steps: 0 to 1.")
        check_positive(self, "lr", "eps")
        check_least(self, 1, "keep", "average", "max_bad_steps")
        if self.patience < 0:
            raise ConfigError(f"patience={self.patience} must be 0 (never stop early) or more.")


@dataclass(frozen=True, kw_only=True)
class ResolvedTrain(TrainSettings):
    """Nothing is left open. Of weights that were trained elsewhere the counts are 0."""

    least: ClassVar[int] = 0

    steps: int = field()
    batch_tokens: int = field()
    micro_tokens: int = field()
    pool: int = field()
    eval_every: int = field()
    save_every: int = field()
    metric: str = field()

    @property
    def unset(self) -> tuple[str, ...]:
        """Counts that a run has none of, because it was trained elsewhere."""
        return tuple(name for name in COUNTS if not getattr(self, name))

    @classmethod
    def of(cls, train: TrainSettings) -> ResolvedTrain:
        """The same, where all is chosen."""
        values = {one.name: getattr(train, one.name) for one in fields(TrainSettings)}
        missing = [name for name in (*COUNTS, "metric") if values[name] is None]
        assert not missing, f"not resolved yet: {missing}"
        return cls(**values)
