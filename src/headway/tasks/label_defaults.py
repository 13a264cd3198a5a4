"""Default settings of classification, for each kind of input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.media.open_item import UNITS
from headway.data.sniff import MediaType
from headway.data.store import Columns, PreparedData
from headway.errors import ConfigError
from headway.settings.facts import DatasetStats, DeviceInfo, Proposal
from headway.settings.model import ImageSettings
from headway.settings.run import RunSettings
from headway.specs.needs import Modality
from headway.specs.tasks import Spec, spec_for_answer
from headway.tasks.defaults import media_proposal, stored_front, text_proposal
from headway.tasks.label_kinds import TOP
from headway.tasks.media_format import (
    SMALL_IMAGE,
    STANDARD,
    audio_settings,
    image_settings,
    item_rows,
    pixel_statistics,
    stored_format,
)
from headway.tasks.parent_run import parent_of
from headway.tasks.preprocess.text import TextPreprocessor
from headway.tokens.tokenizer import Tokenizer

LONGEST = 512
"""Default maximum length in tokens; longer texts are read in windows."""

SUBWORDS = ("bpe", "unigram", "wordpiece")
VOCAB_SIZE = 8192
"""Default vocabulary size of subword tokenizers. It is large, because whole words are more
informative for labels than their pieces."""

SMALL_TOKENS = 1_000_000
SMALL: dict[str, Any] = {"n_layers": 2, "dropout": 0.3}
"""Default model for fewer than SMALL_TOKENS tokens: more layers overfit sooner."""

LEAST_GRID = 24
"""Smallest side in pixels for a feature grid, whose cells are 8 pixels apart."""

FROM_SCRATCH: dict[str, Any] = {
    "optimizer": "muon", "schedule": "linear", "weight_decay": 0.05, "clip": 1.0,
}  # fmt: skip


IMBALANCED = "imbalanced classes"
"""Start of the reason for choosing macro F1."""

IMBALANCE = 10
"""Ratio of the most frequent class to the rarest one from which classes count as imbalanced:
accuracy then hardly depends on the rare classes."""


def imbalance(facts: DatasetStats) -> str:
    """Reason for choosing the checkpoint by macro F1; empty if the classes are balanced."""
    there = [count for count in facts.counts if count]
    if len(there) < 2 or max(there) < IMBALANCE * min(there):
        return ""
    return f"{IMBALANCED}: {min(there):,} to {max(there):,} examples per class"


SEEN = 1200
"""Target number of times that training shows examples of a rare label. On 24 package tags (4,909
texts; a quarter of the tags have 184 examples or fewer) micro F1 increased until the seventh epoch
and stayed constant until the tenth."""

MOST_PASSES = 10
MOST_READ = {True: 1_200_000, False: 50_000_000}
"""Limit of training tokens when epochs are added, on a CPU (True) and on a GPU: about five minutes
on two cores."""


def passes(facts: DatasetStats, usual: int, device: DeviceInfo) -> int:
    """Number of epochs over texts. Multi-label tasks get more epochs the rarer their labels are,
    because each label is learned only from its own examples."""
    if facts.answer != "labels" or not any(facts.counts):
        return usual
    rare = float(np.quantile([count for count in facts.counts if count], 0.25))
    most = min(MOST_PASSES, MOST_READ[device.is_cpu] // max(1, facts.n_tokens))
    return max(usual, min(most, -(-SEEN // max(1, round(rare)))))


@dataclass(frozen=True)
class LabelDefaults:
    """Output width, metrics and label smoothing for a kind of target."""

    width: int
    metrics: tuple[str, ...]
    label_smoothing: float
    why_metric: str = Proposal.metric_reason

    @classmethod
    def of(cls, row: Spec, facts: DatasetStats) -> LabelDefaults:
        """The head for the targets of a row. Only single-label targets get label smoothing."""
        row, n = spec_for_answer(row, facts.answer), len(facts.labels)
        metrics = tuple(name for name in row.scores if name != "top5" or n > TOP)
        smoothing = 0.1 if row.answers == "label" else 0.0
        if row.answers != "label" or metrics[:2] != ("accuracy", "f1"):
            return cls(n or 1, metrics, smoothing)
        why = imbalance(facts)
        if why:
            metrics = ("f1", "accuracy", *metrics[2:])
        return cls(n, metrics, smoothing, why or cls.why_metric)


def label_stats(facts: DatasetStats, prepared: PreparedData) -> DatasetStats:
    """The facts with the kind of target: class counts, or mean and standard deviation."""
    n = len(facts.labels)
    if "labels" in prepared.train:
        counts = np.bincount(np.asarray(prepared.train["labels"].tokens, np.int64), minlength=n)
        return replace(facts, answer="labels", counts=tuple(counts.tolist()))
    if "label" in prepared.train:
        counts = np.bincount(np.asarray(prepared.train["label"], np.int64), minlength=n)
        return replace(facts, counts=tuple(counts.tolist()))
    if "number" not in prepared.train:
        return facts
    numbers_N = np.asarray(prepared.train["number"], np.float64)
    mean, std = float(numbers_N.mean()), float(numbers_N.std())
    short = [float(f"{one:.7g}") for one in (mean, std if std > 0 else 1.0)]
    return replace(facts, answer="number", mean=short[0], std=short[1])


# Text


def with_words(settings: RunSettings) -> RunSettings:
    """The settings with the default vocabulary size for subword tokenizers."""
    if settings.tokenizer.vocab_size is not None or settings.tokenizer.kind not in SUBWORDS:
        return settings
    return replace(settings, tokenizer=replace(settings.tokenizer, vocab_size=VOCAB_SIZE))


def text_stats(settings: RunSettings, prepared: PreparedData) -> DatasetStats:
    needed = [_needed(part, prepared.tokenizer) for part in (prepared.train, prepared.valid)]
    return DatasetStats(
        n=prepared.train.n,
        n_tokens=int(needed[0].sum()),
        longest=int(np.concatenate(needed).max()),
        vocab_size=prepared.tokenizer.vocab_size,
        labels=tuple(prepared.labels),
        parent=parent_of(settings),
    )


def _needed(part: Columns, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Length of each whole text in tokens."""
    return TextPreprocessor(tokenizer, 1 << 40).input_dataset(part).full_lengths


def propose_text(
    settings: RunSettings, facts: DatasetStats, device: DeviceInfo, head: LabelDefaults
) -> Proposal:
    windows = settings.data.on_long == "split"
    needs: dict[str, object] = {"heads": ("classes",), "n_labels": head.width}
    if settings.model is None and not settings.start.run:
        needs |= SMALL if facts.n_tokens < SMALL_TOKENS else {}
    return text_proposal(
        settings,
        facts,
        device,
        f"{facts.n:,} texts of {facts.n_tokens:,} tokens",
        longest=min(facts.longest, LONGEST) if windows else facts.longest,
        epochs=passes(facts, 3 if facts.n_tokens < 50 * SMALL_TOKENS else 2, device),
        needs=needs,
        least_dropout=0.2,
        training={"lr": 4e-3, "label_smoothing": head.label_smoothing},
        tuning={"label_smoothing": head.label_smoothing},
        metrics=head.metrics,
        ngrams=True,
    )


# Images and videos


def image_stats(settings: RunSettings, prepared: PreparedData) -> DatasetStats:
    stored = stored_format(prepared)
    return DatasetStats(
        n=prepared.train.n,
        labels=tuple(prepared.labels),
        front=image_settings(settings, prepared.modality, stored=stored),
        stored=stored,
        colours=pixel_statistics(prepared.train.images),
        parent=parent_of(settings),
    )


def propose_image(
    settings: RunSettings, facts: DatasetStats, device: DeviceInfo, head: LabelDefaults
) -> Proposal:
    shape = with_stem(facts.image, settings, device)
    rows = facts.rows(shape)
    heads = ("classes", "distilled") if shape.distil_token else ("classes",)
    media: MediaType = "video" if shape.frames > 1 else "image"
    return media_proposal(
        settings,
        facts,
        device,
        f"{facts.n:,} {UNITS[media]}",
        n_rows=rows * facts.n,
        longest=rows,
        epochs=epochs_for(facts.n, device),
        needs={"heads": heads, "n_labels": head.width},
        shape=small_vit(shape, facts.n, device),
        front=stored_front(replace(facts, front=shape)),
        training={
            **FROM_SCRATCH,
            "lr": 8e-3 if device.is_cpu else 4e-3,
            "label_smoothing": head.label_smoothing,
        },
        tuning={"label_smoothing": head.label_smoothing},
        augment=augment_for(shape),
        metrics=head.metrics,
    )


def epochs_for(n_items: int, device: DeviceInfo) -> int:
    """Number of epochs over images: more for small datasets, fewer on a CPU."""
    few, some, many = (60, 20, 5) if device.is_cpu else (300, 100, 30)
    return few if n_items < 5_000 else some if n_items < 50_000 else many


def small_vit(shape: ImageSettings, n_items: int, device: DeviceInfo) -> dict[str, object]:
    """Layers and widths of a ViT with a convolutional stem, for this number of images. Convolutions
    have the locality that a plain ViT must learn from data. On a CPU they also reduce the number
    of patches."""
    tiny = {"n_layers": 3, "d_model": 96, "n_heads": 3, "d_ff": 192}
    small = {"n_layers": 6, "d_model": 192, "n_heads": 3, "d_ff": 576}
    middle = {"n_layers": 9, "d_model": 256, "n_heads": 4, "d_ff": 768}
    large = {"n_layers": 12, "d_model": 384, "n_heads": 6, "d_ff": 1536}
    if device.is_cpu:
        size = tiny
    else:
        size = small if n_items < 10_000 else middle if n_items < 300_000 else large
    return {**size, "pooling": "first" if shape.class_token else "mean"}


def with_stem(shape: ImageSettings, settings: RunSettings, device: DeviceInfo) -> ImageSettings:
    """The front with the default stem for small images, unless the settings choose one."""
    asked = settings.asked.section("model.image")
    named = settings.model is not None or bool(settings.parent)
    if named or "stem" in asked or "patch" in asked or shape.frames > 1:
        return shape
    if max(shape.height, shape.width) > SMALL_IMAGE:
        return shape
    if device.is_cpu and min(shape.height, shape.width) >= LEAST_GRID:
        return replace(shape, stem="grid", stem_width=16)
    return replace(shape, stem="conv", stem_width=16 if device.is_cpu else 64)


def augment_for(shape: ImageSettings) -> dict[str, object]:
    """Default augmentation of images: small shifts, which keep the content. Mirroring and stronger
    changes must be requested, because a mirrored digit, for example, is no longer the same."""
    return {"crop": max(1, min(shape.height, shape.width) // 16)}


def check_token(settings: RunSettings, what: Modality) -> None:
    """Raise ConfigError unless a teacher and a distillation token are set together."""
    if what != "image":
        return
    teacher = settings.classify.teacher
    token = settings.asked.get("model.image.distil_token")
    if teacher and not token and settings.model is None and not settings.parent:
        raise ConfigError(
            f"classify.teacher={teacher} needs a model with a distillation token. "
            "Set model.image.distil_token=true."
        )
    if token and not teacher and not settings.parent:
        raise ConfigError(
            "model.image.distil_token=true needs a teacher. Set classify.teacher=RUN."
        )


# Audio


def audio_stats(settings: RunSettings, prepared: PreparedData) -> DatasetStats:
    stored = stored_format(prepared)
    front = audio_settings(settings, STANDARD, stored)
    rows_N = item_rows(prepared.train.media, front)
    return DatasetStats(
        n=len(rows_N),
        n_tokens=int(rows_N.sum()),
        longest=int(rows_N.max()),
        labels=tuple(prepared.labels),
        front=front,
        stored=stored,
        parent=parent_of(settings),
    )


def propose_audio(
    settings: RunSettings, facts: DatasetStats, device: DeviceInfo, head: LabelDefaults
) -> Proposal:
    return media_proposal(
        settings,
        facts,
        device,
        f"{facts.n:,} recordings",
        n_rows=facts.n_tokens,
        longest=facts.longest,
        epochs=15 if device.is_cpu else 40,
        family="audio-encoder",
        needs={"heads": ("classes",), "n_labels": head.width},
        shape={**size_for(device), "dropout": 0.1},
        front=stored_front(facts),
        training={**FROM_SCRATCH, "lr": 4e-3, "label_smoothing": head.label_smoothing},
        tuning={"label_smoothing": head.label_smoothing},
        augment={"bands": 2, "band_width": 12, "spans": 2, "span_width": 15},
        metrics=head.metrics,
    )


def size_for(device: DeviceInfo) -> dict[str, object]:
    """Layers and widths of an audio model with a small output."""
    if device.is_cpu:
        return {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 256}
    return {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 768}


@dataclass(frozen=True)
class ModalityDefaults:
    """Functions that compute facts and default settings for one kind of data."""

    facts: Callable[[RunSettings, Any], DatasetStats]
    propose: Callable[[RunSettings, DatasetStats, DeviceInfo, LabelDefaults], Proposal]


MODALITY_DEFAULTS = {
    "text": ModalityDefaults(text_stats, propose_text),
    "image": ModalityDefaults(image_stats, propose_image),
    "video": ModalityDefaults(image_stats, propose_image),
    "audio": ModalityDefaults(audio_stats, propose_audio),
}
