"""Encode examples block by block as arrays in files, and count the examples left out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, reduce
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import Finding, Report, counted
from headway.data.columns.column import SPLITS, Rows, StoreFacts, StoreTools, TokenColumn
from headway.data.manifest import DataManifest
from headway.data.pairs import filter_pairs
from headway.data.source import DataSource, Example, in_example_blocks
from headway.data.workdir import GrowingFiles
from headway.data.workers import map_blocks
from headway.errors import DataError
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.word_cache import FlatIds

LIMITS = (64, 128, 256, 512, 1024)
"""Length limits in tokens. The report counts the examples that exceed each limit. They are powers
of two in the usual range of context lengths."""

MOST_CHARACTERS = 100
"""Maximum number of characters of a text per token of the longest length limit. Longer texts of
pairs are cut before they are tokenized, and their pairs count as too long. Megabytes without a
space would take much memory and time."""

MOST_UNKNOWN = 1_000
"""Maximum number of distinct unknown characters that are remembered. It is enough for stray
symbols; a corpus in another script has more."""


@dataclass(frozen=True)
class RoutedBlock:
    """Block of examples, or of pieces of documents, each assigned to training or validation."""

    examples: Sequence[Example]
    valid: NDArray[np.bool_]
    """Whether each item is for validation."""

    first: NDArray[np.bool_]
    """Whether each item begins an example; False if it continues a document."""

    def kept(self, rows: NDArray[np.bool_]) -> RoutedBlock:
        if rows.all():
            return self
        return RoutedBlock(list(compress(self.examples, rows)), self.valid[rows], self.first[rows])


class Router:
    """Assigns the examples of one source to training or validation.

    Args:
        held_out: Whether each example is for validation.
        cut: Number of characters from the beginning that are for training. The rest is for
            validation. None: examples are assigned whole.
        blank: Whether each example has no text. All its pieces become one empty example, so that
            it is still counted. None: no example is blank.
    """

    def __init__(
        self, held_out: NDArray[np.bool_], cut: int | None, blank: NDArray[np.bool_] | None = None
    ) -> None:
        self.held_out = held_out
        self.cut = cut
        self.blank = np.zeros(len(held_out), np.bool_) if blank is None else blank
        self.row = 0
        self.characters = 0
        self.first = True

    def route(self, block: Sequence[Example]) -> RoutedBlock:
        rows = slice(self.row, self.row + len(block))
        held = self.held_out[rows]
        if self.cut is None and len(held) == len(block) and not self.blank[rows].any():
            ends = np.array([item.ends for item in block], np.bool_)
            if ends.all():  # every item is an example of its own
                first = ends.copy()
                first[:1] = self.first
                self.row, self.first = rows.stop, True
                return RoutedBlock(block, held, first)
        found = [one for item in block for one in self._routed(item)]
        valid, first = (np.array([one[i] for one in found], np.bool_) for i in (1, 2))
        return RoutedBlock([item for item, _, _ in found], valid, first)

    def _routed(self, item: Example) -> Iterator[tuple[Example, bool, bool]]:
        size = len(item.text("text"))
        if self.row < len(self.blank) and self.blank[self.row]:
            if item.ends:
                behind = self.cut is not None and self.characters >= self.cut
                values = {**item.values, **dict.fromkeys(texts_of(item), "")}
                yield item._replace(values=values), bool(self.held_out[self.row]) or behind, True
            size = 0
        elif self.cut is not None:
            yield from self._by_character(item, self.cut - self.characters)
        elif self.row >= len(self.held_out):
            raise DataError(
                "the training files grew while they were being read. Run the command again."
            )
        else:
            yield item, bool(self.held_out[self.row]), self.first
        self.first = item.ends
        self.row += item.ends
        self.characters += size

    def _by_character(self, item: Example, left: int) -> Iterator[tuple[Example, bool, bool]]:
        text = item.text("text")
        if left >= len(text):
            # If the cut is exactly after this piece, the document ends here for training.
            yield item._replace(ends=item.ends or left == len(text)), False, self.first
        elif left <= 0:
            yield item, True, self.first or left == 0
        else:
            yield item._replace(values={"text": text[:left]}, ends=True), False, self.first
            yield item._replace(values={"text": text[left:]}), True, True


def texts_of(item: Example) -> list[str]:
    """Return the names of the values that are texts."""
    return [name for name, value in item.values.items() if isinstance(value, str)]


def all_for_validation(
    source: DataSource, examples: Iterable[Example] | None = None
) -> Iterator[RoutedBlock]:
    """Yield blocks of examples that are all for validation. `examples`: examples to use instead of
    those of the source."""
    before = True
    for block in in_example_blocks(
        source if examples is None else examples, source.schema.text_names
    ):
        ends = np.array([item.ends for item in block], np.bool_)
        first = np.concatenate([[before], ends[:-1]])
        before = bool(ends[-1])
        yield RoutedBlock(block, np.ones(len(block), np.bool_), first)


class EncodedBlock(NamedTuple):
    """Result of encoding a block of texts. All fields except `kept` cover only items with text."""

    kept: NDArray[np.bool_]
    """Whether each item of the block has text."""

    columns: dict[str, FlatIds]
    characters: dict[str, NDArray[np.int64]]
    n_bytes: NDArray[np.int64]
    """Number of UTF-8 bytes of each text; of the body, for documents with fields."""

    n_unknown: int
    """Number of unknown tokens."""

    unknown: set[str]
    """Characters that the tokenizer does not know."""


@dataclass(frozen=True)
class BlockEncoder:
    """Converts a block of texts to token ids. It can be pickled for worker processes."""

    vocab: Path
    columns: Mapping[str, TokenColumn]
    """Columns to encode, by the names of their token arrays."""

    body: str
    """Name of the column whose UTF-8 bytes are counted."""

    is_joined: bool
    """Whether all columns together form one text, as the fields of a document do. Some of them may
    then be empty."""

    most: int | None
    """Maximum number of characters of each text that are encoded; None: no limit."""

    @cached_property
    def tokenizers(self) -> dict[str, Tokenizer]:
        if not self.columns:
            return {}
        vocab = Vocabularies.load(self.vocab)
        return {name: vocab.target if name == "target" else vocab.source for name in self.columns}

    def __reduce__(self) -> tuple[type[BlockEncoder], tuple[object, ...]]:
        """Pickle without the tokenizers, because every worker loads its own."""
        return BlockEncoder, (self.vocab, self.columns, self.body, self.is_joined, self.most)

    def __call__(self, given: EncodeBlock) -> EncodedBlock:
        if not self.columns:  # labels alone
            n = len(given.whole)
            return EncodedBlock(np.ones(n, np.bool_), {}, {}, np.zeros(n, np.int64), 0, set())
        kept = has_text(given.texts.values(), is_joined=self.is_joined) | ~given.whole
        goes_on = given.continues[kept]
        columns = given.texts
        if not kept.all():
            columns = {name: list(compress(texts, kept)) for name, texts in columns.items()}
        found: dict[str, FlatIds] = {}
        for name, column in self.columns.items():
            values: Sequence[Any] = columns[name]
            if column.is_words:
                values = list(compress(given.words, kept))
            elif self.most is not None:
                values = [text[: self.most] for text in values]
            found |= column.tokenize(values, goes_on, self.tokenizers[name])
        n_unknown, unknown = 0, set[str]()
        for name, texts in columns.items():
            n, lacks = _unknown(self.tokenizers[name], texts, found[name])
            n_unknown, unknown = n_unknown + n, unknown | lacks
        return EncodedBlock(
            kept, found, {name: _sizes(texts) for name, texts in columns.items()},
            _sizes([text.encode() for text in columns[self.body]]), n_unknown, unknown,
        )  # fmt: skip


def _sizes(texts: Sequence[str] | Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def has_text(columns: Iterable[Sequence[str]], *, is_joined: bool) -> NDArray[np.bool_]:
    """Return whether each example has text. If columns are joined (a document with fields), one
    non-empty column is enough; otherwise every column must have text."""
    sides = [np.array([bool(text.strip()) for text in texts], np.bool_) for texts in columns]
    return reduce(np.logical_or if is_joined else np.logical_and, sides)


class EncodeBlock(NamedTuple):
    """Block of texts to encode, the input of `BlockEncoder`."""

    texts: dict[str, list[str]]
    continues: NDArray[np.bool_]
    """Whether each item continues the document of the previous item."""

    whole: NDArray[np.bool_]
    """Whether each item is a whole example; False for a piece of a document."""

    words: list[Sequence[str]]


def _unknown(tokenizer: Tokenizer, texts: Sequence[str], flat: FlatIds) -> tuple[int, set[str]]:
    if tokenizer.covers_everything:
        return 0, set()
    where = np.flatnonzero(flat.ids == tokenizer.unk)
    found: set[str] = set()
    for row in np.unique(np.searchsorted(np.cumsum(flat.lengths), where, side="right")):
        if len(found) < MOST_UNKNOWN:
            found |= tokenizer.unknown_characters(texts[row])
    return len(where), found


def _both() -> list[int]:
    return [0, 0]


@dataclass
class EncodingCounts:
    """Progress and totals of the encoding, stored as JSON so that interrupted work can be resumed.
    Lists of two numbers are for training and validation."""

    blocks: int = 0
    """Number of encoded blocks."""

    n: list[int] = field(default_factory=_both)
    """Numbers of training and of validation examples."""

    n_bytes: list[int] = field(default_factory=_both)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    """Number of tokens in each text column, for each split. Pairs that are left out are
    included."""

    characters: dict[str, int] = field(default_factory=dict)
    """Number of characters in each text column of the training data."""

    unfinished: list[int] = field(default_factory=_both)
    """For each split, number of tokens already encoded of a document that continues in the next
    block."""

    dropped: dict[str, int] = field(default_factory=lambda: {"empty": 0, "validation_empty": 0})
    """Number of examples left out, by reason."""

    over_long: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, LIMITS), 0))
    """Number of training examples with more tokens than each limit, by limit."""

    unknown_tokens: int = 0
    unknown_characters: list[str] = field(default_factory=list)
    shown: int = 0
    """Number of validation examples stored as text."""

    @classmethod
    def of_pairs(cls, max_len: int) -> EncodingCounts:
        names = ("empty", "over_long", "ratio", "validation_empty", "validation_over_long")
        limits = map(str, sorted({*LIMITS, max_len}))
        return cls(dropped=dict.fromkeys(names, 0), over_long=dict.fromkeys(limits, 0))

    def to_dict(self) -> DataManifest:
        return asdict(self)


class DatasetWriter:
    """Writes the stored arrays of both splits to `train.*` and `valid.*`: tokens of texts, labels,
    tags, regression targets, and the token counts and letter case of tagged words."""

    def __init__(
        self,
        source: DataSource,
        vocab: Path,
        labels: Sequence[str],
        folder: Path,
        known: tuple[DataManifest, DataManifest] | None = None,
    ) -> None:
        """Start writing to the folder, or resume. `known`: the counts and files that an interrupted
        attempt recorded; None: start from the beginning."""
        self.source, self.schema = source, source.schema
        schema, data = source.schema, source.settings.data
        self.pairs = schema.is_translation
        done, files = known or ({}, {})
        fresh = EncodingCounts.of_pairs(data.max_len) if self.pairs else EncodingCounts()
        self.count = EncodingCounts(**{**fresh.to_dict(), **done})
        most = MOST_CHARACTERS * max(map(int, self.count.over_long)) if self.pairs else None
        names = schema.text_names
        body = next(iter(names[-1:] if schema.has_fields else names), "")
        self.encode = BlockEncoder(vocab, schema.token_columns, body, schema.has_fields, most)
        self.files = GrowingFiles(folder, files)
        numbers = {name: i for i, name in enumerate(labels)}
        # No single text exceeds 32-bit lengths, but a document may be as long as its file.
        lengths = "<i8" if schema.in_pieces else "<i4"
        tools = StoreTools(self.encode.tokenizers, numbers, lengths)
        columns = (*schema.token_columns.values(), *schema.other_columns)
        self.writers = [column.writer(self.files, tools) for column in columns]
        self.files.start("valid.jsonl")

    @property
    def stores(self) -> dict[str, StoreFacts]:
        """Descriptions of the stored arrays for the manifest, by array name."""
        return {name: facts for one in self.writers for name, facts in one.stores.items()}

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.files.close()

    def run(self, blocks: Iterator[RoutedBlock], done: Callable[[RoutedBlock], None]) -> None:
        """Encode all blocks except those that an earlier attempt has finished. `done` is called for
        every block."""
        waiting: deque[RoutedBlock] = deque()

        def given() -> Iterator[EncodeBlock]:
            for number, routed in enumerate(blocks):
                if number < self.count.blocks:
                    done(routed)
                    continue
                waiting.append(routed)
                yield self._encode_block(routed)

        # Without texts, starting a worker takes longer than all of the encoding.
        work = map_blocks if self.encode.columns else map
        for encoded in work(self.encode, given()):
            routed = waiting.popleft()
            self._add(routed, encoded)
            done(routed)

    def _encode_block(self, routed: RoutedBlock) -> EncodeBlock:
        values = [one.values for one in routed.examples]
        texts = {name: [one[name] for one in values] for name in self.schema.text_names}
        words = [one.strings("words") for one in routed.examples] if self.schema.is_tagged else []
        whole = routed.first & np.array([one.ends for one in routed.examples], np.bool_)
        return EncodeBlock(cast(dict[str, list[str]], texts), ~routed.first, whole, words)

    def _add(self, routed: RoutedBlock, encoded: EncodedBlock) -> None:
        """Count and write the examples of the next block."""
        kept = routed.kept(encoded.kept)
        left = int(routed.valid.sum()) - int(kept.valid.sum())
        self.count.dropped["validation_empty"] += left
        self.count.dropped["empty"] += len(routed.valid) - len(kept.valid) - left
        self.count.unknown_tokens += encoded.n_unknown
        known = set(self.count.unknown_characters)
        if len(known) < MOST_UNKNOWN:
            self.count.unknown_characters = sorted(known | encoded.unknown)
        texts, n_bytes = encoded.columns, encoded.n_bytes
        lengths = self._lengths(encoded)
        self._measure(kept, encoded, lengths)
        if self.pairs:
            data = self.source.settings.data
            fits, dropped = filter_pairs(np.stack(list(lengths.values())), kept.valid, data)
            for why, n in dropped.items():
                self.count.dropped[why] += n
            kept, n_bytes = kept.kept(fits), n_bytes[fits]
            texts = {name: flat.rows(fits) for name, flat in texts.items()}
        columns: dict[str, Rows] = {**texts}
        for writer in self.writers:
            columns |= writer.encode(kept.examples)
        ends = np.array([one.ends for one in kept.examples], np.bool_)
        for number, which in enumerate((~kept.valid, kept.valid)):
            some = {name: rows_where(rows, which) for name, rows in columns.items()}
            self._write(number, some, ends[which])
            self.count.n_bytes[number] += int(n_bytes[which].sum())
        self._show(kept)
        self.count.blocks += 1

    def _lengths(self, encoded: EncodedBlock) -> dict[str, NDArray[np.int64]]:
        """Return the lengths of the texts in tokens, by column. A text that was cut before encoding
        gets the maximum number of characters as its length, so that it counts as too long."""
        most, found = self.encode.most, {}
        for name in self.schema.text_names:
            found[name] = lengths = encoded.columns[name].lengths
            if most is not None:
                found[name] = np.where(encoded.characters[name] > most, most, lengths)
        return found

    def _measure(
        self, kept: RoutedBlock, encoded: EncodedBlock, lengths: Mapping[str, NDArray[np.int64]]
    ) -> None:
        """Count the tokens of each split, and the characters and over-long pairs of the training
        data."""
        count, training = self.count, ~kept.valid
        for name, sizes in lengths.items():
            tokens = count.tokens.setdefault(name, [0, 0])
            tokens[0] += int(sizes[training].sum())
            tokens[1] += int(sizes[~training].sum())
            now = count.characters.get(name, 0)
            count.characters[name] = now + int(encoded.characters[name][training].sum())
        if self.pairs:
            self._count_long(np.maximum(*lengths.values())[training])

    def _count_long(self, lengths: NDArray[np.int64]) -> None:
        for limit in self.count.over_long:
            self.count.over_long[limit] += int((lengths > int(limit)).sum())

    def _write(self, number: int, rows: Mapping[str, Rows], ends: NDArray[np.bool_]) -> None:
        """Write the encoded values of one split. The pieces of a document become one sequence."""
        texts = [cast(FlatIds, rows[name]).lengths for name in self.schema.text_names]
        whole = None
        if self.schema.in_pieces:
            [each] = texts
            done = np.cumsum(each) + self.count.unfinished[number]
            whole = np.diff(done[ends], prepend=0)
            if len(done):
                self.count.unfinished[number] = int(done[-1] - (done[ends].max(initial=0)))
            texts = [whole]
        for writer in self.writers:
            writer.append(SPLITS[number], rows, whole)
        self.count.n[number] += int(ends.sum())
        if number == 0 and not self.pairs and texts:
            self._count_long(np.sum(texts, axis=0))

    def _show(self, kept: RoutedBlock) -> None:
        """Store the first validation examples as text, for reports."""
        lines = []
        for row in np.flatnonzero(kept.valid & kept.first).tolist():
            if self.schema.all_shown or self.count.shown < self.schema.most_shown:
                lines.append(json.dumps(self.schema.shown(kept.examples[row])) + "\n")
                self.count.shown += 1
        self.files.write("valid.jsonl", "".join(lines).encode())

    def add_to(self, report: Report) -> None:
        """Add the statistics and findings that need a tokenizer to the report."""
        count, data = self.count, self.source.settings.data
        for number, which in enumerate(("training", "validation")):
            if not count.n[number]:
                text = (
                    f"no {which} {report.unit} are left. Give more data, or separate validation "
                    f"data with {self.source.valid_option}."
                )
                if self.pairs:
                    text = (
                        f"no {which} pairs are left: {self._reasons()}. To keep longer pairs, set "
                        f"data.max_len higher than {data.max_len}."
                    )
                report.findings.append(Finding("error", "nothing-left", 0, text))
        if self.schema.media is not None:
            self._add_written(report)
            return
        report.over_long = {int(limit): n for limit, n in count.over_long.items()}
        sizes = {name: each.vocab_size for name, each in self.encode.tokenizers.items()}
        if self.pairs:
            for name, size in sizes.items():
                report.sizes[f"{name}_tokens"] = count.tokens.get(name, [0])[0]
                report.sizes[f"{name}_characters"] = count.characters.get(name, 0)
                report.sizes[f"{name}_vocabulary"] = size
            self._add_left_out(report)
        else:
            report.sizes |= {
                "tokens": sum(n for n, _ in count.tokens.values()),
                "valid_tokens": sum(n for _, n in count.tokens.values()),
                "characters": sum(count.characters.values()),
                "vocabulary": next(iter(sizes.values())),
                "examples": count.n[0],
                "valid_examples": count.n[1],
            }
        if count.unknown_tokens:
            text = unknown_text(count.unknown_tokens, set(count.unknown_characters))
            report.findings.append(Finding("warning", "unknown", count.unknown_tokens, text))

    def _add_written(self, report: Report) -> None:
        """Add statistics of the texts that come with media to the report."""
        for name, tokenizer in self.encode.tokenizers.items():
            train, valid = self.count.tokens.get(name, [0, 0])
            report.sizes |= {
                "tokens": float(train),
                "valid_tokens": float(valid),
                "characters": float(self.count.characters.get(name, 0)),
                "vocabulary": float(tokenizer.vocab_size),
            }

    def _reasons(self) -> str:
        said = {"empty": "without source or target", "over_long": "too long",
                "ratio": "too different in length",
                "validation_empty": "in validation without source or target",
                "validation_over_long": "in validation too long"}  # fmt: skip
        return ", ".join(f"{n:,} {said[why]}" for why, n in self.count.dropped.items() if n)

    def _add_left_out(self, report: Report) -> None:
        data, dropped = self.source.settings.data, self.count.dropped
        for which, name in (("", "over_long"), ("validation ", "validation_over_long")):
            if n := dropped[name]:
                text = (
                    f"{counted(n, 'pairs', which)} with more than {data.max_len} tokens on a side "
                    f"(data.max_len) {'are' if n > 1 else 'is'} left out."
                )
                report.findings.append(Finding("warning", name.replace("_", "-"), n, text))
        if n := dropped["ratio"]:
            text = (
                f"{counted(n, 'pairs')} left out because one side has more than "
                f"{data.max_ratio:g} times as many tokens as the other (data.max_ratio)."
            )
            report.findings.append(Finding("note", "uneven", n, text))


def rows_where(rows: Rows, which: NDArray[np.bool_]) -> Rows:
    return rows.rows(which) if isinstance(rows, FlatIds) else rows[which]


def unknown_text(n: int, characters: set[str]) -> str:
    text = f"{counted(n, 'tokens')} unknown to the tokenizer"
    if characters:
        shown = sorted(characters)[:20]
        more = ", …" if len(characters) > 20 else ""
        text += (
            f", which lacks {counted(len(characters), 'characters')}: "
            + ", ".join(f"{c} U+{ord(c):04X}" for c in shown)
            + more
        )
    return text + "."
