"""What a model writes from a source: searched, given or written greedily, and then read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.decode.search.fixed_models import learned
from headway.decode.search.hypothesis import Hypothesis, Wish
from headway.decode.search.prompts import too_long
from headway.errors import UserError
from headway.inside.capture.beam import searcher_for
from headway.inside.capture.interventions import Change, gated
from headway.inside.capture.media import Media
from headway.inside.capture.streams import Output, Reading, Stream
from headway.inside.capture.uncached_greedy import greedily
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from headway.tasks.opened import Opened
from headway.tokens.tokenizer import Tokenizer

NEW_TOKENS = 24
"""How far a language model goes on from a prompt, unless asked."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """How a text is to be answered, where the model writes the answer itself."""

    output: str | Sequence[int] | None = None
    """The answer, given: the model only reads it. Text, or ids without special tokens."""

    begin: str = ""
    """What the answer has to begin with."""

    decode: DecodeSettings | None = None
    """How to search; None: as the run says (a language model: greedily)."""

    new: int = NEW_TOKENS
    """Most tokens that a language model adds."""


PLAINLY = Ask()


@dataclass(frozen=True)
class Source:
    """What the encoder reads."""

    text: str
    """As people see it; of a file its name."""

    stream: Stream
    item: Any
    """As the front takes it: tokens, a picture, a recording."""

    media: Media | None = None


def written(run: Opened, model: Seq2Seq, source: Source, ask: Ask, change: Change) -> Reading:
    """The source, and what the model writes from it."""
    target = run.vocab.target
    change = only(change, "source", len(source.stream))
    found = _found(run, model, source, ask, change)
    tokens = found.tokens
    if ask.output is not None and target.target_begin is not None:
        tokens = [target.target_begin, *tokens]
    reach = learned(model.target_front)
    if reach is not None and len(tokens) + 1 > reach:
        raise too_long("the output", len(tokens) + 1, reach)
    chosen = [*tokens, target.eos] if found.finished else tokens
    return Reading(
        text=source.text,
        task=run.settings.task,
        streams={
            "source": source.stream,
            "target": Stream.of("target", [target.bos, *tokens][: len(chosen)], target),
        },
        outputs=next_outputs(chosen, target),
        finished=found.finished,
        media=source.media,
    )


def _found(run: Opened, model: Seq2Seq, source: Source, ask: Ask, change: Change) -> Hypothesis:
    target = run.vocab.target
    given = given_tokens(ask, target)
    decode = run.settings.decode if ask.decode is None else ask.decode
    for what, ids in (
        ("the output", given or []),
        ("what the output begins with", target.encode(ask.begin)),
    ):
        if len(ids) > most_written(run):
            raise too_long(what, len(ids) + 1, most_written(run) + 1)
    if given is not None:
        return Hypothesis(given, 0.0, 0.0, [], finished=True)
    if change.hidden:
        begin = [target.bos] + ([] if target.target_begin is None else [target.target_begin])
        start = [*begin, *target.encode(ask.begin)]
        return greedily(run, source.stream, start, change, decode, source.media)
    wish = Wish(prefix=tuple(target.encode(ask.begin)) if ask.begin else ())
    with gated(model, change):
        return searcher_for(run, model, decode)([source.item], [wish])[0][0]


def most_written(run: Opened) -> int:
    """Tokens of the longest answer to the longest source that the run was made for."""
    decode, longest = run.settings.decode, run.settings.data.max_len
    return max(decode.max_len or 0, longest + decode.extra_len)


def next_outputs(tokens: Sequence[int], tokenizer: Tokenizer, first: int = 0) -> tuple[Output, ...]:
    """Row t says token t."""
    names = tokenizer.tokens(tokens)
    return tuple(
        Output(first + row, id, name)
        for row, (id, name) in enumerate(zip(tokens, names, strict=True))
    )


def given_tokens(ask: Ask, tokenizer: Tokenizer) -> list[int] | None:
    if ask.output is None or isinstance(ask.output, str):
        return None if ask.output is None else tokenizer.encode(ask.output)
    for id in ask.output:
        if not 0 <= id < tokenizer.vocab_size:
            raise UserError(
                f"there is no token {id}: they go from 0 to {tokenizer.vocab_size - 1:,}."
            )
    return list(ask.output)


def only(change: Change, stream: str, length: int) -> Change:
    """What is hidden of the text that is given; the answer is not there yet."""
    for name, place in change.hidden:
        if name == stream and place < 0:
            raise UserError(f"there is no token {place + 1} to hide.")
    return replace(
        change, hidden=frozenset(h for h in change.hidden if h[0] == stream and h[1] < length)
    )
