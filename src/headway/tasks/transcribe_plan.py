"""What is chosen for a transcriber where nobody says, and what cannot be chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from headway.config.model import SoundSettings, family_of
from headway.config.run import RunSettings
from headway.data.batches import POOL
from headway.data.media.prepared import PreparedMedia
from headway.errors import ConfigError, DataError
from headway.tasks.specs import spec_of
from headway.training.mediaplan import MediaPlan, flat_front, item_rows, sound_shape
from headway.training.textplan import model_of, tokenizer_of

MIN_ROWS = 16
"""The shortest window: a tiny one may be all that a test has."""


def plan_of(settings: RunSettings, prepared: PreparedMedia, device: torch.device) -> MediaPlan:
    """For settings whose weight of CTC is known."""
    texts = prepared.train.texts
    assert texts is not None
    shape = sound_shape(settings)
    lengths = item_rows(prepared.train.items, shape)
    # Longer recordings are read in windows: a model knows no lengths but those that it heard.
    shape = replace(shape, max_rows=max(MIN_ROWS, int(lengths.max())))
    alone = settings.transcribe.ctc == 1.0
    model: dict[str, Any] = {"heads": ("ctc",)} if alone else {}
    if not alone and (not settings.origin or "transcribe.ctc" in settings.asked):
        model["ctc"] = settings.transcribe.ctc > 0
    n_rows, limit = int(lengths.sum()), int(1.5 * texts.lengths.max()) + 16
    # CTC has no smoothing, and its grids are padded: recordings of like length side by side.
    usual = {"smoothing": 0.0 if alone else 0.1, "pool": POOL}
    decode: dict[str, Any] = {"batch_tokens": room_for(device)}
    if not settings.origin:  # a run may know longer texts than these
        decode["max_len"] = limit
    return MediaPlan(
        n_tokens=n_rows,
        longest=int(lengths.max()),
        n_items=len(prepared.train),
        epochs=epochs_for(n_rows),
        model=model,
        family="sound-encoder" if alone else "sound-seq2seq",
        chosen={**shape_for(n_rows, device, alone), **flat_front(shape), "max_len": limit},
        augment={"bands": 2, "band_width": max(1, shape.bands // 5), "spans": 2,
                 "span_width": 25, "speed": 0.1},
        training={"lr": 8e-3, **usual},
        fine_tuning=usual,
        decode=decode,
        metrics=spec_of(settings).scores,
    )  # fmt: skip


def with_characters(settings: RunSettings) -> RunSettings:
    """Letters, unless someone asks for other tokens: little speech has few words."""
    asked = any(key.startswith("tokenizer.") for key in settings.asked)
    if asked or tokenizer_of(settings) is not None:
        return settings
    return replace(settings, tokenizer=replace(settings.tokenizer, kind="characters"))


def with_weight(settings: RunSettings) -> RunSettings:
    """The weight of CTC, which must be one that the model can do."""
    transcribe = settings.transcribe
    if settings.origin and "transcribe.ctc" not in settings.asked:
        model = model_of(settings.origin)
        has = getattr(model, "ctc", None)
        weight = 1.0 if has is None else transcribe.ctc if has else 0.0
        return replace(settings, transcribe=replace(transcribe, ctc=weight))
    return settings


def shape_for(n_rows: int, device: torch.device, alone: bool) -> dict[str, Any]:
    """Layers and widths for so many rows an epoch."""
    small = {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 512}
    middle = {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 1024}
    large = {"n_layers": 12, "d_model": 512, "n_heads": 8, "d_ff": 2048}
    limits = (2_000_000, 50_000_000) if device.type == "cpu" else (100_000, 10_000_000)
    shape = small if n_rows < limits[0] else middle if n_rows < limits[1] else large
    return shape if alone else {**shape, "n_decoder_layers": max(2, shape["n_layers"] // 2)}


def epochs_for(n_rows: int) -> int:
    """More for less: recordings are changed each time they are heard."""
    return next((n for most, n in ((100_000, 60), (1_000_000, 30), (10_000_000, 20))
                 if n_rows <= most), 10)  # fmt: skip


def room_for(device: torch.device) -> int:
    """Rows, times the beam, that are decoded at once."""
    return 8192 if device.type == "cpu" else 131_072


def check_rows(settings: RunSettings, prepared: PreparedMedia) -> None:
    """Recordings must be short enough to be heard at once; and CTC says at most a token a row, and
    needs a row between two that are alike."""
    shape: SoundSettings = settings.model.sound  # type: ignore[union-attr]
    lengths = item_rows(prepared.train.items, shape)
    of_valid = item_rows(prepared.valid.items, shape)
    for rows, what in ((lengths, ""), (of_valid, "validation ")):
        if shape.most_rows is not None and not (rows <= shape.most_rows).any():
            raise DataError(
                f"all {len(rows):,} {what}recordings are longer than the "
                f"{shape.most_rows * shape.row_seconds:g} s that the model hears at once. Cut "
                "them: a list may give `start` and `end` of parts."
            )
    if not settings.transcribe.ctc:
        return
    texts = prepared.train.texts
    assert texts is not None
    too_many = int((texts.lengths > lengths).sum())
    if too_many > 0.05 * len(lengths):
        raise DataError(
            f"{too_many:,} of {len(lengths):,} recordings have more tokens than rows, and CTC says "
            f"at most one a row of {1000 * shape.row_seconds:.0f} ms. Make rows shorter "
            "(model.sound.strides), tokens longer (tokenizer.kind=bpe), or leave CTC out "
            "(transcribe.ctc=0)."
        )


def check_weight(settings: RunSettings) -> None:
    """A weight of CTC that the model cannot have is an error that says why."""
    weight = with_weight(settings).transcribe.ctc
    model = model_of(settings.origin) if settings.origin else settings.model
    alone = None if model is None else family_of(model) == "sound-encoder"
    if alone is True and weight != 1.0:
        raise ConfigError(
            f"transcribe.ctc={weight:g}: a model of the sound-encoder family has CTC alone, which "
            "is transcribe.ctc=1."
        )
    if alone is False and weight == 1.0:
        raise ConfigError(
            "transcribe.ctc=1 is CTC alone, which needs a model of the sound-encoder family."
        )
    asked = settings.asked.get("model.ctc")
    if asked is not None and asked != (0.0 < weight < 1.0):
        raise ConfigError(
            f"model.ctc={str(asked).lower()} does not go with transcribe.ctc={weight:g}: there is "
            "a head for CTC exactly where it has a weight. Leave model.ctc out."
        )
