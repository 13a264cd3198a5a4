"""Tiny runs that read images, videos and recordings, with random weights that all matter."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.inside.capture.media import MediaInput
from headway.inside.page.look import LookInputs, Page, look, prepare_look
from headway.models.build import build_model
from headway.settings.data import TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSeq2SeqSettings,
    AudioSettings,
    ImageEncoderSettings,
    ImageSeq2SeqSettings,
    ImageSettings,
)
from headway.settings.run import RunSettings, media_settings
from headway.specs.task_settings import CaptionSettings, TranscribeSettings
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.tokenizer import Vocabularies
from headway.tokens.trainer import train_on_texts

WORDS = "a red blue circle square left of above one two three four five six seven"
LABELS = ("cat", "dog", "owl")
SIZES: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48}
RATE = 8000

IMAGE = ImageSettings(height=24, width=32, patch=8)
VIDEO = ImageSettings(height=16, width=16, patch=8, frames=4, tubelet=2)
AUDIO = AudioSettings(rate=RATE, n_fft=200, hop=80, bands=20, max_rows=400)


def tokens() -> Vocabularies:
    words = train_on_texts([WORDS] * 2, TokenizerSettings(kind="words"), 100)
    return Vocabularies(words, words)


def media_run(task: str, **changes: Any) -> LoadedRun:
    """`task` may be `see`, `watch`, `hear`, `captioned-video`, `transcribe-joint` or, for an
    encoder, `transcribe-ctc`."""
    vocab = tokens()
    n_words = vocab.target.vocab_size
    writer = {**SIZES, "vocab_size": n_words, "max_len": 40}
    viewer = {**SIZES, "n_labels": len(LABELS)}
    still = ImageSettings(**{**vars(IMAGE), "class_token": False})
    moving = ImageSettings(**{**vars(VIDEO), "class_token": False})
    models: dict[str, Any] = {
        "see": lambda: ImageEncoderSettings(**{"image": IMAGE} | viewer | changes),
        "watch": lambda: ImageEncoderSettings(image=VIDEO, **viewer | changes),
        "caption": lambda: ImageSeq2SeqSettings(**{"image": still} | writer | changes),
        "captioned-video": lambda: ImageSeq2SeqSettings(image=moving, **writer | changes),
        "hear": lambda: AudioEncoderSettings(audio=AUDIO, **viewer | changes),
        "identify": lambda: AudioEncoderSettings(audio=AUDIO, **viewer | changes),
        "transcribe": lambda: AudioSeq2SeqSettings(**{"audio": AUDIO} | writer | changes),
        "transcribe-joint": lambda: AudioSeq2SeqSettings(audio=AUDIO, ctc=True, **writer | changes),
        "transcribe-ctc": lambda: AudioEncoderSettings(
            audio=AUDIO, heads=("ctc",), vocab_size=n_words, **SIZES | changes
        ),
    }
    shape = models[task]()
    names = {"captioned-video": "caption"} | dict.fromkeys(("see", "watch", "hear"), "classify")
    name = names.get(task, task.partition("-")[0])
    settings = RunSettings(
        task=name,
        model=shape,
        labels=LABELS if "n_labels" in viewer and name in ("classify", "identify") else (),
        decode=DecodeSettings(beam=2, max_len=8),
        caption=CaptionSettings(modality="video" if task == "captioned-video" else "image"),
        transcribe=TranscribeSettings(ctc=1.0 if task.endswith("ctc") else 0.3),
    )
    model = build_model(shape, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # so that heads look at something
    return LoadedRun.of(Path(task), settings, model.eval(), vocab)


def item_for(run: LoadedRun, seed: int = 0) -> NDArray[Any]:
    """Pixels or samples of the right shape."""
    random = np.random.default_rng(seed)
    shape = media_settings(run.settings)
    if isinstance(shape, AudioSettings):
        time = np.arange(int(0.9 * shape.rate)) / shape.rate
        tone = np.sin(2 * np.pi * (300 + 500 * time) * time) * np.sin(9 * time) ** 2
        return (0.4 * tone + 0.01 * random.normal(size=len(time))).astype(np.float32)
    assert shape is not None
    size = (shape.frames, shape.channels, shape.height, shape.width)
    return random.integers(0, 256, size, dtype=np.uint8)


def media_for(run: LoadedRun, seed: int = 0) -> MediaInput:
    shape = media_settings(run.settings)
    assert shape is not None
    return MediaInput.of("example", item_for(run, seed), shape)


@cache
def looked(task: str) -> LookInputs:
    """The usual run of a task, looked at once for all tests: nobody may change it."""
    run = media_run(task)
    return prepare_look(run, media_for(run))


@cache
def page(task: str) -> Page:
    """The same as a page."""
    return look(looked(task).run, media_for(looked(task).run))


@cache
def html(task: str) -> str:
    return page(task).html
