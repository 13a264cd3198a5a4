"""The pictures and recordings of a proof, and what our model says of them.

They are made here, of many kinds. What writes about them writes greedily, and then scores what it
wrote; what rebuilds hidden parts has some hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headway.decode.search.hypothesis import Specials
from headway.decode.search.searcher import Searcher
from headway.interop.proof import Reading
from headway.interop.proof_inputs import read_streams
from headway.models.parts.heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.devices import CPU
from headway.nn.layout import Layout
from headway.settings.audio import SoundSettings
from headway.settings.decode import DecodeSettings
from headway.settings.vision import PictureSettings
from headway.tasks.intake import Cuts, Gone, Hiding, front_of, intake_of
from headway.tasks.items import Batch, Draw
from headway.tasks.opened import Opened
from headway.tasks.read import EachRow, readout_of

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


def hidden_rows(run: Opened, number: int, item: Item) -> Batch[Gone] | None:
    """An item by this number without what is hidden of it, for a model that rebuilds."""
    if "rebuild" not in getattr(run.shape, "heads", ()):
        return None
    intake = intake_of(run.settings)
    columns = intake.columns([item] * (number + 1))  # what is hidden of one hangs on its number
    items = intake.hide(columns, run.settings.fill).drawn(Draw(0, 0))
    assert isinstance(items, Hiding)
    return items.without(run.model, items.batch(np.array([number]), CPU), training=False)


def n_first(run: Opened, item: Item) -> int:
    """Rows before those that are parts of an item."""
    return sum(unit.special for unit in _cuts(run, item).units(0))


@torch.no_grad()
def read_item(
    run: Opened,
    item: Item,
    target: Sequence[int] | None = None,
    hidden: Batch[Gone] | None = None,
) -> Reading:
    """What our model says of one: its classes, symbols or vector, what it rebuilds, or how it
    scores `target`, which is its own greedy output if none is given."""
    if hidden is not None:
        [stream] = hidden.streams
        rows_R = torch.arange(n_first(run, item), stream.layout.n_rows)
        return read_streams(run, [stream], [0] * stream.layout.n_rows, [], rows_R=rows_R)
    stream = _source(run, item)
    if run.spec.writes and readout_of(run.settings) != EachRow("ctc"):
        words = _written(run, item) if target is None else list(target)
        written = Input(torch.tensor(words), Layout.of([len(words)]))
        return read_streams(run, [stream, written], [], words)
    return read_streams(run, [stream], [0] * stream.layout.n_rows, [])


@torch.no_grad()
def read_ctc(run: Opened, item: Item) -> Reading:
    """What CTC hears beside a decoder."""
    start = Input(torch.zeros(1, dtype=torch.long), Layout.of([1]))
    heard = readout_of(run.settings).read(run.model, _source(run, item), start).more["ctc"]
    return Reading([], [], [], heard.said_RC.numpy(), heard.x_RD.float().numpy())


def _cuts(run: Opened, item: Item) -> Cuts:
    intake = intake_of(run.settings)
    return intake.cut(intake.columns([item]))


def _source(run: Opened, item: Item) -> Input:
    cuts = _cuts(run, item)
    return cuts.shown(cuts.collate(np.arange(1)))


def what_is_said(run: Opened) -> str:
    """What is compared: `proof.compared` has a table of these."""
    heads = getattr(run.shape, "heads", ())
    return "logits" if not heads or "classes" in heads or "ctc" in heads else "vectors"


def _written(run: Opened, item: Item) -> list[int]:
    model = cast(Seq2Seq, run.model)
    settings = DecodeSettings(
        beam=1, max_len=min(LONGEST_OUTPUT, run.shape.max_len - 1), unknown="keep"
    )
    [[best, *_]] = Searcher([model], settings, Specials.of(run.vocab.target))([item])
    return [run.vocab.target.bos, *best.tokens]
