"""What a model reads of a corpus: examples, or parts of them, as rows of its streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NotRequired, TypedDict, cast

from headway.errors import DataError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.beam import searcher_for
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.media import Media, exceeds
from headway.inside.capture.streams import Stream
from headway.models.seq2seq import Seq2Seq
from headway.tasks.opened import Opened
from headway.tasks.tag_answers import words_of
from headway.tasks.text_items import text_items
from headway.tasks.thumbnails import data_uri
from headway.tokens.pieces import SPACE_MARK
from headway.tokens.tokenizer import Tokenizer

LONGEST = 128
"""Tokens of a passage: longer lines are cut into several."""

AT_ONCE = 256
"""Lines that are made tokens of together."""


class Shown(TypedDict):
    """A place in a passage, for people."""

    at: int
    pieces: list[str]
    """Of tokens; or a row of media, and what it is a part of."""

    picture: NotRequired[str]
    """As an address with all of it inside."""


@dataclass(frozen=True)
class Passage:
    """What the model reads of an example, or of a part of it: token ids by stream."""

    line: int
    """The number of the example."""

    ids: dict[str, list[int]]
    """Of media, which have no ids, -1 for each row."""

    gaps: dict[int, int] = field(default_factory=dict)
    """Places of a masked text and what stood there; those alone are asked for then."""

    segments: tuple[int, ...] = ()
    """Of a pair of texts: 1 for the second."""

    media: Media | None = None
    """What the first stream is, if it is no text."""

    hides: bool = False
    """Some rows of media are hidden, and what stood there is what is asked for."""

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.ids.values()))

    def is_media(self, stream: str) -> bool:
        return self.media is not None and stream == next(iter(self.ids))

    def shown(self, run: Opened, stream: str, place: int, first: int, end: int) -> Shown:
        """A place among those from `first` to before `end`, for people; of media alone, with the
        name of what it is a part of and, of a picture, how it looks there."""
        if self.media is None or not self.is_media(stream):
            return {"at": place - first, "pieces": self.pieces(stream, run)[first:end]}
        name = self.media.stream(stream).pieces[place]
        pixels = self.media.around(place)
        found: Shown = {"at": 0, "pieces": [name, f" {self.media.name}"]}
        return found if pixels is None else {**found, "picture": data_uri(pixels)}

    def pieces(self, stream: str, run: Opened) -> list[str]:
        """Its tokens as people write them, so that they can be joined."""
        tokenizer = run.vocab.source if stream == "source" else run.vocab.target
        return spelled(self.ids[stream], tokenizer)


def passages(run: Opened, corpus: Corpus, max_tokens: int, *, write: bool = True) -> list[Passage]:
    """The corpus from its beginning, as the model reads it, up to about so many tokens.

    A model that writes one thing from another, and whose corpus has no targets, reads what it
    writes itself, greedily; without `write` its passages have a source and nothing else then.
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
        raise DataError(f"nothing in {corpus.name} is short enough for this model to read.")
    return found


def _block(run: Opened, corpus: Corpus, write: bool) -> Iterator[Passage]:
    if not corpus.lines:
        yield from _media(run, corpus, write)
        return
    lines, targets = corpus.lines, corpus.targets
    if run.spec.reads == "pairs":
        if targets is None and write:
            targets = tuple(greedy(run, lines))
        yield from _pairs(run, lines, targets)
        return
    tokenizer, spec = run.vocab.target, run.spec
    room = min(LONGEST, run.shape.max_len) - 2
    if spec.reads == "labelled":
        for item in text_items(run, lines, LONGEST):
            yield Passage(item.example, {"text": item.ids}, segments=tuple(item.segments))
        return
    if spec.reads == "tagged":
        many = tokenizer.encode_words([words_of(line, "the corpus") for line in lines])[0].lists()
    else:
        many = tokenizer.encode_batch(lines)
    frame = tokenizer.begun if spec.continues else tokenizer.as_text
    for number, ids in enumerate(many):
        for part in _cut(ids, room, tokenizer):
            yield Passage(number, {"text": frame(part)})


def _media(run: Opened, corpus: Corpus, write: bool) -> Iterator[Passage]:
    """Pictures, videos and recordings; those are left out that the model cannot read whole."""
    stacks = Anatomy.of(run.model).stacks
    for number, media in enumerate(corpus.examples):
        assert isinstance(media, Media)
        if exceeds(run, media):
            continue
        ids = {stacks[0].stream: [-1] * media.n_rows}
        if len(stacks) > 1 and corpus.targets is not None:
            ids[stacks[1].stream] = _begun(run, run.vocab.target.encode(corpus.targets[number]))
        elif len(stacks) > 1 and write:
            ids[stacks[1].stream] = _said(run, media)
        yield Passage(number, ids, media=media)


def _begun(run: Opened, ids: list[int]) -> list[int]:
    """What a decoder reads of a text that it is to have written."""
    target = run.vocab.target
    begin = [] if target.target_begin is None else [target.target_begin]
    return [target.bos, *begin, *ids[: min(LONGEST, run.shape.max_len) - 2]]


def _said(run: Opened, media: Media) -> list[int]:
    """What the run writes itself, a width of one."""
    decode = replace(run.settings.decode, beam=1, sample=False)
    [[best, *_]] = searcher_for(run, cast(Seq2Seq, run.model), decode)([media.item])
    return [run.vocab.target.bos, *best.tokens][:LONGEST]


def _cut(ids: list[int], room: int, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Parts of at most `room` tokens; words stay whole where they are not very long."""
    while len(ids) > room:
        starts = tokenizer.word_starts(ids[: room + 1])
        end = next((place for place in range(room, room // 2, -1) if starts[place]), room)
        yield ids[:end]
        ids = ids[end:]
    if ids:
        yield ids


def _pairs(run: Opened, lines: list[str], targets: Sequence[str] | None) -> Iterator[Passage]:
    source, target = run.vocab.source, run.vocab.target
    room = min(LONGEST, run.shape.max_len) - 2
    sources = [source.as_source(ids[:room]) for ids in source.encode_batch(lines)]
    if targets is None:
        yield from (Passage(number, {"source": ids}) for number, ids in enumerate(sources))
        return
    for number, ids in enumerate(target.encode_batch(targets)):
        if ids:
            yield Passage(number, {"source": sources[number], "target": _begun(run, ids)})


def greedy(run: Opened, lines: list[str]) -> list[str]:
    """The run's own translations, a width of one."""
    from headway.decode.writer import Writer
    from headway.settings.decode import DecodeSettings

    writer = Writer([cast(Seq2Seq, run.model)], run.vocab, DecodeSettings(beam=1))
    return [found.text for found in writer.write(lines)]


def spelled(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """Tokens as people write them: with a space where a word begins, so that they can be joined."""
    stream = Stream.of("text", ids, tokenizer)
    pieces, last = [], -2
    for piece, word, special in zip(stream.pieces, stream.words, stream.special, strict=True):
        bare = piece.replace(SPACE_MARK, " ").strip(" ") or "␣"
        goes_on = word == last and not special
        pieces.append(bare.removeprefix("##") if goes_on else f" {bare}")
        last = word
    return pieces
