"""Word timestamps of a transcript, from the cross-attention heads that follow the audio, or from
CTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.decode.speech.word_times import (
    AttentionCoverage,
    WordTiming,
    alignment_heads,
    make_word_timings,
    measure_coverage,
    snap_to_pauses,
    token_rows,
)
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.media import MediaInput
from headway.inside.capture.streams import Reading, display_piece
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import written_words
from headway.nn.ctc import align
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import as_model

RowRanges = list[tuple[int, int]]
"""First audio frame of each output, and the end of its frames (exclusive)."""


@dataclass(frozen=True)
class AudioAlignment:
    """Alignment of outputs with audio frames, by the cross-attention heads that follow the audio
    best."""

    heads: list[tuple[int, int]]
    """Layer and head of each aligning head, best first."""

    shares: list[list[float]]
    """Fraction of each head's attention that falls on a single monotonic path through time, with
    one list of heads per layer."""

    rows: RowRanges

    coverage: AttentionCoverage
    """Fractions of the aligning heads' attention that fall on the path and in the interval of the
    word, and the fraction expected by chance."""

    def describe(self) -> str:
        """Return sentences for the user about how well the heads follow the audio."""
        held = self.coverage
        shares = (
            f"{held.on_path:.0%} of the attention of these heads is on the line, and "
            f"{held.in_words:.0%} in the interval of the word that is written (chance: "
            f"{held.chance:.0%}). "
        )
        if not held.is_conclusive:
            return shares + "There are too few words to tell whether these heads follow the audio."
        if held.follows_audio:
            return shares + "These heads follow the audio."
        return shares + "These heads do not follow the audio, so the line gives no word times."


def by_heads(trace: Trace, given: list[tuple[int, int]] | None = None) -> AudioAlignment | None:
    """Align outputs with audio frames by cross-attention. Return None without media,
    cross-attention or outputs.

    `given`: layer and head of heads that are known to align. None: the best heads are selected on
    this input.
    """
    media = trace.reading.media
    layers = trace.attention.get("cross")
    if media is None or not layers or not trace.reading.outputs:
        return None
    n_first = _n_begin(trace.reading)
    places = [(layer, head) for layer, x in enumerate(layers) for head in range(len(x))]
    every_HTS = torch.cat([x.float() for x in layers])[:, n_first:, : media.n_unpadded_rows].numpy()
    numbers, shares = alignment_heads([every_HTS], len(layers[-1]))
    if given is not None:
        numbers = [places.index(place) for place in given]
    rows = token_rows(every_HTS[numbers])
    of_words = zip(trace.reading.outputs, word_of_each(trace.reading), strict=True)
    words = {output.row: number for output, number in of_words}
    of_rows = [words.get(n_first + t, -1) for t in range(len(rows))]
    held = measure_coverage(rows, every_HTS[numbers].mean(0), of_rows)
    by_layer = iter(shares)
    return AudioAlignment(
        [places[number] for number in numbers],
        [[next(by_layer) for _ in layer] for layer in layers],
        [(0, 0)] * n_first + rows,
        held,
    )


def _n_begin(reading: Reading) -> int:
    """Return the number of special tokens, such as language tokens, before the first word of an
    output."""
    special = reading.last.special
    n = 0
    while n + 1 < len(special) and special[n + 1]:
        n += 1
    return n


@torch.no_grad()
def ctc_log_probs(run: LoadedRun, trace: Trace) -> Tensor | None:
    """Return the CTC log-probabilities of all symbols at each audio frame (frames, symbols); the
    blank is the last symbol.

    Frames of padding are left out. Return None if the model has no CTC head.
    """
    model, media = run.model, trace.reading.media
    has = getattr(run.shape, "ctc", False) or "ctc" in getattr(run.shape, "heads", ())
    if media is None or not has:
        return None
    head = as_model(model).head_named("ctc")
    part = Anatomy.of(model).stacks[0]
    x_SD, norm = trace.states[part.name][-1], part.stack.final_norm
    logs_SV: Tensor = head(x_SD if norm is None else norm(x_SD)).float().log_softmax(-1)
    return logs_SV[: media.n_unpadded_rows]


def by_ctc(logs_SV: Tensor, reading: Reading) -> RowRanges | None:
    """Return the CTC forced alignment of each word token of the output to audio frames. Return None
    if the text has more symbols than the audio can hold."""
    numbers = written_words(reading)
    spoken = [place for place, number in enumerate(numbers) if number >= 0]
    if not reading.writes:
        spoken = list(range(len(reading.outputs)))
    symbols = [reading.outputs[place].id for place in spoken]
    found = align(logs_SV, symbols, logs_SV.shape[1] - 1) if symbols else None
    if found is None:
        return None
    rows: RowRanges = [(0, 0)] * len(reading.outputs)
    for place, first, last in zip(spoken, found.first, found.last, strict=True):
        rows[place] = (first, last + 1)
    return rows


def find_word_timings(
    reading: Reading, rows: RowRanges, scores_RC: Tensor | None
) -> list[WordTiming]:
    """Return each word of the output with its start and end in seconds, from the audio frames of
    its tokens."""
    media = reading.media
    assert media is not None
    numbers = word_of_each(reading)
    pieces: dict[int, str] = {}
    for number, output in zip(numbers, reading.outputs, strict=True):
        if number >= 0:
            pieces[number] = pieces.get(number, "") + output.name
    texts = [
        display_piece(pieces.get(number, "")) for number in range(max(numbers, default=-1) + 1)
    ]
    logs = _log_probs(reading, scores_RC)
    names = [output.name for output in reading.outputs]
    return make_word_timings(texts, names, numbers, rows, logs, media.row_s)


def at_pauses(media: MediaInput, words: Sequence[WordTiming]) -> list[WordTiming]:
    """Move each word boundary to a clear pause nearby in the audio, if there is one."""
    return snap_to_pauses(words, waveform_of(media), media.rate)


def word_of_each(reading: Reading) -> list[int]:
    """Return the index of the word that each output is part of; -1 for special tokens."""
    if reading.writes:
        return written_words(reading)
    from headway.decode.align import word_numbers

    return word_numbers([output.name for output in reading.outputs])


def _log_probs(reading: Reading, scores_RC: Tensor | None) -> list[float]:
    if scores_RC is None:
        return [0.0] * len(reading.outputs)
    ids_R1 = torch.tensor([output.id for output in reading.outputs])[:, None]
    logs_R: Tensor = scores_RC.float().log_softmax(-1).gather(1, ids_R1).squeeze(1)
    return [float(x) for x in logs_R]


def waveform_of(media: MediaInput) -> np.ndarray:
    """Return the waveform of a recording as floats between -1 and 1."""
    samples = media.item
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / 32768.0
    return samples.astype(np.float32, copy=False)
