"""Default settings of speech recognition, and checks of settings that contradict each other."""

from __future__ import annotations

from dataclasses import replace

from headway.data.batches import BUCKET_STEPS
from headway.data.store import PreparedData
from headway.errors import ConfigError, DataError
from headway.settings.facts import DatasetStats, DeviceInfo, ParentRun, Proposal, because
from headway.settings.model import AudioSettings, ModelSettings, family_of
from headway.settings.run import Resolved, RunSettings
from headway.settings.warm_start import vocab_size_of
from headway.tasks.defaults import media_proposal, stored_front
from headway.tasks.media_format import item_rows
from headway.tasks.parent_run import model_named, parent_of

MIN_ROWS = 16
"""Shortest window in positions, so that tiny datasets work."""


def propose(settings: RunSettings, facts: DatasetStats, device: DeviceInfo) -> Proposal:
    weight = weight_of(settings, None if facts.parent is None else facts.parent.model)
    alone = weight == 1.0
    # Longer recordings are read in windows: a model does not generalise to unseen lengths.
    front = replace(facts.audio, max_rows=max(MIN_ROWS, facts.longest))
    needs: dict[str, object] = {"heads": ("ctc",)} if alone else {}
    if not alone and (not settings.parent or "transcribe.ctc" in settings.asked):
        needs["ctc"] = weight > 0
    limit = int(1.5 * facts.longest_text) + 16
    # CTC has no smoothing, and its grids are padded: batch recordings of similar length.
    usual = {"label_smoothing": 0.0 if alone else 0.1, "bucket_steps": BUCKET_STEPS}
    found = media_proposal(
        settings,
        facts,
        device,
        f"{facts.n:,} recordings of {facts.n_tokens:,} positions",
        n_rows=facts.n_tokens,
        longest=facts.longest,
        epochs=epochs_for(facts.n_tokens),
        family="audio-encoder" if alone else "audio-seq2seq",
        needs=needs,
        shape={**shape_for(facts.n_tokens, device, alone), "max_len": limit},
        front=stored_front(replace(facts, front=front)),
        training={"lr": 8e-3, **usual},
        tuning=usual,
        augment={"bands": 2, "band_width": max(1, front.bands // 5), "spans": 2,
                 "span_width": 25, "speed": 0.1},
    )  # fmt: skip
    why = f"1.5 times the longest text ({facts.longest_text} tokens), and some spare"
    # A run that this one starts from may know longer texts than these.
    longest = {} if settings.parent else {"max_len": limit}
    characters = {"kind": "characters"} if _needs_characters(settings, facts.parent) else {}
    return found.with_others(
        because(why, "decode", longest),
        because(device.description, "decode", {"batch_tokens": room_for(device)}),
        because("small speech datasets have few words", "tokenizer", characters),
        because("supported by the model", "transcribe", {"ctc": weight}),
    )


def _needs_characters(settings: RunSettings, begun: ParentRun | None) -> bool:
    """Whether to use characters as tokens: the default unless other tokens are requested or a run
    with a vocabulary is the parent, because small speech datasets have few words."""
    asked = any(key.startswith("tokenizer.") for key in settings.asked)
    return not asked and (begun is None or not vocab_size_of(begun.model))


def with_characters(settings: RunSettings) -> RunSettings:
    if not _needs_characters(settings, parent_of(settings)):
        return settings
    return replace(settings, tokenizer=replace(settings.tokenizer, kind="characters"))


def weight_of(settings: RunSettings, begun: ModelSettings | None) -> float:
    """The weight of CTC; for a run that starts from another, one that its model supports."""
    weight = settings.transcribe.ctc
    if begun is None or "transcribe.ctc" in settings.asked:
        return weight
    has = getattr(begun, "ctc", None)
    return 1.0 if has is None else weight if has else 0.0


def shape_for(n_rows: int, device: DeviceInfo, alone: bool) -> dict[str, object]:
    """Layers and widths for this number of audio positions per epoch."""
    small = {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 512}
    middle = {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 1024}
    large = {"n_layers": 12, "d_model": 512, "n_heads": 8, "d_ff": 2048}
    limits = (2_000_000, 50_000_000) if device.is_cpu else (100_000, 10_000_000)
    shape = small if n_rows < limits[0] else middle if n_rows < limits[1] else large
    layers = {} if alone else {"n_decoder_layers": max(2, shape["n_layers"] // 2)}
    return {**shape, **layers}


def epochs_for(n_rows: int) -> int:
    """Number of epochs: more for less data, because augmentation changes recordings every time."""
    return next((n for most, n in ((100_000, 60), (1_000_000, 30), (10_000_000, 20))
                 if n_rows <= most), 10)  # fmt: skip


def room_for(device: DeviceInfo) -> int:
    """Batch size in decoding: positions times beam size."""
    return 8192 if device.is_cpu else 131_072


def check_rows(settings: Resolved, prepared: PreparedData) -> None:
    """Raise DataError if no recording is short enough to be read at once, or if many have more
    tokens than positions: CTC outputs at most one token per position."""
    shape: AudioSettings = settings.model.audio  # type: ignore[union-attr]
    lengths = item_rows(prepared.train.media, shape)
    of_valid = item_rows(prepared.valid.media, shape)
    for rows, what in ((lengths, ""), (of_valid, "validation ")):
        if shape.most_rows is not None and not (rows <= shape.most_rows).any():
            raise DataError(
                f"all {len(rows):,} {what}recordings are longer than the "
                f"{shape.most_rows * shape.row_seconds:g} s that the model reads at once. To split "
                "them, give the `start` and `end` of each part in a list of recordings."
            )
    if not settings.transcribe.ctc:
        return
    texts = prepared.train["text"]
    assert texts is not None
    too_many = int((texts.lengths > lengths).sum())
    if too_many > 0.05 * len(lengths):
        raise DataError(
            f"{too_many:,} of {len(lengths):,} recordings have more tokens than audio frames, but "
            f"CTC outputs at most one token per frame of {1000 * shape.row_seconds:.0f} ms. Use "
            "shorter frames (model.audio.strides), longer tokens (tokenizer.kind=bpe), or no CTC "
            "(transcribe.ctc=0)."
        )


def check_weight(settings: RunSettings) -> None:
    """Raise ConfigError if the model does not support the weight of CTC."""
    model = model_named(settings)
    weight = weight_of(settings, model if settings.parent else None)
    alone = None if model is None else family_of(model) == "audio-encoder"
    if alone and settings.start.run and weight != 1.0:  # its encoder, and a decoder
        alone = None
    if alone is True and weight != 1.0:
        raise ConfigError(
            f"transcribe.ctc={weight:g} needs a decoder, but a model of the audio-encoder family "
            "has only a CTC head. Set transcribe.ctc=1."
        )
    if alone is False and weight == 1.0:
        raise ConfigError(
            "transcribe.ctc=1 trains only a CTC head, which needs a model of the audio-encoder "
            "family. Use such a model, or a smaller transcribe.ctc."
        )
    asked = settings.asked.get("model.ctc")
    if asked is not None and asked != (0.0 < weight < 1.0):
        raise ConfigError(
            f"model.ctc={str(asked).lower()} contradicts transcribe.ctc={weight:g}. model.ctc must "
            "be true if transcribe.ctc is between 0 and 1, and false otherwise. Remove model.ctc."
        )
