"""One pass over texts that keeps a few numbers of each: all that the check and the split need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headway.data.example import Example, Source, in_example_blocks
from headway.data.fold import Hashes, Numbers, Texts, fold_hashes, mixed
from headway.data.scan import EMPTY, joined, signs

_JOIN = "\t"

MOST_PROBLEMS = 10_000
"""That are listed: memory must not grow with a file that holds something else altogether."""


@dataclass
class Names:
    """Labels or tags as they come, and what is to be said about them."""

    places: dict[str, str] = field(default_factory=dict)
    """Where each was first seen."""

    numbers: dict[str, int] = field(default_factory=dict)
    """Of each, in the order in which they came."""

    counts: Counter[str] = field(default_factory=Counter)
    without: int = 0
    """Examples that have none."""

    first_without: str = ""
    misfits: int = 0
    """Tags that do not fit their scheme."""

    first_misfit: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    """What could not be read and is left out, by its place: the first `MOST_PROBLEMS`."""

    n_problems: int = 0

    present: Counter[str] = field(default_factory=Counter)
    """How many examples have each of the fields."""

    def see(self, item: Example, columns: Sequence[str]) -> int:
        """The number of the label; -1 for none."""
        if item.problem:
            self.n_problems += 1
            if self.n_problems <= MOST_PROBLEMS:
                self.problems[item.place] = item.problem
            return -1
        label = item.text("label")
        if not label:
            self.without += 1
            self.first_without = self.first_without or item.place
        for name in item.several("tags") or ([label] if label else []):
            self.counts[name] += 1
            if name not in self.numbers:
                self.places[name] = item.place
                self.numbers[name] = len(self.numbers)
        if item.misfits:
            self.misfits += item.misfits
            self.first_misfit = self.first_misfit or item.place
        if len(columns) > 1:
            self.present.update(name for name in columns if item.values[name])
        return self.numbers[label] if label else -1


@dataclass(frozen=True)
class Survey:
    """What is known of each example, a document being one: about 40 bytes."""

    source: Source
    key: Hashes
    """Of the text, or of all fields, without case and punctuation."""

    other: Hashes
    """Of the second text; the same as `key` where there is none."""

    exact: Hashes
    characters: Numbers
    marks: NDArray[np.uint8]
    label: NDArray[np.int32]
    """The number of its label; -1 for none."""

    names: Names

    def __len__(self) -> int:
        return len(self.key)

    @property
    def filled(self) -> NDArray[np.bool_]:
        return self.marks & EMPTY == 0

    def rows(self, mark: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.marks & mark)

    def items(self, rows: Sequence[int]) -> dict[int, Example]:
        """The first item of some rows, read again."""
        wanted = set(rows)
        last = max(wanted, default=-1)
        firsts = (item for item, first in with_firsts(self.source) if first)
        return {row: item for row, item in enumerate(islice(firsts, last + 1)) if row in wanted}


def with_firsts(items: Iterator[Example] | Source) -> Iterator[tuple[Example, bool]]:
    """Each item, and whether an example begins with it."""
    first = True
    for item in items:
        yield item, first
        first = item.ends


def survey(source: Source, advance: Callable[[int], None] = lambda n: None) -> Survey:
    """Read all files once; `advance` hears how many characters were read."""
    names = Names()
    parts = []
    for block in in_example_blocks(source, source.columns):
        parts.append(_facts(block, source, names))
        advance(sum(len(item.values[name]) for item in block for name in source.columns))
    if not parts:
        none = np.zeros(0, np.uint64)
        return Survey(source, none, none, none, none.astype(np.int64), none.astype(np.uint8),
                      none.astype(np.int32), names)  # fmt: skip
    key, other, exact, characters, marks, label, ends = joined(parts)
    firsts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
    characters = np.add.reduceat(characters, firsts)
    # Anything odd in a piece is odd of its document; it is empty when all pieces are.
    empty: NDArray[np.uint8] = np.bitwise_and.reduceat(marks & np.uint8(EMPTY), firsts)
    others: NDArray[np.uint8] = np.bitwise_or.reduceat(marks & ~np.uint8(EMPTY), firsts)
    # Documents are told apart by how they begin and by their length.
    exact = exact[firsts] ^ mixed(characters.astype(np.uint64))
    return Survey(
        source, key[firsts], other[firsts], exact, characters, others | empty, label[firsts], names
    )


def _facts(block: list[Example], source: Source, names: Names) -> tuple[NDArray[np.generic], ...]:
    columns = source.columns
    label = np.array([names.see(item, columns) for item in block], np.int32)
    pairs = columns == ("text", "other")
    first = columns[:1] if pairs else columns
    joined = [_JOIN.join(map(item.text, first)) for item in block]
    texts = Texts.of(joined)
    key = other = fold_hashes(texts)
    exact, characters, marks = texts.hashes(), texts.lengths, signs(texts)
    if pairs:
        others = Texts.of([item.text("other") for item in block])
        other = fold_hashes(others)
        exact = mixed(exact) ^ others.hashes()
        characters = characters + others.lengths
        marks |= signs(others)
    marks |= np.array([is_empty(item, source) for item in block], np.uint8) * np.uint8(EMPTY)
    ends = np.array([item.ends for item in block], np.bool_)
    return key, other, exact, characters, marks, label, ends


def is_empty(item: Example, source: Source) -> bool:
    """Without text; a document of fields needs one of them, a pair both texts."""
    filled = [bool(item.text(name).strip()) for name in source.columns]
    return not (any(filled) if source.kind == "fields" else all(filled))
