"""A text becomes a reading: cut into tokens as the run's task cuts it, and answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F

from headway.data.readers.jsonl import parse_object, value_text
from headway.decode.search.fixed_models import learned
from headway.decode.search.hypothesis import Specials
from headway.decode.search.prompts import PromptSearcher, too_long
from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import gives_vector
from headway.inside.capture.interventions import NO_CHANGE, Change, gated
from headway.inside.capture.media import Media, media_settings, open_media
from headway.inside.capture.media_reading import read_media
from headway.inside.capture.streams import Output, Reading, Stream
from headway.inside.capture.uncached_greedy import greedily, number_read, scores_of
from headway.inside.capture.written import (
    NEW_TOKENS,
    PLAINLY,
    Ask,
    Source,
    given_tokens,
    next_outputs,
    only,
    written,
)
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from headway.tasks.complete_answers import field_prompt
from headway.tasks.opened import Opened
from headway.tasks.text_items import gapped, tagged, text_items

__all__ = ["NEW_TOKENS", "PLAINLY", "Ask", "Output", "Reading", "Stream", "read"]


def read(
    run: Opened, text: str | Path | Media, ask: Ask = PLAINLY, change: Change = NO_CHANGE
) -> Reading:
    """The text as the run reads it, and what the run answers, with the model changed or not.

    A run of pictures, videos or recordings reads a file.
    """
    if isinstance(text, Media):
        return read_media(run, text, ask, change)
    if media_settings(run) is not None:
        return read_media(run, open_media(run, text), ask, change)
    if not isinstance(text, str):
        raise UserError(f"{run.folder.name} reads text, not files. Give the text itself.")
    if not text.strip():
        raise UserError("the text is empty. Give a text to look at: --text 'A sentence.'")
    if Anatomy.of(run.model).is_pair:
        return _translated(run, cast(Seq2Seq, run.model), text, ask, change)
    if run.spec.continues:
        return _continued(run, cast(Decoder, run.model), text, ask, change)
    if ask.output is not None or ask.begin:
        raise UserError(
            f"a run of the task {run.settings.task} writes no text, so its output cannot be given."
        )
    return _labelled(run, text, change)


def context(run: Opened) -> int:
    """The most tokens of a text that the run reads, special ones included."""
    if Anatomy.of(run.model).is_pair:
        ends = [learned(part.front) for part in Anatomy.of(run.model).stacks]
        more = len(run.vocab.source.as_source([]))
        return min([run.settings.data.max_len + more, *(end for end in ends if end is not None)])
    return run.shape.max_len


def _translated(run: Opened, model: Seq2Seq, text: str, ask: Ask, change: Change) -> Reading:
    source = run.vocab.source
    ids = source.as_source(source.encode(text))
    _check(run, len(ids))
    return written(run, model, Source(text, Stream.of("source", ids, source), ids), ask, change)


def _continued(run: Opened, model: Decoder, text: str, ask: Ask, change: Change) -> Reading:
    tokenizer = run.vocab.source
    prompt = _prompt(run, text)
    room = context(run)
    if len(prompt) > room:
        raise too_long("the text", len(prompt), room)
    given = given_tokens(ask, tokenizer)
    start = [*prompt, *(tokenizer.encode(ask.begin) if ask.begin else [])]
    new = min(ask.new, room - len(start))
    if given is not None:
        tokens, finished = given, False
    elif new < 1:
        tokens, finished = [], False
    elif only(change, "text", len(prompt)).hidden:
        decode = replace(DecodeSettings(beam=1), max_len=new)
        stream = Stream.of("text", start, tokenizer)
        found = greedily(run, stream, start, only(change, "text", len(prompt)), decode)
        tokens, finished = found.tokens, found.finished
    else:
        decode = DecodeSettings(beam=1) if ask.decode is None else ask.decode
        search = PromptSearcher([model], replace(decode, max_len=new), Specials.of(tokenizer), room)
        with gated(model, replace(change, hidden=frozenset())):
            best = search([start])[0][0]
        tokens, finished = best.tokens, best.finished
    ids = [*start, *tokens][:room]
    reading = Reading(
        text=text,
        task="complete",
        streams={"text": Stream.of("text", ids, tokenizer)},
        outputs=next_outputs([*ids[1:], tokenizer.eos], tokenizer),
        n_given=len(prompt),
        finished=finished,
    )
    if finished:
        return reading
    # Nobody chose what follows the last token: it is what the model holds likeliest.
    last = int(scores_of(run, reading, change)[-1].argmax())
    behind = next_outputs([last], tokenizer, len(ids) - 1)
    return replace(reading, outputs=(*reading.outputs[:-1], *behind))


def _prompt(run: Opened, text: str) -> list[int]:
    """Of a run with fields, a line of JSON is a document, and its first missing field begins."""
    tokenizer, fields = run.vocab.source, run.settings.data.fields
    if not fields or not text.lstrip().startswith("{"):
        return tokenizer.as_prompt(tokenizer.encode(text))
    values = parse_object(text, "the text")
    known: dict[str, str] = {}
    for name in fields:
        if not values.get(name):
            return field_prompt(known, name, tokenizer)
        known[name] = value_text(values[name], name, "the text")
    return field_prompt(known, None, tokenizer)


def _labelled(run: Opened, text: str, change: Change) -> Reading:
    """Classes, tags, filled gaps or a vector: what is asked does not hang on the answer."""
    answers = run.spec.answers
    if answers == "tags":
        item = tagged(run, text)
    else:
        item = gapped(run, text) if answers == "gaps" else text_items(run, [text])[0]
    _check(run, item.needed)
    rows: Sequence[int | None] = [None] if item.rows is None else item.rows
    reading = Reading(
        text=text,
        task=run.settings.task,
        streams={"text": Stream.of("text", item.ids, run.vocab.source)},
        outputs=tuple(Output(row, -1, "vector") for row in rows),
        segments=tuple(item.segments),
    )
    if gives_vector(run):
        vector_D = F.normalize(scores_of(run, reading, NO_CHANGE)[0], dim=-1)
        return replace(reading, direction=tuple(vector_D.tolist()))
    if run.spec.answers == "number":
        return number_read(run, reading, change)
    chosen = _choose(run, reading, change)
    return replace(
        reading,
        outputs=tuple(
            Output(row, id, _name(run, id)) for row, id in zip(rows, chosen, strict=True)
        ),
    )


def _choose(run: Opened, reading: Reading, change: Change) -> list[int]:
    tokenizer = run.vocab.source
    rows = [output.row for output in reading.outputs]
    scores_RC = scores_of(run, reading, change)
    if reading.answers != "gaps":
        return [int(id) for id in scores_RC.argmax(-1)]
    scores_RC[:, sorted(tokenizer.specials)] = -torch.inf
    best = [int(id) for id in scores_RC.argmax(-1)]
    ids = reading.last.ids
    there = [ids[row] for row in rows if row is not None]
    return [new if old == tokenizer.mask else old for new, old in zip(best, there, strict=True)]


def _name(run: Opened, id: int) -> str:
    if run.spec.answers == "gaps":
        return run.vocab.source.tokens([id])[0]
    labels = run.settings.labels
    return labels[id] if id < len(labels) else str(id)


def _check(run: Opened, n_tokens: int) -> None:
    if n_tokens > context(run):
        raise too_long("the text", n_tokens, context(run))
