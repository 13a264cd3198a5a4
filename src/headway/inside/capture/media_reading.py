"""A picture, a video or a recording becomes a reading: its rows, and what the run answers."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch.nn.functional as F
from torch import Tensor

from headway.decode.speech.window import best_path, speller
from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import gives_vector
from headway.inside.capture.interventions import NO_CHANGE, Change, gated
from headway.inside.capture.media import Media
from headway.inside.capture.streams import Output, Reading
from headway.inside.capture.uncached_greedy import number_read, scores_of
from headway.inside.capture.written import Ask, Source, written
from headway.models.audio import Listener
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import align
from headway.tasks.opened import Opened


def read_media(run: Opened, media: Media, ask: Ask, change: Change) -> Reading:
    """As `reading.read` does it for texts."""
    if Anatomy.of(run.model).is_pair:
        source = Source(media.name, media.stream("source"), media.item, media)
        return written(run, cast(Seq2Seq, run.model), source, ask, change)
    if ask.output is not None or ask.begin:
        raise UserError(
            f"a run of the task {run.settings.task} without a decoder writes nothing, so its "
            "output cannot be given."
        )
    reading = _unanswered(run, media)
    if gives_vector(run):
        vector_D = F.normalize(scores_of(run, reading, NO_CHANGE)[0], dim=-1)
        vector = (Output(None, -1, "vector"),)
        return replace(reading, outputs=vector, direction=tuple(vector_D.tolist()))
    if run.spec.answers == "number":
        return number_read(run, reading, change)
    if run.spec.labelled:
        best = int(scores_of(run, reading, change)[0].argmax())
        labels = run.settings.labels
        label = labels[best] if best < len(labels) else str(best)
        return replace(reading, outputs=(Output(None, best, label),))
    if run.spec.writes:
        return _by_ctc(run, reading, change)
    raise UserError(
        f"a run of the task {run.settings.task} on pictures or recordings rebuilds what is hidden: "
        "it has no answer to look at. Train a run from it, and look at that one."
    )


def _unanswered(run: Opened, media: Media) -> Reading:
    name = Anatomy.of(run.model).stacks[0].stream
    return Reading(
        text=media.name,
        task=run.settings.task,
        streams={name: media.stream(name)},
        outputs=(Output(None, -1, ""),),
        media=media,
    )


def said_by_ctc(run: Opened, media: Media, tokens: list[int]) -> Reading:
    """A recording of which is known what is said in it: where these tokens are likeliest."""
    reading = _unanswered(run, media)
    return _aligned(run, reading, _symbols(run, reading, NO_CHANGE), tokens)


def _symbols(run: Opened, reading: Reading, change: Change) -> Tensor:
    """Log-probabilities of every row."""
    every = tuple(Output(row, -1, "") for row in range(len(reading.last)))
    return scores_of(run, replace(reading, outputs=every), change).log_softmax(-1)


def _by_ctc(run: Opened, reading: Reading, change: Change) -> Reading:
    """Each symbol is read from the row of its stretch where it is likeliest. No search knows of
    hidden rows: with such, the likeliest symbols of all rows are the answer."""
    logs_SV = _symbols(run, reading, change)
    if change.hidden:
        tokens = best_path(logs_SV).tokens
    else:
        assert reading.media is not None
        weight = run.settings.transcribe.ctc
        with gated(run.model, change):
            speaks = speller(
                cast(Listener, run.model), run.vocab.target, run.settings.decode, weight
            )
            tokens = speaks.spell([reading.media.item])[0].tokens
    return _aligned(run, reading, logs_SV, tokens)


def _aligned(run: Opened, reading: Reading, logs_SV: Tensor, tokens: list[int]) -> Reading:
    found = align(logs_SV, tokens, logs_SV.shape[1] - 1) if tokens else None
    if found is None:
        return replace(reading, outputs=())
    names = run.vocab.target.tokens(tokens)
    outputs = []
    for id, name, first, last in zip(tokens, names, found.first, found.last, strict=True):
        row = first + int(logs_SV[first : last + 1, id].argmax())
        outputs.append(Output(row, id, name))
    return replace(reading, outputs=tuple(outputs))
