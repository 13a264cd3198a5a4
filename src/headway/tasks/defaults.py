"""Default settings shared by tasks. Each task adds its own in `propose`.

The functions depend only on their arguments: the same settings and facts give the same proposal.
"""

from __future__ import annotations

from typing import Any

from headway.settings.facts import (
    ChosenSetting,
    DatasetStats,
    DeviceInfo,
    Proposal,
    SettingValues,
    because,
)
from headway.settings.model import EncoderSettings, ModelSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.settings.warm_start import gets_decoder
from headway.tasks.media_format import flat_front

FINE_TUNING: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "linear", "lr": 3e-4, "clip": 1.0, "weight_decay": 0.01,
}  # fmt: skip
PUBLISHED_LR = 1e-4, 0.0384
"""Learning rate for fine-tuning imported weights: the maximum, and a number that is divided by
d_model (5e-5 for BERT-base). Higher learning rates destroy the pretraining."""

LORA_LR = 2e-3
"""Learning rate of LoRA matrices. They start at zero and are small, so they need a higher learning
rate than full weights."""

FROM_SCRATCH: dict[str, Any] = {
    "optimizer": "muon", "schedule": "linear", "lr": 8e-3, "clip": 1.0, "label_smoothing": 0.0,
}  # fmt: skip
PAPER: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "cosine", "lr": 6e-4, "clip": 1.0, "label_smoothing": 0.0,
    "weight_decay": 0.1, "beta2": 0.95, "eps": 1e-8, "floor": 0.1,
}  # fmt: skip
"""Training settings for presets of published models."""

MODERN_TEXT: dict[str, Any] = {
    "block_layout": "pre",
    "positions": "rotary",
    "attention_bias": "",
    "attention_dropout": 0.0,
    "embedding_scale": False,
    "init": "small",
}
"""Settings of text models without a preset: what learned fastest from little text in
experiments."""

OF_FAMILY: dict[str, dict[str, Any]] = {
    "encoder": {"embedding_norm": False, "n_segments": 0, "pooling": "mean"},
    "decoder": {},
}
MODERN_MEDIA: dict[str, Any] = {"block_layout": "pre", "activation": "gelu", "init": "small"}

WORDS = ("bpe", "unigram", "wordpiece", "words")
"""Kinds of tokenizers whose tokens are words or large parts of them."""

LEAST_NGRAMS, NGRAMS, NGRAM_WEIGHTS, NGRAM_TOKENS = 1 << 10, 1 << 17, 1 << 21, 5_000_000
"""Limits for the n-gram table: smallest and largest number of buckets, largest number of weights,
and the number of training tokens up to which a table is used."""

LEARNS_FAST = "learned fastest on small datasets in our experiments"
OWN = "required by the task"


def training_reason(settings: RunSettings, amount: str, device: DeviceInfo) -> str:
    """Reason for training settings: how the weights are initialised, and the amount of data."""
    if settings.distil.teacher:
        return f"distilled from {settings.distil.teacher}, {amount}"
    if settings.start.run:
        return f"fine-tuned from {settings.start.run}, {amount}"
    if settings.model is not None:
        return "published recipe for models of this kind"
    return f"{amount}, from scratch on {device.description}"


def tuned_lr(
    settings: RunSettings, facts: DatasetStats, model: ModelSettings
) -> dict[str, ChosenSetting]:
    """Peak learning rate for fine-tuning a run, trained here or imported."""
    run = settings.start.run
    if facts.parent is None or not facts.parent.imported:
        why = f"fine-tuned from {run}, which needs a lower learning rate than training from scratch"
        return because(why, "train", {"lr": float(FINE_TUNING["lr"])})
    most, at_width = PUBLISHED_LR
    why = f"{run} was imported: higher learning rates would destroy its pretraining"
    return because(why, "train", {"lr": min(most, at_width / model.d_model)})


def fresh_decoder(settings: RunSettings, facts: DatasetStats, family: str) -> bool:
    """Whether the run starts from an encoder and gets a new decoder."""
    starts = facts.parent is not None and bool(settings.start.run)
    return starts and facts.parent is not None and gets_decoder(facts.parent.model, family)


def text_proposal(
    settings: RunSettings,
    facts: DatasetStats,
    device: DeviceInfo,
    amount: str,
    *,
    longest: int,
    epochs: int,
    needs: SettingValues | None = None,
    training: SettingValues | None = None,
    tuning: SettingValues | None = None,
    least_dropout: float = 0.0,
    metrics: tuple[str, ...] = (),
    ngrams: bool = False,
) -> Proposal:
    """Default settings for tasks on text of one language.

    `needs`: settings that the model must have. `training` and `tuning`: training settings that
    differ from the defaults, for runs from scratch and for fine-tuning. `ngrams`: whether an n-gram
    table helps with the labels of the task. `least_dropout`: smallest dropout for fine-tuning.
    Language models are often pretrained without dropout, but few labels need it."""
    family = spec_of(settings).families[0]
    shape = shape_for(facts.n_tokens, device)
    kept: dict[str, ChosenSetting] = {}
    beside = ngram_table(settings, facts) if ngrams else {}
    if facts.parent is not None:
        kept |= _dropout(facts.parent.model, least_dropout) | beside
    return Proposal(
        needs=because(OWN, "model", needs or {}),
        model=because("default family of the task", "model", {"family": family})
        | because(LEARNS_FAST, "model", {**MODERN_TEXT, **OF_FAMILY[family]})
        | because(f"{facts.n_tokens:,} tokens on {device.description}", "model", shape)
        | beside,
        changes=kept,
        others=training_of(settings, facts, device, amount, training or {}, tuning or {}),
        room=longest,
        n_tokens=facts.n_tokens,
        epochs=epochs,
        batch_tokens=batch_tokens(facts.n_tokens, device),
        amount=amount,
        metrics=metrics or spec_of(settings).scores,
    )


def ngram_table(settings: RunSettings, facts: DatasetStats) -> dict[str, ChosenSetting]:
    """The size of the n-gram table for tasks with labels and little text. A run that starts from
    one with a table gets the same size. Imported models get none, so that they can be exported to
    their original format."""
    begun = facts.parent
    if begun is not None and (had := getattr(begun.model, "ngrams", 0)):
        return because("same as the run it starts from", "model", {"ngrams": had})
    if begun is not None and (begun.imported or not isinstance(begun.model, EncoderSettings)):
        return {}
    asked = settings.asked.section("model")
    other = {"heads", "family"} & set(asked) or settings.tokenizer.kind not in WORDS
    if other or facts.n_tokens > NGRAM_TOKENS:
        return {}
    n, width = LEAST_NGRAMS, max(1, len(facts.labels))
    while n < 4 * facts.n_tokens and 2 * n * width <= NGRAM_WEIGHTS and n < NGRAMS:
        n *= 2
    why = f"few tokens ({facts.n_tokens:,}): word and word-pair features help with little text"
    return because(why, "model", {"ngrams": n})


def media_proposal(
    settings: RunSettings,
    facts: DatasetStats,
    device: DeviceInfo,
    amount: str,
    *,
    n_rows: int,
    longest: int,
    epochs: int,
    family: str = "",
    needs: SettingValues | None = None,
    shape: SettingValues | None = None,
    front: SettingValues | None = None,
    training: SettingValues | None = None,
    tuning: SettingValues | None = None,
    augment: SettingValues | None = None,
    metrics: tuple[str, ...] = (),
) -> Proposal:
    """Default settings for tasks on images, video and audio.

    `n_rows` and `longest` count positions (patches or frames). `shape` (layers and widths) and
    `front` (input layers) apply to models without a preset."""
    family = family or spec_of(settings).families[0]
    chosen = {"family": family, **MODERN_MEDIA}
    anew = fresh_decoder(settings, facts, family)
    return Proposal(
        needs=because(OWN, "model", needs or {}),
        model=because("default family of the task", "model", chosen)
        | because(f"{amount} on {device.description}", "model", shape or {})
        | because("fits the format of the data", "model", front or {}),
        changes={} if facts.parent is None else _dropout(facts.parent.model, 0.0),
        others=training_of(settings, facts, device, amount, training or {}, tuning or {}, anew=anew)
        | because("mild augmentation that keeps the content", "augment", augment or {}),
        room=longest,
        n_tokens=n_rows,
        epochs=epochs,
        batch_tokens=batch_rows(n_rows, facts.n, longest, device),
        amount=amount,
        metrics=metrics or spec_of(settings).scores,
    )


def training_of(
    settings: RunSettings, facts: DatasetStats, device: DeviceInfo, amount: str,
    training: SettingValues, tuning: SettingValues, *, anew: bool = False,
) -> dict[str, ChosenSetting]:  # fmt: skip
    """Training settings for text and media: from scratch, for fine-tuning, or for a new decoder on
    the encoder of a run."""
    starts, why = facts.parent is not None, training_reason(settings, amount, device)
    if anew:
        return decoder_training(settings, facts, {**FROM_SCRATCH, **training}, tuning)
    usual = FROM_SCRATCH if settings.model is None else PAPER
    if starts:
        usual = {**FINE_TUNING, "label_smoothing": 0.0}
    found = because(why, "train", {**usual, **(tuning if starts else training)})
    if settings.distil.teacher:
        found |= because("the teacher's probabilities are soft", "train", {"label_smoothing": 0.0})
    if settings.lora.rank:
        why = "LoRA matrices start at zero and are small"
        found |= because(why, "train", {"lr": LORA_LR})
    elif settings.start.run and facts.parent is not None:
        found |= tuned_lr(settings, facts, facts.parent.model)
    return found


def decoder_training(
    settings: RunSettings, facts: DatasetStats, training: SettingValues, tuning: SettingValues
) -> dict[str, ChosenSetting]:
    """Training settings for a new decoder after a trained encoder: those of training from scratch,
    or gentler ones if the encoder was imported and would otherwise lose its pretraining."""
    assert facts.parent is not None
    why = f"the decoder is new; the encoder is from {settings.start.run}"
    if not facts.parent.imported:
        return because(why, "train", training)
    why += ", which was imported"
    return because(why, "train", {**FINE_TUNING, "label_smoothing": 0.0, **tuning})


def stored_front(facts: DatasetStats) -> dict[str, object]:
    """Model settings for the stored form of media, with the measured pixel statistics."""
    assert facts.front is not None
    colours = {f"image.{name}": values for name, values in facts.colours.items()}
    return flat_front(facts.front) | colours


def _dropout(model: ModelSettings, least: float) -> dict[str, ChosenSetting]:
    few = "prevents overfitting on few examples"
    why = few if model.dropout < least else "same as the run it starts from"
    return because(why, "model", {"dropout": max(model.dropout, least)})


def shape_for(n_tokens: int, device: DeviceInfo) -> dict[str, int]:
    """Layers and widths for this number of tokens per epoch."""
    small = {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 512}
    middle = {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 1024}
    large = {"n_layers": 8, "d_model": 512, "n_heads": 8, "d_ff": 2048}
    base = {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_ff": 3072}
    limits = (2e7, 2e9, 1e11, 1e12) if device.is_cpu else (5e5, 2e7, 2e8, 1e12)
    return next(
        shape
        for limit, shape in zip(limits, (small, middle, large, base), strict=True)
        if n_tokens < limit
    )


def batch_tokens(n_tokens: int, device: DeviceInfo) -> int:
    """Batch size for about a hundred steps per epoch, within limits for the device."""
    most = 4096 if device.is_cpu else 65_536
    tokens = 1024
    while tokens < most and tokens < n_tokens / 100:
        tokens *= 2
    return tokens


def batch_rows(n_rows: int, n_items: int, longest: int, device: DeviceInfo) -> int:
    """Batch size in positions for about a hundred steps per epoch, in items of the mean size."""
    most = 128 if device.is_cpu else 512
    n = 16
    while 2 * n <= most and n < n_items / 100:
        n *= 2
    return max(longest, round(n * n_rows / max(1, n_items)))
