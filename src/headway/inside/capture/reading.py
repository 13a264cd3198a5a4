"""Conversion of a text, image, video or recording to a `Reading`: its tokens as the run's task
reads them, and the outputs of the run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.data.columns.column import parse_field
from headway.data.readers.jsonl import parse_object
from headway.decode.logits_processors import TokenConstraints
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import too_long
from headway.decode.speech.ctc import best_path
from headway.decode.speech.recognizer import recognizer_of
from headway.errors import Option, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.beam import BeamTree, search, tree_settings
from headway.inside.capture.forward import (
    ReadingBatch,
    final_states,
    gives_vector,
    mask_positions,
    output_scores,
    read_out,
)
from headway.inside.capture.interventions import NO_INTERVENTION, Intervention, disable_heads
from headway.inside.capture.media import MediaInput, open_media
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput
from headway.models.audio import AudioEncoder
from headway.nn.ctc import align
from headway.nn.positions import max_positions
from headway.settings.decode import DecodeSettings
from headway.settings.run import media_settings
from headway.tasks.complete_answers import field_prompt
from headway.tasks.label_kinds import label_type_of
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.text_items import gapped_item, tagged_item, text_items
from headway.tokens.tokenizer import Tokenizer

__all__ = [
    "DEFAULT_OPTIONS",
    "NEW_TOKENS",
    "GenerationOptions",
    "Reading",
    "TokenStream",
    "TracedOutput",
    "read",
    "read_with_beam",
]

NEW_TOKENS = 24
"""Default number of tokens that a language model adds to a prompt: about a sentence."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Generation options: a forced output, a forced prefix, decoding settings and a length
    limit."""

    output: str | Sequence[int] | None = None
    """Forced output, which the model reads instead of generating one (teacher forcing): text, or
    token ids without special tokens. None: generate the output."""

    prefix: str = ""
    """Text that the output must begin with."""

    decode: DecodeSettings | None = None
    """Decoding settings; None: those of the run, or greedy decoding for a language model."""

    max_new_tokens: int = NEW_TOKENS
    """Maximum number of tokens that a language model adds."""


DEFAULT_OPTIONS = GenerationOptions()


def greedy_by_default(named: Collection[str], decode: DecodeSettings) -> DecodeSettings:
    """Return the settings with greedy decoding, the default for inspecting language models, unless
    a beam or sampling was requested."""
    return decode if {"beam", "sample"} & {*named} else replace(decode, sample=False, beam=1)


def read(
    run: LoadedRun,
    text: str | Path | MediaInput,
    ask: GenerationOptions = DEFAULT_OPTIONS,
    change: Intervention = NO_INTERVENTION,
) -> Reading:
    """Tokenize an input as the run's task does, and compute the outputs of the run.

    Args:
        run: The run, opened by `load`.
        text: Text to read, or a file (or opened `MediaInput`) for a run that reads media.
        ask: Generation options, such as a forced output.
        change: Tokens to hide and heads to disable.

    Returns:
        The tokens by stream, and the outputs of the run.

    Example:
        >>> from headway.inside import load, read
        >>> reading = read(load("tatoeba-de-en"), "Guten Morgen.")
        >>> [output.name for output in reading.outputs]
        ['▁G', 'ood', '▁morning', '.', '</s>']
    """
    return read_with_beam(run, text, ask, change)[0]


def read_with_beam(
    run: LoadedRun,
    text: str | Path | MediaInput,
    ask: GenerationOptions = DEFAULT_OPTIONS,
    change: Intervention = NO_INTERVENTION,
    *,
    beam: bool = False,
) -> tuple[Reading, BeamTree | None]:
    """Read an input like `read`, and also return the tree of the beam search.

    The tree is None if `beam` is false, if no search took place, or if its settings cannot be
    recorded.
    """
    given = _open(run, text)
    if Anatomy.of(run.model).is_pair:
        return _write(run, given, ask, change, beam)
    if run.spec.continues:
        assert isinstance(given, str)
        return _continue(run, given, ask, change, beam)
    if ask.output is not None or ask.prefix:
        raise UserError(
            f"a run of the task {run.settings.task} without a decoder generates no text. Remove "
            "the output or its prefix."
        )
    return _label(run, given, change), None


def _open(run: LoadedRun, text: str | Path | MediaInput) -> str | MediaInput:
    if isinstance(text, MediaInput):
        return text
    if media_settings(run.settings) is not None:
        return open_media(run, text)
    if not isinstance(text, str):
        raise UserError(f"{run.folder.name} reads text, not files. Give the text as a string.")
    if not text.strip():
        raise UserError(f"the text is empty. Give a text: {Option('text', 'A sentence.')}")
    return text


def max_input_tokens(run: LoadedRun) -> int:
    """Maximum number of tokens of an input text, with special tokens."""
    if Anatomy.of(run.model).is_pair:
        ends = [max_positions(part.front) for part in Anatomy.of(run.model).stacks]
        more = len(run.vocab.source.as_source([]))
        return min([run.settings.data.max_len + more, *(end for end in ends if end is not None)])
    return run.shape.max_len


def _check(run: LoadedRun, n_tokens: int) -> None:
    if n_tokens > max_input_tokens(run):
        raise too_long("the text", n_tokens, max_input_tokens(run))


def _write(
    run: LoadedRun,
    given: str | MediaInput,
    ask: GenerationOptions,
    change: Intervention,
    beam: bool,
) -> tuple[Reading, BeamTree | None]:
    """Read an input with an encoder-decoder. Return the source and its output, and the search tree
    or None."""
    target = run.vocab.target
    item: Any
    if isinstance(given, MediaInput):
        item, source = given.item, given.stream("source")
    else:
        item = run.vocab.source.as_source(run.vocab.source.encode(given))
        _check(run, len(item))
        source = TokenStream.of("source", item, run.vocab.source)
    reading = Reading(
        text=given if isinstance(given, str) else given.name,
        task=run.settings.task,
        streams={"source": source},
        outputs=(),
        media=given if isinstance(given, MediaInput) else None,
    )
    found, tree = _find(run, reading, item, ask, _only(change, "source", len(source)), beam)
    tokens = found.tokens
    if ask.output is not None and target.target_begin is not None:
        tokens = [target.target_begin, *tokens]
    reach = max_positions(Anatomy.of(run.model).stacks[-1].front)
    if reach is not None and len(tokens) + 1 > reach:
        raise too_long("the output", len(tokens) + 1, reach)
    chosen = [*tokens, target.eos] if found.finished else tokens
    written = TokenStream.of("target", [target.bos, *tokens][: len(chosen)], target)
    return replace(
        reading,
        streams={"source": source, "target": written},
        outputs=next_outputs(chosen, target),
        finished=found.finished,
    ), tree


def _find(
    run: LoadedRun,
    reading: Reading,
    item: Any,
    ask: GenerationOptions,
    change: Intervention,
    beam: bool,
) -> tuple[Hypothesis, BeamTree | None]:
    target = run.vocab.target
    given = _given_tokens(ask, target)
    begin = target.encode(ask.prefix) if ask.prefix else []
    decode = run.settings.decode if ask.decode is None else ask.decode
    most = _most_written(run)
    for what, ids in (("the output", given or []), ("the beginning of the output", begin)):
        if len(ids) > most:
            raise too_long(what, len(ids) + 1, most + 1)
    if given is not None:
        return Hypothesis(given, 0.0, 0.0, [], finished=True), None
    if change.hidden:
        first = [] if target.target_begin is None else [target.target_begin]
        limit = decode.max_len or len(reading.first) + decode.extra_len
        start = [*first, *begin]
        tokens, ended = write_uncached(run, reading, [target.bos, *start], change, limit)
        return Hypothesis([*start, *tokens], 0.0, 0.0, [], finished=ended), None
    record = beam and decode == tree_settings(run, ask.decode, ask.max_new_tokens)
    with disable_heads(run.model, change):
        found, tree = search(
            run, item, decode, TokenConstraints(prefix=tuple(begin)), record=record
        )
    return found[0], tree


def _most_written(run: LoadedRun) -> int:
    """Maximum number of output tokens over all sources of allowed length."""
    decode, longest = run.settings.decode, run.settings.data.max_len
    return max(decode.max_len or 0, longest + decode.extra_len)


def _continue(
    run: LoadedRun, text: str, ask: GenerationOptions, change: Intervention, beam: bool
) -> tuple[Reading, BeamTree | None]:
    tokenizer = run.vocab.source
    prompt = _prompt(run, text)
    _check(run, len(prompt))
    given = _given_tokens(ask, tokenizer)
    start = [*prompt, *(tokenizer.encode(ask.prefix) if ask.prefix else [])]
    new = min(ask.max_new_tokens, max_input_tokens(run) - len(start))
    hidden = _only(change, "text", len(prompt))
    reading = Reading(
        text=text, task=run.settings.task, streams={}, outputs=(), n_given=len(prompt)
    )
    tree, finished = None, False
    if given is not None:
        tokens = given
    elif new < 1:
        tokens = []
    elif hidden.hidden:
        tokens, finished = write_uncached(run, reading, start, hidden, new)
    else:
        decode = replace(DecodeSettings(beam=1) if ask.decode is None else ask.decode, max_len=new)
        record = beam and decode == tree_settings(run, ask.decode, ask.max_new_tokens)
        with disable_heads(run.model, replace(change, hidden=frozenset())):
            [best, *_], tree = search(run, start, decode, record=record)
        tokens, finished = best.tokens, best.finished
    ids = [*start, *tokens][: max_input_tokens(run)]
    reading = replace(
        reading,
        streams={"text": TokenStream.of("text", ids, tokenizer)},
        outputs=next_outputs([*ids[1:], tokenizer.eos], tokenizer),
        finished=finished,
    )
    if finished:
        return reading, tree
    # The search did not choose a token to follow the last one: use the most probable token.
    last = int(_scores(run, reading, change)[-1].argmax())
    behind = next_outputs([last], tokenizer, len(ids) - 1)
    return replace(reading, outputs=(*reading.outputs[:-1], *behind)), tree


def _prompt(run: LoadedRun, text: str) -> list[int]:
    """Return the token ids of a prompt.

    If the run has fields, a line of JSON is a document, which is continued at its first missing
    field.
    """
    tokenizer, fields = run.vocab.source, run.settings.data.fields
    if not fields or not text.lstrip().startswith("{"):
        return tokenizer.as_prompt(tokenizer.encode(text))
    values = parse_object(text, "the text")
    known: dict[str, str] = {}
    for name in fields:
        if not values.get(name):
            return field_prompt(known, name, tokenizer)
        known[name] = parse_field(values[name], name, "the text")
    return field_prompt(known, None, tokenizer)


def write_uncached(
    run: LoadedRun, reading: Reading, start: Sequence[int], change: Intervention, limit: int
) -> tuple[list[int], bool]:
    """Generate greedily after the tokens `start`. Return the new tokens, and whether the end token
    was generated.

    The KV cache is not used, because it does not support hidden tokens.
    """
    tokenizer, name = run.vocab.target, Anatomy.of(run.model).stacks[-1].stream
    never = sorted(tokenizer.specials - {tokenizer.eos})
    tokens: list[int] = []
    while len(tokens) < limit:
        stream = TokenStream.of(name, [*start, *tokens], tokenizer)
        streams = {**reading.streams, name: stream}
        asked = replace(reading, streams=streams, outputs=(TracedOutput(len(stream) - 1, -1, ""),))
        scores_V = _scores(run, asked, change)[0]
        scores_V[never] = -torch.inf
        best = int(scores_V.argmax())
        if best == tokenizer.eos:
            return tokens, True
        tokens.append(best)
    return tokens, False


def next_outputs(
    tokens: Sequence[int], tokenizer: Tokenizer, first: int = 0
) -> tuple[TracedOutput, ...]:
    """Return the outputs of a decoder from its tokens, where position t predicts `tokens[t]`.

    `first`: position of the first output.
    """
    names = tokenizer.tokens(tokens)
    pairs = enumerate(zip(tokens, names, strict=True))
    return tuple(TracedOutput(first + row, id, name) for row, (id, name) in pairs)


def _given_tokens(ask: GenerationOptions, tokenizer: Tokenizer) -> list[int] | None:
    if ask.output is None or isinstance(ask.output, str):
        return None if ask.output is None else tokenizer.encode(ask.output)
    for id in ask.output:
        if not 0 <= id < tokenizer.vocab_size:
            raise UserError(
                f"unknown token id {id}: valid ids are 0 to {tokenizer.vocab_size - 1:,}."
            )
    return list(ask.output)


def _only(change: Intervention, stream: str, length: int) -> Intervention:
    """Return the intervention with only those hidden tokens that are in the input. The output does
    not exist yet, so its tokens cannot be hidden."""
    for name, place in change.hidden:
        if name == stream and place < 0:
            raise UserError(f"cannot hide token {place + 1}: tokens are counted from 1.")
    return replace(
        change, hidden=frozenset(h for h in change.hidden if h[0] == stream and h[1] < length)
    )


def _label(run: LoadedRun, given: str | MediaInput, change: Intervention) -> Reading:
    """Read an input with a model without a decoder, whose outputs are classes, tags, filled masks,
    a number or an embedding.

    Output positions are known in advance, except for CTC.
    """
    reading = _unanswered(run, given)
    if gives_vector(run):
        vector_D = F.normalize(_scores(run, reading, NO_INTERVENTION)[0], dim=-1)
        return replace(reading, direction=tuple(vector_D.tolist()))
    if run.spec.writes:
        return _read_ctc(run, reading, change)
    if isinstance(given, MediaInput) and run.spec.fills_masks:
        return read_masked(run, given)
    scores_RC = _scores(run, reading, change)
    if run.spec.is_regression:  # explained like a vector with one component
        value = float(label_type_of(run.settings, ()).predictions(scores_RC[:1])[0, 0])
        number = (TracedOutput(None, 0, f"{value:.6g}"),)
        return replace(reading, outputs=number, direction=(1.0,))
    chosen = _choose(run, reading, scores_RC)
    pairs = zip(reading.outputs, chosen, strict=True)
    return replace(
        reading, outputs=tuple(TracedOutput(one.row, id, _name(run, id)) for one, id in pairs)
    )


def _unanswered(run: LoadedRun, given: str | MediaInput) -> Reading:
    """Return the reading of an input before its outputs are computed; their ids are -1."""
    name = Anatomy.of(run.model).stacks[0].stream
    if isinstance(given, MediaInput):
        vector = (TracedOutput(None, -1, "vector"),)
        return Reading(
            given.name, run.settings.task, {name: given.stream(name)}, vector, media=given
        )
    if run.spec.is_tagging:
        item = tagged_item(run, given)
    else:
        item = gapped_item(run, given) if run.spec.fills_masks else text_items(run, [given])[0]
    _check(run, item.needed)
    rows: Sequence[int | None] = [None] if item.rows is None else item.rows
    return Reading(
        text=given,
        task=run.settings.task,
        streams={name: TokenStream.of(name, item.ids, run.vocab.source)},
        outputs=tuple(TracedOutput(row, -1, "vector") for row in rows),
        segments=tuple(item.segments),
    )


def read_masked(run: LoadedRun, media: MediaInput, number: int = 0) -> Reading:
    """Return a reading of an image or recording with masked positions, which are its outputs.

    `number`: random seed of the positions.
    """
    reading = _unanswered(run, media)
    rows_R = mask_positions(run, [media], number).rows_R
    assert rows_R is not None
    pieces = reading.last.pieces
    outputs = tuple(TracedOutput(row, -1, pieces[row]) for row in rows_R.tolist())
    return replace(reading, outputs=outputs, hides=number)


def _choose(run: LoadedRun, reading: Reading, scores_RC: Tensor) -> list[int]:
    if not reading.fills_masks:
        return [int(id) for id in scores_RC.argmax(-1)]
    tokenizer = run.vocab.source
    scores_RC[:, sorted(tokenizer.specials)] = -torch.inf
    best = [int(id) for id in scores_RC.argmax(-1)]
    ids = reading.last.ids
    there = [ids[output.row] for output in reading.outputs if output.row is not None]
    return [new if old == tokenizer.mask else old for new, old in zip(best, there, strict=True)]


def _name(run: LoadedRun, id: int) -> str:
    if run.spec.fills_masks:
        return run.vocab.source.tokens([id])[0]
    labels = run.settings.labels
    return labels[id] if id < len(labels) else str(id)


def align_by_ctc(run: LoadedRun, media: MediaInput, tokens: list[int]) -> Reading:
    """Return a reading with the CTC forced alignment of a known text to a recording. Each token is
    an output at its most probable position."""
    reading = _unanswered(run, media)
    return _place_symbols(run, reading, _symbols(run, reading, NO_INTERVENTION), tokens)


def _symbols(run: LoadedRun, reading: Reading, change: Intervention) -> Tensor:
    """Return the log-probabilities of all CTC symbols at each position."""
    every = tuple(TracedOutput(row, -1, "") for row in range(len(reading.last)))
    return _scores(run, replace(reading, outputs=every), change).log_softmax(-1)


def _read_ctc(run: LoadedRun, reading: Reading, change: Intervention) -> Reading:
    """Return the reading with the output of a CTC model.

    Each token is placed at the most probable position of its CTC segment. If positions are hidden,
    the best CTC path is used, because the beam search does not support hiding.
    """
    logs_SV = _symbols(run, reading, change)
    if change.hidden:
        tokens = best_path(logs_SV).tokens
    else:
        assert reading.media is not None
        weight = run.settings.transcribe.ctc
        with disable_heads(run.model, change):
            model = cast(AudioEncoder, run.model)
            speaks = recognizer_of(model, run.vocab.target, run.settings.decode, weight)
            tokens = speaks.recognize([reading.media.item])[0].tokens
    return _place_symbols(run, reading, logs_SV, tokens)


def _place_symbols(run: LoadedRun, reading: Reading, logs_SV: Tensor, tokens: list[int]) -> Reading:
    found = align(logs_SV, tokens, logs_SV.shape[1] - 1) if tokens else None
    if found is None:
        return replace(reading, outputs=())
    names = run.vocab.target.tokens(tokens)
    outputs = []
    for id, name, first, last in zip(tokens, names, found.first, found.last, strict=True):
        row = first + int(logs_SV[first : last + 1, id].argmax())
        outputs.append(TracedOutput(row, id, name))
    return replace(reading, outputs=tuple(outputs))


@torch.no_grad()
def _scores(run: LoadedRun, reading: Reading, change: Intervention) -> Tensor:
    batch = ReadingBatch.of(run, [reading])
    with disable_heads(run.model, change):
        read = read_out(run, batch, final_states(run.model, batch, [change]), [change])
        return output_scores(run, read).clone()
