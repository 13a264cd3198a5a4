"""Settings of training: batches, optimizer, schedule, evaluation and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_least, check_positive, check_values

Schedule = Literal["noam", "inverse-sqrt", "cosine", "linear", "constant", "trapezoid"]

FLOOR_SCHEDULES = ("cosine", "linear")
"""Learning-rate schedules that end at `floor` instead of 0."""


COUNTS = ("steps", "batch_tokens", "micro_tokens", "bucket_steps", "eval_every", "save_every")
"""Settings that the user may leave unset. Training fills them in, so every run trained by headway
has a value for them."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TracksExplicit):
    """Settings of training. None: chosen from the data, the model and the device, and recorded in
    `config.toml`."""

    seed: int = 1
    """Random seed for the initial weights, the order of the data and dropout."""

    steps: int | None = None
    """Total number of optimizer steps."""

    epochs: float | None = None
    """Number of passes over the training data, as an alternative to `steps`."""

    batch_tokens: int | None = None
    """Batch size: number of target tokens per optimizer step, over all micro-batches and ranks."""

    micro_tokens: int | None = None
    """Micro-batch size in target tokens. The gradients of several micro-batches are accumulated to
    a batch (gradient accumulation). It affects memory and speed, never the gradient."""

    bucket_steps: int | None = None
    """Length bucketing: number of steps whose examples are sorted by length together, so that each
    step has examples of similar length. 1: no sorting. None: 32 on a CPU, where sorting is faster.
    1 on a GPU, where all steps fit one fixed shape."""

    optimizer: Literal["adam", "adamw", "muon", "lamb"] = "adam"
    """Optimizer. `muon` updates hidden matrices with Muon and all other parameters with Adam.
    `lamb` scales each update by the norm of the matrix; the SHA-RNN was trained with it."""

    lr: float | None = None
    """Peak learning rate. None: with `noam`, d_model^-0.5 · warmup^-0.5, where a warm-up below 4000
    counts as 4000; with other schedules, 1e-3."""

    schedule: Schedule = "noam"
    """Learning-rate schedule."""

    warmup: int | None = None
    """Number of warm-up steps until the peak learning rate. None: a tenth of the steps (half with
    `noam`), at most 4000."""

    cooldown: float = 0.2
    """With `trapezoid`: fraction of the steps in which the learning rate falls to zero."""

    floor: float = 0.0
    """With `cosine` and `linear`: final learning rate as a fraction of the peak."""

    beta1: float = 0.9
    """Adam's beta1: decay of the moving average of gradients."""

    beta2: float = 0.98
    """Adam's beta2: decay of the moving average of squared gradients."""

    eps: float = 1e-9
    """Adam's epsilon, which is added to the denominator of each update."""

    weight_decay: float = 0.0
    """Weight decay of matrices, with `adamw`, `muon` and `lamb`. 0: none."""

    clip: float = 0.0
    """Gradient clipping: maximum norm of the gradient. 0: no clipping."""

    label_smoothing: float = 0.1
    """Label smoothing: probability mass moved from the correct class to other classes. 0: none."""

    label_smoothing_kind: Literal["paper", "torch"] = "paper"
    """Classes over which label smoothing spreads the mass: the wrong classes only (`paper`), or all
    classes as in PyTorch (`torch`)."""

    rdrop: float = 0.0
    """Weight of the R-Drop loss, which makes two forward passes with different dropout agree. It
    doubles the computation. 0: off."""

    ema: float = 0.0
    """Decay of an exponential moving average (EMA) of the weights. Evaluation uses
    the averaged weights. 0: no average."""

    threads: int | None = None
    """Number of CPU threads. None: all cores, or fewer while other programs keep them busy."""

    gradient_checkpointing: bool = False
    """Gradient checkpointing: recompute activations in the backward pass to save memory."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of computation. `auto`: `bf16` on GPUs that support it, otherwise `fp32`."""

    compile: Literal["auto", "yes", "no"] = "auto"
    """CUDA graphs and torch.compile on a GPU. `auto` captures steps as CUDA graphs and compiles if
    training is long enough to benefit; `yes` always compiles; `no` does neither."""

    eval_every: int | None = None
    """Number of steps between evaluations. None: 20 evaluations per run."""

    save_every: int | None = None
    """Number of steps between checkpoints. None: a checkpoint at every evaluation."""

    metric: str | None = None
    """Metric that selects the best checkpoint, either a metric of the task or `loss`. None: the
    main metric of the task."""

    patience: int = 0
    """Early stopping: number of evaluations without improvement after which training stops. 0:
    never."""

    keep: int = 5
    """Number of newest checkpoints to keep, in addition to the best one."""

    average: int = 5
    """Number of newest checkpoints whose weights are averaged at the end. 1: no averaging."""

    tensorboard: bool = False
    """Write TensorBoard files to the run folder. Needs the extra `tensorboard`."""

    max_bad_steps: int = 10
    """Maximum number of consecutive steps whose loss or gradient is NaN or infinite, after which
    training stops."""

    least: ClassVar[int] = 1
    """Minimum allowed value of each setting in `COUNTS`."""

    def __post_init__(self) -> None:
        check_values(self)
        for name in (*COUNTS, "threads"):
            value = getattr(self, name)
            if value is not None and value < self.least:
                raise ConfigError(f"{name}={value} must be at least 1.")
        if self.epochs is not None and self.epochs <= 0:
            raise ConfigError(f"epochs={self.epochs:g} must be greater than 0.")
        if self.epochs is not None and self.steps:
            raise ConfigError(
                f"steps={self.steps} and epochs={self.epochs:g} both set the length of training. "
                "Remove one of them."
            )
        check_least(self, 0, "warmup")
        for name in ("beta1", "beta2", "label_smoothing", "ema"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be at least 0 and below 1.")
        check_least(self, 0, "weight_decay", "clip", "rdrop")
        if not 0.0 <= self.floor <= 1.0:
            raise ConfigError(
                f"floor={self.floor:g} must be from 0 to 1: it is a fraction of the peak learning "
                "rate."
            )
        if not 0.0 <= self.cooldown <= 1.0:
            raise ConfigError(
                f"cooldown={self.cooldown:g} must be from 0 to 1: it is a fraction of the steps."
            )
        check_positive(self, "lr", "eps")
        check_least(self, 1, "keep", "average", "max_bad_steps")
        if self.patience < 0:
            raise ConfigError(f"patience={self.patience} must be 0 (never stop early) or more.")


@dataclass(frozen=True, kw_only=True)
class ResolvedTrain(TrainSettings):
    """Complete training settings, in which no value is None. Counts are 0 if other software trained
    the weights."""

    least: ClassVar[int] = 0

    steps: int = field()
    batch_tokens: int = field()
    micro_tokens: int = field()
    bucket_steps: int = field()
    eval_every: int = field()
    save_every: int = field()
    metric: str = field()

    @property
    def unset(self) -> tuple[str, ...]:
        """Names of the counts that are unknown because other software trained the weights."""
        return tuple(name for name in COUNTS if not getattr(self, name))

    @classmethod
    def stored(cls, train: TrainSettings, metric: str) -> ResolvedTrain:
        """Return the complete training settings of a stored run. Counts may be missing if other
        software trained it. `metric`: the main metric of the task."""
        values = {one.name: getattr(train, one.name) for one in fields(TrainSettings)}
        values |= {name: 0 for name in COUNTS if values[name] is None}
        return cls(**{**values, "metric": values["metric"] or metric})

    @classmethod
    def of(cls, train: TrainSettings) -> ResolvedTrain:
        """Return training settings as `ResolvedTrain`. Every value must be set."""
        values = {one.name: getattr(train, one.name) for one in fields(TrainSettings)}
        missing = [name for name in (*COUNTS, "metric") if values[name] is None]
        assert not missing, f"not resolved yet: {missing}"
        return cls(**values)
