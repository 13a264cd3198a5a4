"""What the user left open in the tasks of one language: the model, its size, how it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from headway.config.asked import nested
from headway.config.folder import TOKENIZER, file_in, load_run, run_folder
from headway.config.load import model_settings
from headway.config.model import ModelSettings, family_of
from headway.config.presets import PRESETS
from headway.config.run import RunSettings
from headway.config.train import known
from headway.errors import ConfigError
from headway.nn.attend import SHORT_LIMIT
from headway.tasks.distil import student_model
from headway.tasks.specs import check_metric, spec_of
from headway.text.tokenizer import Tokenizer, Vocabularies
from headway.training.budget import EVALUATIONS
from headway.training.optim import check_optimizer
from headway.training.plan import (
    FINE_TUNING,
    fine_tuning_rate,
    micro_tokens,
    with_intervals,
    with_precision,
)
from headway.training.start import check_task, model_from, n_words

MODERN: dict[str, Any] = {
    "wiring": "pre",
    "positions": "rotary",
    "attention_bias": "",
    "attention_dropout": 0.0,
    "embedding_scale": False,
    "init": "small",
}
"""Of models that nobody named: what learns fastest from little text, by trying."""

OF_FAMILY: dict[str, dict[str, Any]] = {
    "encoder": {"embedding_norm": False, "n_segments": 0, "pooling": "mean"},
    "decoder": {},
}

FROM_SCRATCH: dict[str, Any] = {
    "optimizer": "muon", "schedule": "linear", "lr": 8e-3, "clip": 1.0, "smoothing": 0.0,
}  # fmt: skip
LORA_RATE = 2e-3
"""Low-rank changes begin at zero and are few: they take a higher rate than the weights would."""

PAPER: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "cosine", "lr": 6e-4, "clip": 1.0, "smoothing": 0.0,
    "weight_decay": 0.1, "beta2": 0.95, "eps": 1e-8, "floor": 0.1,
}  # fmt: skip
"""For presets of published models."""


@dataclass(frozen=True, kw_only=True)
class TextPlan:
    """What a task knows about its data and wants of its model."""

    n_tokens: int
    """Of an epoch, as the model reads them."""

    longest: int
    """Tokens of the longest sequence that is read at once."""

    epochs: int
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of the model that follow from the task: its heads and labels."""

    training: dict[str, Any] = field(default_factory=dict)
    """Where the task differs from the usual training."""

    fine_tuning: dict[str, Any] = field(default_factory=dict)
    """The same for a run that starts from another."""

    least_dropout: float = 0.0
    """For a run that starts from another: text is often learned without dropout, few labels not."""

    decode: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("loss",)
    """The scores it has, its own first."""

    batch_tokens: int | None = None
    """Of a step, where nobody says. None: from the number of tokens and the device."""


def resolve_text(
    settings: RunSettings, tokenizer: Tokenizer, device: torch.device, plan: TextPlan
) -> RunSettings:
    """All settings of a run. What was asked for stays as it was asked for."""
    check_metric(settings.train.metric, settings.task, plan.metrics)
    model, chosen = text_model(settings, tokenizer, device, plan)
    return with_training(replace(settings, model=model), chosen, device, plan)


def with_training(
    settings: RunSettings, chosen: bool, device: torch.device, plan: TextPlan
) -> RunSettings:
    """How the model of the settings is trained; `chosen`: nobody named it."""
    model = settings.model
    assert model is not None
    starts = bool(settings.origin)
    usual = {**FINE_TUNING, "smoothing": 0.0} if starts else FROM_SCRATCH if chosen else PAPER
    own = plan.fine_tuning if starts else plan.training
    values = {"metric": plan.metrics[0], **usual, **own}
    if settings.distil.teacher:  # what its teacher says is soft already
        values["smoothing"] = 0.0
    if settings.lora.rank:
        values["lr"] = LORA_RATE
    elif settings.start.run:
        values["lr"] = fine_tuning_rate(settings.start.run, model)
    train = replace(settings.train, **left_open(settings, "train", values))
    check_optimizer(train)
    if train.batch_tokens is None:
        tokens = plan.batch_tokens or batch_tokens(plan.n_tokens, device)
        train = replace(train, batch_tokens=tokens)
    if train.micro_tokens is None:
        train = replace(train, micro_tokens=micro_tokens(model, known(train.batch_tokens), device))
    if train.steps is None:
        per_epoch = max(1, round(plan.n_tokens / known(train.batch_tokens)))
        train = replace(train, steps=max(100, plan.epochs * per_epoch))
    train = with_intervals(with_precision(train, device), EVALUATIONS)
    decode = replace(settings.decode, **left_open(settings, "decode", plan.decode))
    return replace(settings, train=train, decode=decode)


def text_model(
    settings: RunSettings, tokenizer: Tokenizer, device: torch.device, plan: TextPlan
) -> tuple[ModelSettings, bool]:
    """The model, and whether its shape was chosen here."""
    asked = settings.asked.under("model")
    if settings.distil.teacher:
        return student_model(model_of(settings.distil.teacher), settings), False
    if settings.start.run:
        old = model_of(settings.start.run)
        check_task(settings.start.run, settings.task, old)
        needs = {**plan.model, "dropout": max(old.dropout, plan.least_dropout)}
        needs["vocab_size"] = max(n_words(old), tokenizer.vocab_size)
        if device.type == "cuda" and plan.longest > SHORT_LIMIT:
            needs["attention_dropout"] = 0.0  # none of the kernels for these lengths has it
        return model_from(old, needs, asked, settings.start.run), False
    if asked.get("vocab_size", tokenizer.vocab_size) != tokenizer.vocab_size:
        raise ConfigError(
            "model.vocab_size follows from the tokenizer here. Set tokenizer.vocab_size instead."
        )
    chosen = settings.model is None
    families = spec_of(settings.task).all_families
    changes = dict(asked)
    if chosen:
        changes = {
            "family": families[0],
            **MODERN,
            **OF_FAMILY[families[0]],
            **shape_for(plan.n_tokens, device),
            **plan.model,
            **asked,
        }
    else:
        assert settings.model is not None
        if family_of(settings.model) not in families:
            raise ConfigError(
                f"the task {settings.task} needs a model of the {' or '.join(families)} family; "
                f"{asked.get('preset') or asked.get('family')} is of another."
            )
        changes = {**plan.model, **asked}
    changes["vocab_size"] = tokenizer.vocab_size
    preset = PRESETS.get(str(changes.get("preset")))
    room = preset.settings.max_len if preset else 0
    if "max_len" not in changes and room < plan.longest:
        changes["max_len"] = plan.longest
    return model_settings(nested(changes)), chosen


def shape_for(n_tokens: int, device: torch.device) -> dict[str, int]:
    """Layers and widths for so many tokens an epoch."""
    small = {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 512}
    middle = {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 1024}
    large = {"n_layers": 8, "d_model": 512, "n_heads": 8, "d_ff": 2048}
    base = {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_ff": 3072}
    limits = (2e7, 2e9, 1e11, 1e12) if device.type == "cpu" else (5e5, 2e7, 2e8, 1e12)
    return next(
        shape
        for limit, shape in zip(limits, (small, middle, large, base), strict=True)
        if n_tokens < limit
    )


def batch_tokens(n_tokens: int, device: torch.device) -> int:
    """About a hundred steps an epoch, within what a device likes."""
    most = 4096 if device.type == "cpu" else 65_536
    tokens = 1024
    while tokens < most and tokens < n_tokens / 100:
        tokens *= 2
    return tokens


def tokenizer_of(settings: RunSettings) -> Tokenizer | None:
    """That of the run which this one starts from or learns from, if there is one that has words."""
    if not settings.origin:
        return None
    folder = run_folder(settings.origin)
    if not (folder / TOKENIZER).is_file() and not n_words(model_of(settings.origin)):
        return None
    return Vocabularies.load(file_in(folder, TOKENIZER)).target


def model_of(run: str) -> ModelSettings:
    model = load_run(run_folder(run)).model
    assert model is not None
    return model


def left_open(settings: RunSettings, section: str, values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that the user did not choose."""
    return {key: value for key, value in values.items() if f"{section}.{key}" not in settings.asked}
