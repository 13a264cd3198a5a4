"""Examples of a corpus as a model reads them, with reference outputs or labels if these are known.

Long texts are split into parts that do not overlap, unlike the windows of training. Every token is
therefore counted once, and results are comparable with published ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict, TypeVar, cast

from headway.data.readers.lines import SEPARATOR
from headway.errors import DataError, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.beam import searcher_for
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.media import MediaInput, is_too_long
from headway.inside.capture.reading import (
    GenerationOptions,
    align_by_ctc,
    next_outputs,
    read,
    read_masked,
)
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput, display_piece
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import readout_of
from headway.tasks.tag_answers import sentence_of, word_rule
from headway.tasks.tags import encoded, piece_shapes
from headway.tasks.text_items import text_items
from headway.tasks.thumbnails import data_uri
from headway.tokens.tokenizer import Tokenizer

N_EXAMPLES = 200
"""Default number of examples for measuring attention heads. It trades precision for time."""

GAP_EVERY = 7
"""Distance in tokens between masked tokens of a text. One in seven is close to the 15 % of BERT's
training."""

LONGEST = 128
"""Maximum number of tokens in a passage. Longer texts are split, and longer sources and targets
truncated."""

AT_ONCE = 256
"""Number of texts that are tokenized in one call."""

AnyReading = TypeVar("AnyReading", bound=Reading)


class TokenContext(TypedDict):
    """One token of a passage with its context, for display."""

    at: int
    pieces: list[str]
    """Tokens of the context. For media: name of the position (such as its row and column) and name
    of the file."""

    image: NotRequired[str]
    """Image of the position and its surroundings as a `data:` URL."""


@dataclass(frozen=True)
class Passage(Reading):
    """One example, or a part of one, as the model reads it.

    Its outputs are the reference tokens or labels. Without references, outputs have the id -1, and
    the model's own predictions are used.
    """

    line: int = 0
    """Index of the example in the corpus."""

    def token_context(self, stream: str, place: int, first: int, end: int) -> TokenContext:
        """Return a token with its context: the tokens from `first` up to, but not including, `end`.

        For media the context is the name of the position, the file name and, for an image, the
        patch with its surroundings.
        """
        if self.media is None or not self.is_media(stream):
            return {"at": place - first, "pieces": display_tokens(self.streams[stream])[first:end]}
        name = self.streams[stream].pieces[place]
        pixels = self.media.patch_surroundings(place)
        found: TokenContext = {"at": 0, "pieces": [name, f" {self.media.name}"]}
        return found if pixels is None else {**found, "image": data_uri(pixels)}


def examples(run: LoadedRun, corpus: Corpus, n: int = N_EXAMPLES) -> list[Reading]:
    """Return the first `n` examples, each with the outputs on which its loss is computed.

    Sequence-to-sequence models: the given targets, otherwise the model's own outputs. Language
    models: the tokens of the text. Masked models: masked tokens, patches or audio frames. Other
    models: the given labels, otherwise the model's own predictions. Inputs that are too long are
    skipped or split.
    """
    corpus = corpus.first(n)
    found: list[Reading]
    if not corpus.lines:
        found = list(_answer_media(run, corpus))
    elif run.spec.in_words:
        if SEPARATOR in corpus.lines:  # a separator between documents
            corpus = Corpus.of_lines([line for line in corpus.lines if line != SEPARATOR])
        cut = [one for one in passages(run, corpus, 1 << 40) if one.n_tokens > 2][:n]
        found = [_with_gaps(run, one) for one in cut] if run.spec.fills_masks else [*cut]
    else:
        found = list(_answer_texts(run, corpus))
    found = [reading for reading in found if reading.outputs]
    if not found:
        raise DataError(
            f"this model cannot read any of the examples in {corpus.name}. All of them may be "
            "empty or too long for this model."
        )
    return found


def _with_gaps(run: LoadedRun, reading: Reading) -> Reading:
    n = len(reading.last)
    return mask_tokens(run, reading, range(min(3, n - 2), n - 1, GAP_EVERY))


def mask_tokens(run: LoadedRun, reading: AnyReading, rows: Iterable[int]) -> AnyReading:
    """Mask some tokens of a text. The outputs of the result are the masked tokens."""
    tokenizer, text, hidden = run.vocab.target, reading.last, list(rows)
    assert tokenizer.mask is not None
    ids = list(text.ids)
    for row in hidden:
        ids[row] = tokenizer.mask
    return replace(
        reading,
        streams={text.name: TokenStream.of(text.name, ids, tokenizer)},
        outputs=tuple(TracedOutput(row, text.ids[row], text.pieces[row]) for row in hidden),
    )


def _answer_texts(run: LoadedRun, corpus: Corpus) -> Iterator[Reading]:
    error: UserError | None = None
    n_read = 0
    for number, example in enumerate(corpus.examples):
        try:
            reading = read(run, example)
        except UserError as too_long:
            error = too_long
            continue
        n_read += 1
        yield _right(run, reading, corpus, number)
    if not n_read and error is not None:
        raise error


def _right(run: LoadedRun, reading: Reading, corpus: Corpus, number: int) -> Reading:
    """Return the reading with the correct label as its output if it is known, otherwise
    unchanged."""
    if corpus.labels is None or not run.spec.is_single_label or reading.direction:
        return reading
    label = corpus.labels[number]
    right = replace(reading.outputs[0], id=label, name=run.settings.labels[label])
    return replace(reading, outputs=(right,))


def _answer_media(run: LoadedRun, corpus: Corpus) -> Iterator[Reading]:
    """Yield a reading of each media example, with its reference output if it is known."""
    for number, media in _media(run, corpus):
        if run.spec.fills_masks:
            yield read_masked(run, media, number)
        elif run.spec.labelled or corpus.targets is None:
            # Greedy decoding, because a beam search is slow and changes the measurements little.
            plainly = GenerationOptions(decode=replace(run.settings.decode, beam=1, n_best=1))
            yield _right(run, read(run, media, plainly), corpus, number)
        elif Anatomy.of(run.model).is_pair:
            yield read(run, media, GenerationOptions(output=corpus.targets[number]))
        else:
            tokens = run.vocab.target.encode(corpus.targets[number])
            yield align_by_ctc(run, media, tokens)


def _media(run: LoadedRun, corpus: Corpus) -> Iterator[tuple[int, MediaInput]]:
    """Yield the index and the input of each media example that is short enough for the model."""
    for number, media in enumerate(corpus.examples):
        assert isinstance(media, MediaInput)
        if not is_too_long(run, media):
            yield number, media


def passages(
    run: LoadedRun, corpus: Corpus, max_tokens: int, *, write: bool = True
) -> list[Passage]:
    """Return passages from the beginning of the corpus, with about `max_tokens` tokens in total.

    Missing targets of a sequence-to-sequence model are generated greedily. With `write=False` they
    are not generated, so that the passage has only a source.
    """
    found: list[Passage] = []
    total = 0
    step = AT_ONCE if corpus.lines else 1
    for start in range(0, len(corpus), step):
        for passage in _block(run, corpus.part(start, start + step), write):
            found.append(replace(passage, line=start + passage.line))
            total += passage.n_tokens
            if total >= max_tokens:
                return found
    if not found:
        raise DataError(f"every example in {corpus.name} is empty or too long for this model.")
    return found


def _block(run: LoadedRun, corpus: Corpus, write: bool) -> Iterator[Passage]:
    spec, lines = run.spec, corpus.lines
    name = Anatomy.of(run.model).stacks[0].stream
    if Anatomy.of(run.model).is_pair:
        yield from _pairs(run, corpus, write)
        return
    if not lines:
        for number, media in _media(run, corpus):
            yield _passage(run, number, {name: media.stream(name)}, media)
        return
    tokenizer = run.vocab.target
    if spec.reads_labelled_texts:
        for item in text_items(run, lines, LONGEST):
            streams = {name: TokenStream.of(name, item.ids, tokenizer)}
            found = _passage(run, item.example, streams)
            yield replace(found, segments=tuple(item.segments))
        return
    if spec.reads_sentences:
        rule = word_rule(run.folder)
        sentences = [sentence_of(line, "the corpus", rule).words for line in lines]
        words = encoded(sentences, tokenizer, run.settings.tag)
        many, shapes = words.text.lists(), piece_shapes(words, run.shape)
    else:
        many, shapes = tokenizer.encode_batch(lines), None
    frame = tokenizer.as_open_prompt if spec.continues else tokenizer.as_text
    around = [(0,) * len(end) for end in tokenizer.text_ends]
    for number, ids in enumerate(many):
        start = 0
        for part in _cut(ids, _room(run), tokenizer):
            found = _passage(run, number, {name: TokenStream.of(name, frame(part), tokenizer)})
            if shapes is not None:
                own = shapes[number][start : start + len(part)]
                found = replace(found, segments=(*around[0], *own, *around[1]))
            start += len(part)
            yield found


def _pairs(run: LoadedRun, corpus: Corpus, write: bool) -> Iterator[Passage]:
    """Yield a passage for each source, with its target if it is given.

    With `write`, missing targets are generated greedily.
    """
    source, target = run.vocab.source if corpus.lines else None, run.vocab.target
    media: dict[int, MediaInput] = {}
    items: list[Any]
    if source is None:
        media = dict(_media(run, corpus))
        numbers, items = list(media), [one.item for one in media.values()]
        streams = [one.stream("source") for one in media.values()]
    else:
        numbers = list(range(len(corpus)))
        encoded = source.encode_batch(corpus.lines)
        items = [source.as_source(ids[: _room(run)]) for ids in encoded]
        streams = [TokenStream.of("source", ids, source) for ids in items]
    begun: list[list[int] | None] = [None] * len(items)
    if corpus.targets is not None:
        begin = [target.bos, *([] if target.target_begin is None else [target.target_begin])]
        texts = target.encode_batch([corpus.targets[number] for number in numbers])
        begun = [[*begin, *ids[: _room(run)]] if ids else [] for ids in texts]
    elif write and items:
        begun = [*_write(run, items)]
    for number, stream, ids in zip(numbers, streams, begun, strict=True):
        if ids is None:
            yield _passage(run, number, {"source": stream}, media.get(number))
        elif ids:
            both = {"source": stream, "target": TokenStream.of("target", ids, target)}
            yield _passage(run, number, both, media.get(number))


def _write(run: LoadedRun, items: Sequence[Any]) -> list[list[int]]:
    own = run.settings.decode
    decode = DecodeSettings(beam=1, max_len=own.max_len, extra_len=own.extra_len)
    found = searcher_for(run, cast(Seq2Seq, run.model), decode)(items)
    return [[run.vocab.target.bos, *best.tokens][:LONGEST] for best, *_ in found]


def _room(run: LoadedRun) -> int:
    return min(LONGEST, run.shape.max_len) - 2


def _passage(
    run: LoadedRun, number: int, streams: dict[str, TokenStream], media: MediaInput | None = None
) -> Passage:
    """Return a passage with the outputs of the run's task.

    Generation: the next tokens. Masked models: the tokens themselves. Taggers: one label per token.
    Other models: one vector for the whole text.
    """
    stream, spec = list(streams.values())[-1], run.spec
    found = Passage("", run.settings.task, streams, (), media=media, line=number)
    if readout_of(run.settings).pools:
        return replace(found, outputs=(TracedOutput(None, -1, ""),))
    if found.is_media(stream.name):  # every position has an output, whose target is unknown
        assert media is not None
        rows = [row for row, own in enumerate(media.content_mask) if own]
        return replace(found, outputs=tuple(TracedOutput(row, -1, "") for row in rows))
    if len(streams) < len(Anatomy.of(run.model).stacks):
        return found
    tokenizer = run.vocab.target
    given = next(iter(streams.values()))
    text = "" if media is not None else _tokenizer(run, given).decode(list(given.ids))
    if spec.writes:
        ends = [] if spec.continues else [tokenizer.eos]
        outputs = next_outputs([*stream.ids[1:], *ends], tokenizer)
        return replace(found, text=text, outputs=outputs)
    inner = range(1, len(stream) - 1)
    ids = stream.ids if spec.fills_masks else (-1,) * len(stream)
    outputs = tuple(TracedOutput(row, ids[row], stream.pieces[row]) for row in inner)
    return replace(found, text=text, outputs=outputs)


def _tokenizer(run: LoadedRun, stream: TokenStream) -> Tokenizer:
    return run.vocab.source if stream.name == "source" else run.vocab.target


def _cut(ids: list[int], room: int, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Split token ids into parts of at most `room` tokens. Parts end between words, unless a single
    word is too long."""
    while len(ids) > room:
        starts = tokenizer.word_starts(ids[: room + 1])
        end = next((place for place in range(room, room // 2, -1) if starts[place]), room)
        yield ids[:end]
        ids = ids[end:]
    if ids:
        yield ids


def display_tokens(stream: TokenStream) -> list[str]:
    """Return the tokens as strings that can be concatenated to a text. Words begin with a space."""
    pieces, last = [], -2
    for piece, word, special in zip(stream.pieces, stream.words, stream.special, strict=True):
        goes_on = word == last and not special
        pieces.append(
            display_piece(piece).removeprefix("##") if goes_on else f" {display_piece(piece)}"
        )
        last = word
    return pieces
