"""Scan all examples once for the few numbers that the data check and the split need."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headway.data.columns.column import Column
from headway.data.hashing import CharacterCodes, UInt64Array, fold_hashes, mix_bits
from headway.data.language_id import Profiles, Trigrams
from headway.data.media.decoding import UNREADABLE, MediaRecords, read_media_records, read_problems
from headway.data.readers.lines import UnequalCounts
from headway.data.source import DataSource, Example, in_example_blocks
from headway.data.workers import map_blocks

EMPTY, SAME, SWAPPED, CONTROL, REPLACED, GARBLED = (1 << bit for bit in range(6))
"""Flags of unusual examples, one bit each. `EMPTY`: no text, or an empty side of a pair. `SAME`:
both sides are identical. `SWAPPED`: the sides look swapped. `CONTROL`: control characters.
`REPLACED`: the replacement character U+FFFD. `GARBLED`: UTF-8 that was decoded as Latin-1."""

ColumnBlock = tuple[NDArray[Any], ...]
"""Arrays with one entry per example of a block."""

_JOIN = "\t"

ROOM = 1 << 19
"""Number of entries by which arrays grow at a time. It is a few megabytes per array."""

MOST_PROBLEMS = 10_000
"""Maximum number of problems that are listed. Without a limit, a file in the wrong format could
fill the memory."""


@dataclass
class LabelScan:
    """Counts of the labels or tags in a split, and examples with problems."""

    places: dict[str, str] = field(default_factory=dict)
    """File and line of the first occurrence of each label."""

    numbers: dict[str, int] = field(default_factory=dict)
    """Index of each label, in the order of first occurrence."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of occurrences of each label."""

    n_unlabelled: int = 0
    """Number of examples without a label."""

    first_unlabelled: str = ""
    """File and line of the first example without a label."""

    misfits: int = 0
    """Number of tags that do not fit the tag scheme."""

    first_misfit: str = ""
    """File and line of the first tag that does not fit the tag scheme."""

    problems: dict[str, str] = field(default_factory=dict)
    """Error message of each example that is left out, by file and line. Only the first
    `MOST_PROBLEMS` are kept."""

    n_problems: int = 0
    """Number of examples that are left out."""

    present: Counter[str] = field(default_factory=Counter)
    """Number of documents in which each field is present."""

    def add(self, item: Example, target: Column | None, columns: Sequence[str]) -> int:
        """Count an example, and return the index of its first label; -1 without labels."""
        if item.problem:
            self.n_problems += 1
            if self.n_problems <= MOST_PROBLEMS:
                self.problems[item.place] = item.problem
            return -1
        found = [] if target is None else target.scan(item.values.get(target.name, ""))
        if not found:
            self.n_unlabelled += 1
            self.first_unlabelled = self.first_unlabelled or item.place
        for name in found:
            self.counts[name] += 1
            if name not in self.numbers:
                self.places[name] = item.place
                self.numbers[name] = len(self.numbers)
        if item.misfits:
            self.misfits += item.misfits
            self.first_misfit = self.first_misfit or item.place
        if len(columns) > 1:
            self.present.update(name for name in columns if item.values[name])
        return self.numbers[found[0]] if found else -1


@dataclass(frozen=True)
class DatasetScan:
    """Properties of all examples of a split, in about 40 bytes per example. A document is one
    example."""

    source: DataSource
    key: UInt64Array
    """Hash of the text, the source, or all fields of each example, ignoring case and punctuation.
    For media, hash of the content."""

    other: UInt64Array
    """Hash of the second text, the target, or the second media item of each example. If there is
    none, it equals `key`."""

    exact: UInt64Array
    """Hash of all texts of each example, including case and punctuation."""

    lengths: tuple[NDArray[np.integer[Any]], ...]
    """Lengths in characters. For translation pairs: an array for the sources and one for the
    targets; otherwise: one array for whole examples."""

    flags: NDArray[np.uint8]
    """Flags of each example, such as `EMPTY`."""

    label: NDArray[np.int32]
    """Index of the label of each example; -1 without a label."""

    labels: LabelScan
    """Counts of labels or tags."""

    unequal: UnequalCounts | None = None
    """Error that ended the scan of aligned files early; None if there was none."""

    media: MediaRecords | None = None
    """Sizes and marks of images, videos and audio, by example and media column. None for texts."""

    def __len__(self) -> int:
        return len(self.key)

    @property
    def n_characters(self) -> int:
        return sum(int(side.sum()) for side in self.lengths)

    @property
    def filled(self) -> NDArray[np.bool_]:
        return self.flags & EMPTY == 0

    def rows(self, mark: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.flags & mark)

    def examples(self, rows: Iterable[int]) -> dict[int, Example]:
        """Return the examples with these indices, read again from the source. For a document in
        pieces, return only the first piece."""
        wanted = set(rows)
        last = max(wanted, default=-1)
        firsts = (item for item, first in with_first_flags(self.source) if first)
        return {row: item for row, item in enumerate(islice(firsts, last + 1)) if row in wanted}


def with_first_flags(items: Iterable[Example]) -> Iterator[tuple[Example, bool]]:
    """Yield each item, and whether it begins an example rather than continuing a document."""
    first = True
    for item in items:
        yield item, first
        first = item.ends


def scan_examples(
    source: DataSource,
    advance: Callable[[int], None] = lambda n: None,
    profiles: Profiles | None = None,
    *,
    learn: bool = True,
) -> DatasetScan:
    """Scan all texts of a source once.

    Args:
        source: Texts to scan.
        advance: Function that receives the progress, in pairs or characters.
        profiles: Language profiles, with which swapped pairs are found.
        learn: Whether the texts of pairs are added to the profiles, rather than only compared with
            them.
    """
    names, blocks = LabelScan(), _Blocks(source)
    schema = source.schema
    labelled = schema.has_classes
    names_any = schema.counted is not None or schema.has_fields
    profiles = Profiles() if profiles is None else profiles
    parts = GrowingColumns()
    facts = _BlockScanner(schema.is_translation, schema.has_fields)
    for found in map_blocks(facts, blocks):
        block = blocks.taken.popleft()
        if found.trigrams:
            found.marks[profiles.swapped(*found.trigrams, learn=learn)] |= SWAPPED
        told = block.examples if names_any else [one for one in block.examples if one.problem]
        numbers = [names.add(item, schema.counted, schema.text_names) for item in told]
        some = (np.array(numbers, np.int32),) if labelled else ()
        ends = np.array([item.ends for item in block.examples], np.bool_)
        pair = () if found.other is None else (found.other,)
        parts.add((ends, found.key, found.exact, found.marks, *found.lengths, *pair, *some))
        advance(len(block.examples) if schema.is_translation else block.size)
    if not parts.n:
        none = np.zeros(0, np.uint64)
        sides = (none.astype(np.int64),) * (2 if schema.is_translation else 1)
        return DatasetScan(source, none, none, none, sides, none.astype(np.uint8),
                      none.astype(np.int32), names, blocks.unequal)  # fmt: skip
    ends, key, exact, marks, *more = parts.whole()
    label = more.pop() if labelled else np.broadcast_to(np.int32(-1), len(key))
    paired = len(schema.text_names) == 2 and not schema.has_fields
    other = more.pop() if paired else key
    lengths = tuple(more)
    if schema.in_pieces:
        firsts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
        lengths = tuple(np.add.reduceat(side, firsts, dtype=np.int64) for side in lengths)
        # A document has every flag of its pieces, but it is empty only if all its pieces are.
        empty: NDArray[np.uint8] = np.bitwise_and.reduceat(marks & np.uint8(EMPTY), firsts)
        marks = np.bitwise_or.reduceat(marks & ~np.uint8(EMPTY), firsts) | empty
        # The text of the first piece and the total length identify a document.
        exact = exact[firsts] ^ mix_bits(lengths[0].astype(np.uint64))
        key, label = key[firsts], label[firsts]
        other = key
    return DatasetScan(source, key, other, exact, lengths, marks, label, names, blocks.unequal)


def scan_media(source: DataSource, folder: Path, first: int = 0) -> DatasetScan:
    """Return the scan of media that were decoded into the folder. `first`: number of examples of
    another split that are stored before these."""
    examples, each_has = list(source), len(source.schema.media_columns)
    here = slice(first * each_has, (first + len(examples)) * each_has)
    facts = read_media_records(folder)[here].reshape(-1, each_has)
    problems = read_problems(folder)
    unread: NDArray[np.bool_] = np.any(facts["marks"] & UNREADABLE, axis=1)
    names, labels = LabelScan(), np.full(len(examples), -1, np.int32)
    for row, one in enumerate(examples):
        if unread[row]:
            items = range(here.start + row * each_has, here.start + (row + 1) * each_has)
            one = one._replace(problem=next(problems[i] for i in items if i in problems))
        labels[row] = names.add(one, source.schema.counted, ())
    key, other = facts["hash"][:, 0].copy(), facts["hash"][:, -1].copy()
    exact = key if each_has == 1 else mix_bits(key) ^ other
    empty = unread
    if source.schema.text_names:
        texts = [one.text("text") for one in examples]
        empty = unread | np.array([not text for text in texts], np.bool_)
        exact = mix_bits(key) ^ CharacterCodes.of(texts).hashes() if texts else key
    marks = np.where(empty, np.uint8(EMPTY), np.uint8(0))
    return DatasetScan(source, key, other, exact, (), marks, labels, names, media=facts)


class _Block(NamedTuple):
    examples: list[Example]
    size: int


class _Blocks:
    """Iterator over blocks of texts of a source, as one list of texts per column. The examples of
    each block are appended to `taken`."""

    def __init__(self, source: DataSource) -> None:
        self.source = source
        self.taken: deque[_Block] = deque()
        self.unequal: UnequalCounts | None = None

    def __iter__(self) -> Iterator[list[list[str]]]:
        blocks = in_example_blocks(self.source, self.source.schema.text_names)
        while True:
            try:
                block = next(blocks, None)
            except UnequalCounts as error:
                self.unequal = error
                return
            if block is None:
                return
            values = [item.values for item in block]
            texts = [
                [cast(str, one[name]) for one in values] for name in self.source.schema.text_names
            ]
            self.taken.append(_Block(block, sum(sum(map(len, column)) for column in texts)))
            yield texts


class _BlockScan(NamedTuple):
    key: UInt64Array
    other: UInt64Array | None
    exact: UInt64Array
    lengths: tuple[NDArray[np.integer[Any]], ...]
    marks: NDArray[np.uint8]
    trigrams: tuple[Trigrams, Trigrams] | None


@dataclass(frozen=True)
class _BlockScanner:
    """Computes hashes, lengths and flags of a block of texts. It can be pickled for worker
    processes."""

    translated: bool
    """Whether the second column is a translation of the first."""

    joined: bool
    """Whether all columns together form one text."""

    def __call__(self, texts: list[list[str]]) -> _BlockScan:
        filled = np.array([[bool(text.strip()) for text in side] for side in texts], np.bool_)
        empty = ~(filled.any(0) if self.joined else filled.all(0))
        if self.joined and len(texts) > 1:
            texts = [list(map(_JOIN.join, zip(*texts, strict=True)))]
        sides = [CharacterCodes.of(side) for side in texts]
        folded = [side.folded() for side in sides]
        hashes = [side.hashes() for side in sides]
        marks = np.where(empty, np.uint8(EMPTY), np.uint8(0))
        for side in sides:
            marks |= damage_flags(side)
        keys = [fold_hashes(*side) for side in zip(sides, folded, strict=True)]
        lengths = tuple(side.lengths for side in sides)
        if len(sides) == 1:
            return _BlockScan(keys[0], None, hashes[0], lengths, marks, None)
        exact = mix_bits(hashes[0]) ^ hashes[1]
        if not self.translated:
            return _BlockScan(keys[0], keys[1], exact, (lengths[0] + lengths[1],), marks, None)
        marks[hashes[0] == hashes[1]] |= np.uint8(SAME)
        trigrams = Trigrams.of(folded[0]), Trigrams.of(folded[1])
        short = (lengths[0].astype(np.int32), lengths[1].astype(np.int32))
        return _BlockScan(keys[0], keys[1], exact, short, marks, trigrams)


class GrowingColumns:
    """Arrays that grow block by block. Joining many small arrays at the end would need twice the
    memory, because the memory of small arrays is not returned to the operating system."""

    def __init__(self) -> None:
        self.n = 0
        self.columns: list[NDArray[Any]] = []

    def add(self, block: ColumnBlock) -> None:
        if not self.columns:
            self.columns = [np.empty(0, column.dtype) for column in block]
        end = self.n + len(block[0])
        for i, column in enumerate(block):
            if end > len(self.columns[i]):
                self.columns[i].resize(end + ROOM, refcheck=False)
            self.columns[i][self.n : end] = column
        self.n = end

    def whole(self) -> list[NDArray[Any]]:
        for column in self.columns:
            column.resize(self.n, refcheck=False)
        return self.columns


def damage_flags(texts: CharacterCodes) -> NDArray[np.uint8]:
    """Return the flags of each text: `CONTROL`, `REPLACED` or `GARBLED` if its characters suggest a
    damaged encoding (mojibake), otherwise 0."""
    marks = np.zeros(len(texts.sizes), np.uint8)
    # Only characters outside printable ASCII are suspicious. With unsigned integers, the
    # subtraction turns codes below 0x20 into large numbers.
    odd = np.flatnonzero(texts.codes - np.uint32(0x20) >= 0x5F)
    codes, following = texts.codes[odd], texts.codes[np.minimum(odd + 1, len(texts.codes) - 1)]
    ends = texts.starts + texts.sizes - 1
    rows = np.searchsorted(ends, odd)
    inside = odd != ends[rows]
    control = ((codes < 0x20) & (codes != 0x09)) | ((codes >= 0x7F) & (codes < 0xA0))
    # UTF-8 that is read as Latin-1 shows "ä" as "Ã¤", and quotes and dashes as "â€…".
    latin = ((codes == 0xC3) | (codes == 0xC2)) & (following >= 0x80) & (following < 0xC0)
    garbled = latin | ((codes == 0xE2) & (following == 0x20AC))
    for mark, found in ((CONTROL, control), (REPLACED, codes == 0xFFFD), (GARBLED, garbled)):
        marks[rows[found & inside]] |= mark
    return marks
