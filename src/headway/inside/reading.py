"""A text becomes a reading: cut into tokens as the run's task cuts it, and answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from headway.config.decode import DecodeSettings
from headway.config.model import Seq2SeqSettings
from headway.data.readers.jsonl import parse_object, value_text
from headway.data.streams import mark_names
from headway.decode.bodies import learned
from headway.decode.hypothesis import Specials
from headway.decode.prompts import PromptSearcher, too_long
from headway.errors import DataError, UserError
from headway.inside.anatomy import Anatomy
from headway.inside.change import NO_CHANGE, Change, gated
from headway.inside.forward import gives_vector
from headway.inside.greedy import greedily, scores_of
from headway.inside.media import Media, media_settings, open_media
from headway.inside.media_reading import read_media
from headway.inside.streams import Output, Reading, Stream
from headway.inside.written import (
    NEW_TOKENS,
    PLAINLY,
    Ask,
    Source,
    given_tokens,
    next_outputs,
    only,
    written,
)
from headway.interop.reading import segments_of
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.tasks.fill_answers import GAP
from headway.tasks.opened import Opened
from headway.tasks.tag_answers import words_of
from headway.text.tokenizer import Tokenizer

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
    if isinstance(run.model, Seq2Seq):
        return _translated(run, run.model, text, ask, change)
    if run.spec.continues:
        assert isinstance(run.model, Decoder)
        return _continued(run, run.model, text, ask, change)
    if ask.output is not None or ask.begin:
        raise UserError(
            f"a run of the task {run.settings.task} writes no text, so its output cannot be given."
        )
    return _labelled(run, text, change)


def context(run: Opened) -> int:
    """The most tokens of a text that the run reads, special ones included."""
    if isinstance(run.shape, Seq2SeqSettings):
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
    ids = [*tokenizer.prompt_ends[0]]
    for name in fields:
        before, behind = (tokenizer.special(mark) for mark in mark_names([name]))
        assert before is not None
        assert behind is not None
        if not values.get(name):
            return [*ids, before]
        ids += [before, *tokenizer.encode(value_text(values[name], name, "the text")), behind]
    return ids


def _labelled(run: Opened, text: str, change: Change) -> Reading:
    """Classes, tags, filled gaps or a vector: what is asked does not hang on the answer."""
    tokenizer, answers = run.vocab.source, run.spec.answers
    rows: list[int | None] = [None]
    segments: list[int] = []
    if answers == "tags":
        flat, pieces = tokenizer.encode_words([words_of(text, "the text")])
        sizes = [int(size) for size in pieces.ids]
        first = len(tokenizer.text_ends[0])
        rows = [first + sum(sizes[:number]) for number in range(len(sizes))]
        ids = tokenizer.as_text([int(i) for i in flat.ids])
    elif answers == "gaps":
        ids, rows = _gapped(text, tokenizer)
    else:
        ids, segments = _pair(run, text)
    _check(run, len(ids))
    reading = Reading(
        text=text,
        task=run.settings.task,
        streams={"text": Stream.of("text", ids, tokenizer)},
        outputs=tuple(Output(row, -1, "vector") for row in rows),
        segments=tuple(segments or segments_of(run, ids)),
    )
    if gives_vector(run):
        vector_D = F.normalize(scores_of(run, reading, NO_CHANGE)[0], dim=-1)
        return replace(reading, direction=tuple(vector_D.tolist()))
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


def _gapped(text: str, tokenizer: Tokenizer) -> tuple[list[int], list[int | None]]:
    """A text with gaps, which are what is asked; without one every token is."""
    parts = GAP.split(text)
    parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
    goes_on = torch.tensor([False] + [True] * (len(parts) - 1)).numpy()
    found = tokenizer.encode_parts(parts, goes_on).lists()
    ids = [tokenizer.bos, *found[0]]
    rows: list[int | None] = []
    for part in found[1:]:
        assert tokenizer.mask is not None
        rows.append(len(ids))
        ids += [tokenizer.mask, *part]
    return [*ids, tokenizer.eos], rows or list(range(1, len(ids)))


def _pair(run: Opened, text: str) -> tuple[list[int], list[int]]:
    tokenizer, data = run.vocab.source, run.settings.data
    if data.fields and run.spec.reads == "labelled":
        ids: list[int] = []
        for name, value in parse_object(text, "the text").items():
            before, behind = (tokenizer.special(mark) for mark in mark_names([name]))
            if before is None or behind is None:
                raise DataError(f"this run knows no field {name!r}: {', '.join(data.fields)}.")
            ids += [before, *tokenizer.encode(value_text(value, name, "the text")), behind]
        ids = tokenizer.as_text(ids)
        return ids, [0] * len(ids)
    if not data.other_field or run.spec.reads != "labelled":
        return tokenizer.as_text(tokenizer.encode(text)), []
    first, tab, second = text.partition("\t")
    if not tab:
        raise DataError(f"this model compares two texts. Put a tab between them: {text[:60]!r}.")
    ends = [tokenizer.eos] * tokenizer.pair_ends
    left = [tokenizer.bos, *tokenizer.encode(first), *ends]
    right = [*tokenizer.encode(second), tokenizer.eos]
    number = int(tokenizer.pair_ends == 1)
    return [*left, *right], [0] * len(left) + [number] * len(right)


def _name(run: Opened, id: int) -> str:
    if run.spec.answers == "gaps":
        return run.vocab.source.tokens([id])[0]
    labels = run.settings.labels
    return labels[id] if id < len(labels) else str(id)


def _check(run: Opened, n_tokens: int) -> None:
    if n_tokens > context(run):
        raise too_long("the text", n_tokens, context(run))
