"""Tiny runs of every task, with random weights that all matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.decode.engine import Engine
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.folder import file_in, load_run
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSeq2SeqSettings,
    AudioSettings,
    ImageEncoderSettings,
    ImageSeq2SeqSettings,
    ImageSettings,
    ModelSettings,
)
from headway.settings.run import RunSettings, resolved_toml
from headway.specs.task_settings import FillSettings, IdentifySettings
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.task import InferenceRequest, find_task
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_on_texts

from ..models.variants import settings_of, stirred, tiny
from ..training.spoken import write_wav

WORDS = [f"{c}{v}" for c in "bdfgkmp" for v in "aeiou"]
LINES = ["ba de", "go", "", "fi ko ga mo pu ba ba de", "de de ba", "ka  unknown ke ki ko da", "pe"]
LABELS = ("O", "B-x", "I-x")

FAMILY = {"translate": "seq2seq", "complete": "decoder"}
"""Of a task; the others have encoders."""

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "translate": ("relative-grouped", {}),
    "complete": ("llama-like", {}),
    "fill": ("albert-like", {"heads": ("words",)}),
    "classify": ("as-published", {"heads": ("pooled", "classes"), "n_labels": 3}),
    "tag": ("alibi-three-heads", {"heads": ("tags",), "n_labels": 3, "tag_transitions": True}),
    "embed": ("window", {"heads": ("pooled",), "pooling": "mean"}),
}
"""A variant of the models for each task, and what it needs besides."""

SMALL: dict[str, Any] = {"d_model": 32, "n_layers": 1, "n_heads": 4, "d_ff": 48, "dropout": 0.0}
VIDEO = ImageSettings(
    height=16, width=24, patch=8, frames=4, tubelet=2, channels=1, class_token=False
)
GRID = ImageSettings(height=17, width=24, stem="grid", stem_width=4, mean=(0.1, 0.2, 0.3))
STEM = ImageSettings(height=17, width=16, patch=8, stem="conv", stem_width=4, channels=1)
AUDIO = AudioSettings(rate=8000, n_fft=200, hop=80, bands=20, scale="standard", max_rows=120)
WHISPER = replace(AUDIO, pad_s=0.5, positions="whisper", strides=(1, 2, 2), scale="whisper")
WORDY: dict[str, Any] = {**SMALL, "vocab_size": 42, "max_len": 30}

MEDIA: dict[str, tuple[str, ModelSettings]] = {
    "see": ("classify", ImageEncoderSettings(**SMALL, image=GRID, n_labels=3)),
    "see distilled": (
        "classify",
        ImageEncoderSettings(
            **SMALL,
            image=replace(STEM, distil_token=True, stride=4),
            heads=("classes", "distilled"),
            n_labels=3,
        ),
    ),
    "see vectors": (
        "classify",
        ImageEncoderSettings(**SMALL, image=replace(STEM, stem="patches"), heads=("pooled",)),
    ),
    "watch": (
        "classify",
        ImageEncoderSettings(**SMALL, image=VIDEO, n_labels=3, pooling="mean", positions="rotary"),
    ),
    "caption": (
        "caption",
        ImageSeq2SeqSettings(**WORDY, image=replace(GRID, class_token=False)),
    ),
    "hear": ("classify", AudioEncoderSettings(**SMALL, audio=AUDIO, n_labels=3)),
    "identify": ("identify", AudioEncoderSettings(**SMALL, audio=AUDIO, n_labels=3)),
    "identify margin": (
        "identify",
        AudioEncoderSettings(**SMALL, audio=WHISPER, n_labels=3, pooling="first"),
    ),
    "transcribe ctc": (
        "transcribe",
        AudioEncoderSettings(**SMALL, audio=AUDIO, heads=("ctc",), vocab_size=42),
    ),
    "transcribe": ("transcribe", AudioSeq2SeqSettings(**WORDY, audio=AUDIO, ctc=True)),
    "transcribe decoder": ("transcribe", AudioSeq2SeqSettings(**WORDY, audio=WHISPER)),
    "fill images": (
        "fill",
        ImageEncoderSettings(**SMALL, image=STEM, heads=("rebuild",), pooling="mean"),
    ),
    "fill audio": ("fill", AudioEncoderSettings(**SMALL, audio=AUDIO, heads=("rebuild",))),
}
"""Runs that look or listen, by name: their task and model, every front among them."""


def tokenizer() -> Tokenizer:
    """A word is a token."""
    return train_on_texts([" ".join(WORDS)] * 2, TokenizerSettings(kind="words"), 100, ["[MASK]"])


def tiny_run(folder: Path, task: str, variant: str | None = None, **changes: Any) -> Path:
    """A run folder as training leaves it; `variant`: another than `RUNS` has for the task."""
    words = tokenizer()
    usual, more = RUNS[task]
    variant = usual if variant is None else variant
    more = {"n_layers": 1, "vocab_size": words.vocab_size} | more | changes
    family = FAMILY.get(task, "encoder")
    settings = RunSettings(
        task=task,
        model=settings_of(family, variant, **more),
        labels=LABELS if "n_labels" in more else (),
        data=DataSettings(max_len=30, on_long="split"),
        decode=DecodeSettings(beam=2, max_len=12),
    )
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(resolved_toml(settings))
    Vocabularies(words, words).save(folder / "tokenizer.json")
    save_weights(folder, model_weights(tiny(family, variant, **more)))
    return folder


def media_run(folder: Path, name: str, **changes: Any) -> Path:
    """The same for a run of `MEDIA`."""
    words = tokenizer()
    task, model = MEDIA[name]
    if hasattr(model, "vocab_size"):
        model = replace(model, vocab_size=words.vocab_size)
    own: dict[str, Any] = {
        "fill": {"fill": FillSettings(mask=0.4, span=2)},
        "identify": {"identify": IdentifySettings(margin=0.2 * name.endswith("margin"))},
    }
    settings = RunSettings(
        task=task,
        model=replace(model, **changes),
        labels=LABELS if getattr(model, "n_labels", 0) == len(LABELS) else (),
        data=DataSettings(media=("somewhere",)),
        decode=DecodeSettings(beam=2, max_len=12),
        **own.get(task, {}),
    )
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(resolved_toml(settings))
    if hasattr(model, "vocab_size") and task != "fill":
        Vocabularies(words, words).save(folder / "tokenizer.json")
    assert settings.model is not None
    save_weights(folder, model_weights(stirred(build_model(settings.model))))
    return folder


def media_lines(folder: Path, name: str) -> list[str]:
    """Files for a run of `MEDIA` to answer: images, videos or recordings of several lengths."""
    draw = np.random.default_rng(3)
    folder.mkdir(exist_ok=True)
    front = getattr(MEDIA[name][1], "image", None)
    for number in range(4):
        path = folder / str(number)
        if front is None:
            tone = 0.3 * np.sin(np.arange(900 + 2100 * number) * (0.1 + 0.1 * number))
            noisy = tone + draw.normal(0, 0.02, len(tone))
            write_wav(path.with_suffix(".wav"), noisy.astype(np.float32))
        elif front.frames > 1:
            pixels = draw.integers(0, 256, (front.frames, 20, 30)).astype(np.uint8)
            np.save(path.with_suffix(".npy"), pixels)
        else:
            pixels = draw.integers(0, 256, (20, 30, 3)).astype(np.uint8)
            np.save(path.with_suffix(".npy"), pixels)
    return [str(path) for path in sorted(folder.iterdir())]


def lines_for(task: str) -> list[str]:
    if task == "fill":
        return ["ba [MASK] de", "[MASK] go", "fi ko ga [MASK] pu [MASK] ba"]
    return [line for line in LINES if line or task != "tag"]


def answers(
    folder: Path,
    lines: list[str],
    engine: Engine | None = None,
    options: dict[str, Any] | None = None,
    **decode: Any,
) -> list[dict[str, Any]]:
    """What `headway predict --json` says, by torch or by another engine."""
    opened = opened_by(folder, engine)
    settings = decoding(opened.settings, **decode)
    use = InferenceRequest(opened, settings, {"json": True, **(options or {})})
    return [answer.to_dict() for answer in find_task(settings).predictor(use).answers(lines)]


def opened_by(folder: Path, engine: Engine | None = None) -> LoadedRun:
    """By torch, or as if this engine had been asked for."""
    if engine is None:
        return open_run(folder, device="cpu")
    has_words = (folder / "tokenizer.json").is_file()
    vocab = Vocabularies.load(file_in(folder, "tokenizer.json")) if has_words else None
    return LoadedRun((folder,), (load_run(folder),), vocab, engine=engine)


def decoding(settings: RunSettings, **changes: Any) -> RunSettings:
    return replace(settings, decode=replace(settings.decode, **changes))


def assert_same_facts(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    """Texts, labels and counts equal; numbers that were computed nearly so."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same_facts(ours[key], theirs[key], tolerance)
    elif isinstance(ours, Sequence) and not isinstance(ours, str):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same_facts(one, other, tolerance)
    elif isinstance(ours, float):
        np.testing.assert_allclose(theirs, ours, rtol=tolerance, atol=tolerance)
    else:
        assert ours == theirs
