"""Statistics of prepared texts, images, videos and audio, and of their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headway.data.store import Columns, PreparedData
from headway.settings.facts import DatasetStats
from headway.settings.run import RunSettings
from headway.specs.needs import Modality
from headway.tasks.media_format import (
    audio_settings,
    image_settings,
    item_rows,
    pixel_statistics,
    stored_format,
)
from headway.tasks.parent_run import parent_of
from headway.tasks.preprocess.text import TextPreprocessor
from headway.tokens.tokenizer import Tokenizer


def label_stats(facts: DatasetStats, prepared: PreparedData) -> DatasetStats:
    """Return the statistics with those of the targets added: class counts, or mean and standard
    deviation of numbers."""
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
    return TextPreprocessor(tokenizer, 1 << 40).input_dataset(part).full_lengths


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


def audio_stats(settings: RunSettings, prepared: PreparedData) -> DatasetStats:
    stored = stored_format(prepared)
    front = audio_settings(settings, stored)
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


STATS_OF: Mapping[Modality, Callable[[RunSettings, PreparedData], DatasetStats]] = {
    "text": text_stats, "image": image_stats, "video": image_stats, "audio": audio_stats,
}  # fmt: skip
"""Function that computes the statistics of prepared examples, for each modality."""
