"""The pictures and recordings of a proof, and what our model says of them.

They are made here, of many kinds. What writes about them writes greedily, and then scores what it
wrote; what rebuilds hidden parts has some hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.config.decode import DecodeSettings
from headway.config.pictures import PictureSettings
from headway.config.sounds import SoundSettings
from headway.data.masking import Draws, Hider
from headway.decode.hypothesis import Specials
from headway.decode.search import Searcher
from headway.interop.proof import Reading
from headway.interop.reading import read_streams
from headway.models.encoder import Encoder
from headway.models.parts.front import Front
from headway.models.parts.heads import Input
from headway.models.parts.pictures import PictureFront
from headway.models.parts.sounds import SoundFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from headway.tasks.hiding import (
    Hidden,
    hidden_frames,
    hidden_patches,
    without_frames,
    without_patches,
)
from headway.tasks.intake import front_of
from headway.tasks.opened import Opened
from headway.tasks.read import readout_of

N_PICTURES = 8
LONGEST_OUTPUT = 24
SECONDS = (0.4, 1.1, 2.5, 6.0)
"""Lengths of recordings, as far as the model listens."""

Scores = NDArray[np.float32]
Item = NDArray[Any]


def proof_items(run: Opened) -> list[Item]:
    """Pictures or videos, or recordings, with two more of these: one shorter than a frame and one
    that is silent for the most part."""
    shape = front_of(run.settings)
    if isinstance(shape, PictureSettings):
        return proof_pictures(shape)
    sounds = proof_sounds(shape)
    half = np.zeros_like(sounds[1])
    half[: len(half) // 3] = sounds[1][: len(half) // 3]
    return [*sounds, sounds[0][: shape.n_fft // 2], half]


def proof_pictures(shape: PictureSettings, n: int = N_PICTURES) -> list[Item]:
    """Noise, ramps, stripes and flat ones, of the size that the model was made for (T C Y X)."""
    draw = np.random.default_rng(7)
    size = (shape.frames, shape.channels, shape.height, shape.width)
    y, x = np.mgrid[: shape.height, : shape.width]
    found: list[Item] = []
    for number in range(n):
        noise = draw.integers(0, 256, size, dtype=np.uint8)
        ramp = (y * (number + 1) * 7 + x * (n - number) * 5) % 256
        flat = draw.integers(0, 256, (1, shape.channels, 1, 1), dtype=np.uint8)
        kinds = (noise, ramp, np.where((x // (number + 2)) % 2, ramp, flat), flat)
        found.append(np.broadcast_to(kinds[number % len(kinds)], size).astype(np.uint8))
    return found


def proof_sounds(shape: SoundSettings) -> list[Item]:
    """Noise and tones that rise, of several lengths, as 16-bit samples."""
    draw = np.random.default_rng(7)
    found: list[Item] = []
    for number, seconds in enumerate(SECONDS):
        longest = shape.pad_s or seconds
        if shape.most_rows is not None:
            longest = min(longest, shape.most_rows * shape.row_seconds)
        time_S = np.arange(round(min(seconds, longest) * shape.rate)) / shape.rate
        tone_S = np.sin(2 * np.pi * (200 + 150 * number + 400 * time_S) * time_S)
        noise_S = draw.normal(size=len(time_S))
        both_S = 6000 * (tone_S if number % 2 else noise_S / 3) + 300 * noise_S
        found.append(np.clip(both_S, -32768, 32767).astype(np.int16))
    return found


def hidden_rows(run: Opened, number: int, item: Item) -> Hidden | None:
    """What is hidden of an item by this number, of a model that rebuilds."""
    model, shape = run.model, front_of(run.settings)
    if not isinstance(model, Encoder) or "rebuild" not in model.heads:
        return None
    fill, numbers, draws = run.settings.fill, np.array([number]), Draws(0, 0)
    hider = Hider(fill.mask, fill.span)
    if isinstance(shape, PictureSettings):
        return hidden_patches(hider, numbers, shape, draws, 1)
    frames = np.array([shape.frames_of(len(item))])
    return hidden_frames(hider, numbers, frames, shape, draws)


@torch.no_grad()
def read_item(
    run: Opened,
    item: Item,
    target: Sequence[int] | None = None,
    hidden: Hidden | None = None,
) -> Reading:
    """What our model says of one: its classes, symbols or vector, what it rebuilds, or how it
    scores `target`, which is its own greedy output if none is given."""
    model = run.model
    if isinstance(model, Encoder):
        front = model.front
        assert isinstance(front, Front)
        given, layout = front.collate([item])
        if hidden is not None and isinstance(front, PictureFront):
            given, _ = without_patches(front, given, hidden.rows_R, hidden.gone)
        elif hidden is not None and isinstance(front, SoundFront):
            given, _ = without_frames(front, given, hidden.gone)
        rows_R = None
        if hidden is not None:  # first rows are no part of a picture
            shape = front_of(run.settings)
            extra = shape.extra if isinstance(shape, PictureSettings) else 0
            rows_R = torch.arange(extra, layout.n_rows)
        return read_streams(run, [Input(given, layout)], [0] * layout.n_rows, [], rows_R=rows_R)
    assert isinstance(model, Seq2Seq)
    words = list(_written(run, model, item)) if target is None else list(target)
    written = Input(torch.tensor(words), Layout.of([len(words)]))
    return read_streams(run, [_source(model, item), written], [], words)


@torch.no_grad()
def read_ctc(run: Opened, item: Item) -> Reading:
    """What CTC hears beside a decoder."""
    model = run.model
    assert isinstance(model, Seq2Seq)
    source, start = _source(model, item), Input(torch.zeros(1, dtype=torch.long), Layout.of([1]))
    heard = readout_of(run.settings).read(model, source, start).more["ctc"]
    return Reading([], [], [], heard.said_RC.numpy(), heard.x_RD.float().numpy())


def _source(model: Seq2Seq, item: Item) -> Input:
    return Input(*model.source_front.collate([item]))


def what_is_said(run: Opened) -> str:
    """What is compared: `proof.compared` has a table of these."""
    heads = list(run.model.heads) if isinstance(run.model, Encoder) else []
    return "logits" if not heads or "classes" in heads or "ctc" in heads else "vectors"


def _written(run: Opened, model: Seq2Seq, item: Item) -> list[int]:
    settings = DecodeSettings(
        beam=1, max_len=min(LONGEST_OUTPUT, run.shape.max_len - 1), unknown="keep"
    )
    [[best, *_]] = Searcher([model], settings, Specials.of(run.vocab.target))([item])
    return [run.vocab.target.bos, *best.tokens]
