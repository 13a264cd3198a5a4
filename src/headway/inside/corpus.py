"""A corpus to compare a text with: lines from files, bounded, and what a model reads of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from headway.config.listed import listed
from headway.data.files import open_lines, shown
from headway.data.jsonl import is_json, parse_object, text_of
from headway.data.records import read_records
from headway.errors import DataError, UserError
from headway.inside.media import media_settings, what_it_reads
from headway.inside.streams import Stream
from headway.interop.reading import segments_of
from headway.tasks.opened import Opened
from headway.tasks.tag_answers import words_of
from headway.text.pieces import SPACE_MARK
from headway.text.tokenizer import Tokenizer

MAX_CHARACTERS = 8_000_000
"""Of a corpus; what comes behind is left out, and `Corpus.cut` says so."""

LONGEST = 128
"""Tokens of a passage: longer lines are cut into several."""


@dataclass(frozen=True)
class Corpus:
    """Lines of text; for a translator also what each is translated to, where the files say it."""

    name: str
    lines: tuple[str, ...]
    targets: tuple[str, ...] | None = None
    cut: bool = False
    """There was more than fits."""

    @classmethod
    def of(cls, paths: str | Path | Sequence[str | Path], run: Opened) -> Corpus:
        """Text files, a line each (JSONL and labelled tables are read as in training). For a
        translator a line may be `source<TAB>target`."""
        if media_settings(run) is not None:
            raise UserError(
                f"{run.folder.name} reads {what_it_reads(run)}, so a corpus of text says nothing "
                "about it. Leave it out."
            )
        names = [str(path) for path in listed(paths)]
        lines, cut = _bounded(line for path in names for line in _lines_of(path, run))
        where = ", ".join(map(shown, names))
        if not lines:
            raise DataError(f"{where} holds no text. Give a file with a text a line.")
        if run.spec.reads != "pairs" or not any("\t" in line for line in lines):
            return cls(where, tuple(lines), None, cut)
        pairs = [line.split("\t") for line in lines]
        for number, cells in enumerate(pairs, 1):
            if len(cells) < 2 or not cells[0].strip() or not cells[1].strip():
                raise DataError(
                    f"{where}, text {number:,} is no pair: other lines have a source, a tab and a "
                    "target. Give pairs in all lines, or sources alone."
                )
        return cls(where, tuple(c[0] for c in pairs), tuple(c[1] for c in pairs), cut)

    @classmethod
    def of_lines(cls, lines: Iterable[str], targets: Iterable[str] | None = None) -> Corpus:
        """Lines that are in memory already."""
        given = [line.strip() for line in listed(lines)]
        pairs = list(zip(given, given if targets is None else listed(targets), strict=True))
        kept = [pair for pair in pairs if pair[0] and pair[1].strip()]
        if not kept:
            raise DataError("the corpus holds no text.")
        others = None if targets is None else tuple(pair[1] for pair in kept)
        return cls("the given text", tuple(pair[0] for pair in kept), others)

    def first(self, n: int) -> Corpus:
        """The first `n` lines."""
        targets = None if self.targets is None else self.targets[:n]
        return replace(self, lines=self.lines[:n], targets=targets, cut=len(self.lines) > n)


def _bounded(lines: Iterator[str]) -> tuple[list[str], bool]:
    found: list[str] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        size += len(line)
        if size > MAX_CHARACTERS:
            return found, True
        found.append(line.strip())
    return found, False


def _lines_of(path: str, run: Opened) -> Iterator[str]:
    settings, reads = run.settings.data, run.spec.reads
    lines = open_lines(path, settings.encoding)
    head = list(islice(lines, 20))
    suffixes = set(Path(path).suffixes)
    if head and is_json(path, head[0], settings.text_field):
        other = ["other"] if reads == "labelled" and settings.other_field else []
        names = ["source", "target"] if reads == "pairs" else ["text", *other]
        return _json_lines(chain(head, lines), path, run, names)
    if reads == "labelled" and suffixes & {".tsv", ".csv"}:
        records = read_records([path], settings, labels=False)
        return (_joined([record.text, record.other or ""]) for record in records)
    if reads != "pairs" and not (reads == "labelled" and settings.other_field):
        _refuse_tables(path, head)
    return chain(head, lines)


def _json_lines(lines: Iterator[str], path: str, run: Opened, names: list[str]) -> Iterator[str]:
    data = run.settings.data
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{shown(path)}, line {number:,}"
            values = parse_object(line, where)
            fields = [(getattr(data, f"{name}_field"), f"{name}_field") for name in names]
            texts = [text_of(values, field, where, setting) for field, setting in fields]
            yield _joined(texts)


def _joined(texts: Sequence[str]) -> str:
    return "\t".join(" ".join(text.split()) for text in texts).strip()


def _refuse_tables(path: str, head: list[str]) -> None:
    """A table where text belongs would be learned from as if tabs and labels were words."""
    full = [line for line in head if line.strip()]
    if full and all("\t" in line for line in full):
        raise DataError(
            f"{shown(path)} has a tab in every line, as pairs, labelled or tagged text have; this "
            "run reads plain text, a text a line. Give the text alone, e.g. `cut -f1`."
        )


@dataclass(frozen=True)
class Passage:
    """What the model reads of a line, or of a part of it: token ids by stream."""

    line: int
    ids: dict[str, list[int]]
    gaps: dict[int, int] = field(default_factory=dict)
    """Places of a masked text and what stood there; those alone are asked for then."""

    segments: tuple[int, ...] = ()
    """Of a pair of texts: 1 for the second."""

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.ids.values()))


def passages(run: Opened, corpus: Corpus, max_tokens: int, *, write: bool = True) -> list[Passage]:
    """The corpus from its beginning, as the model reads it, up to about so many tokens.

    A translator whose corpus has no targets reads, as its target, what it translates to greedily;
    without `write` its passages have a source and nothing else then.
    """
    found: list[Passage] = []
    total = 0
    for start in range(0, len(corpus.lines), 256):
        block = replace(
            corpus,
            lines=corpus.lines[start : start + 256],
            targets=None if corpus.targets is None else corpus.targets[start : start + 256],
        )
        for passage in _block(run, block, write):
            found.append(replace(passage, line=start + passage.line))
            total += passage.n_tokens
            if total >= max_tokens:
                return found
    return found


def _block(run: Opened, corpus: Corpus, write: bool) -> Iterator[Passage]:
    lines, targets = list(corpus.lines), corpus.targets
    if run.spec.reads == "pairs":
        if targets is None and write:
            targets = tuple(greedy(run, lines))
        yield from _pairs(run, lines, targets)
        return
    tokenizer, spec = run.vocab.target, run.spec
    room = min(LONGEST, run.shape.max_len) - 2
    if spec.reads == "labelled" and run.settings.data.other_field:
        yield from _compared(run, lines)
        return
    if spec.reads == "tagged":
        many = tokenizer.encode_words([words_of(line, "the corpus") for line in lines])[0].lists()
    else:
        many = tokenizer.encode_batch(lines)
    for number, ids in enumerate(many):
        for part in _cut(ids, room, tokenizer):
            if spec.continues:
                yield Passage(number, {"text": tokenizer.begun(part)})
            else:
                yield Passage(number, {"text": tokenizer.as_text(part)})


def _cut(ids: list[int], room: int, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Parts of at most `room` tokens; words stay whole where they are not very long."""
    while len(ids) > room:
        starts = tokenizer.word_starts(ids[: room + 1])
        end = next((place for place in range(room, room // 2, -1) if starts[place]), room)
        yield ids[:end]
        ids = ids[end:]
    if ids:
        yield ids


def _compared(run: Opened, lines: list[str]) -> Iterator[Passage]:
    """Pairs of texts for a model that compares two; the second is cut where both are long."""
    tokenizer = run.vocab.target
    sides = [line.partition("\t")[::2] for line in lines]
    firsts = tokenizer.encode_batch([one for one, _ in sides])
    seconds = tokenizer.encode_batch([other for _, other in sides])
    for number, (one, other) in enumerate(zip(firsts, seconds, strict=True)):
        ends = [tokenizer.eos] * tokenizer.pair_ends
        ids = [tokenizer.bos, *one[: LONGEST // 2], *ends, *other]
        ids = [*ids[: min(LONGEST, run.shape.max_len) - 1], tokenizer.eos]
        yield Passage(number, {"text": ids}, segments=tuple(segments_of(run, ids)))


def _pairs(run: Opened, lines: list[str], targets: Sequence[str] | None) -> Iterator[Passage]:
    source, target = run.vocab.source, run.vocab.target
    begin = [] if target.target_begin is None else [target.target_begin]
    room = min(LONGEST, run.shape.max_len) - 2
    sources = [source.as_source(ids[:room]) for ids in source.encode_batch(lines)]
    if targets is None:
        yield from (Passage(number, {"source": ids}) for number, ids in enumerate(sources))
        return
    for number, ids in enumerate(target.encode_batch(targets)):
        if ids:
            read = [target.bos, *begin, *ids[:room]]
            yield Passage(number, {"source": sources[number], "target": read})


def greedy(run: Opened, lines: list[str]) -> list[str]:
    """The run's own translations, a width of one."""
    from headway.config.decode import DecodeSettings
    from headway.decode.translator import Translator
    from headway.models.seq2seq import Seq2Seq

    assert isinstance(run.model, Seq2Seq)
    device = next(run.model.parameters()).device
    translator = Translator([run.model], run.vocab, DecodeSettings(beam=1), device=device)
    return [found.text for found in translator.translate(lines)]


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
