"""One pass over the pairs that keeps a few numbers of each: all that the check decides by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.files import shown
from headway.data.fold import Hashes, Texts, fold_hashes, mixed
from headway.data.languages import Profiles
from headway.data.pairs import Pair, PairFile, in_blocks
from headway.data.readers.lines import UnequalCounts

EMPTY, SAME, SWAPPED, CONTROL, REPLACED, GARBLED = (1 << bit for bit in range(6))
"""Marks of a pair: a side without text; both sides alike; both look like the other side; control
characters; U+FFFD; UTF-8 that was once read as Latin-1."""


@dataclass(frozen=True)
class Scan:
    """What is known of each pair: about 33 bytes."""

    files: Sequence[PairFile]
    first_rows: list[int]
    source_lengths: NDArray[np.int32]
    """In characters."""

    target_lengths: NDArray[np.int32]
    source: Hashes
    """Without case and punctuation."""

    target: Hashes
    pair: Hashes
    """Of the texts as they are."""

    marks: NDArray[np.uint8]
    unequal: UnequalCounts | None
    """Why it ended early, if it did."""

    def __len__(self) -> int:
        return len(self.marks)

    def rows(self, mark: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.marks & mark)

    def place(self, row: int) -> str:
        """The file and line of a pair."""
        number = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        file = self.files[number]
        line = row - self.first_rows[number] + file.header + 1
        return f"{Path(shown(file.paths[0])).name}:{line}"

    def texts(self, rows: Sequence[int]) -> dict[int, Pair]:
        """The pairs of some rows, read again."""
        wanted = set(rows)
        last = max(wanted, default=-1)
        stream = (pair for file in self.files for pair in file)
        return {row: pair for row, pair in enumerate(islice(stream, last + 1)) if row in wanted}


def scan(
    files: Sequence[PairFile],
    profiles: Profiles,
    *,
    learn: bool,
    advance: Callable[[int], None] = lambda n: None,
) -> Scan:
    """Read all files once. With `learn` the profiles of the two sides grow on the way; without,
    pairs are held against profiles that are complete."""
    parts: list[tuple[NDArray[np.generic], ...]] = []
    first_rows, n_rows = [], 0
    unequal: UnequalCounts | None = None
    for file in files:
        first_rows.append(n_rows)
        blocks = in_blocks(file)
        while True:
            try:
                block = next(blocks, None)
            except UnequalCounts as error:
                unequal = unequal or error
                break
            if block is None:
                break
            parts.append(_facts(block, profiles, learn=learn))
            n_rows += len(block)
            advance(len(block))
    if not parts:
        parts.append(_facts([("", "")], profiles, learn=False))
    columns = [column[:n_rows] for column in joined(parts)]
    return Scan(files, first_rows, *columns, unequal)  # type: ignore[arg-type, call-arg]


def joined(parts: list[tuple[NDArray[np.generic], ...]]) -> list[NDArray[Any]]:
    """The columns of blocks, one after another. The blocks go as they are taken, so that there is
    no time at which everything is there twice."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    whole = []
    while columns:
        whole.append(np.concatenate(columns.pop(0)))
    return whole


def _facts(
    block: list[Pair], profiles: Profiles, *, learn: bool
) -> tuple[NDArray[np.generic], ...]:
    sources, targets = zip(*block, strict=True)
    source, target = Texts.of(sources), Texts.of(targets)
    folded = source.folded(), target.folded()
    hashes = source.hashes(), target.hashes()
    marks = _mark(profiles.swapped(*folded, learn=learn), SWAPPED)
    marks |= _mark(hashes[0] == hashes[1], SAME)
    for texts in (source, target):
        marks |= signs(texts)
    for row in np.flatnonzero((folded[0].lengths == 0) | (folded[1].lengths == 0)):
        if not all(text.strip() for text in block[row]):
            marks[row] |= EMPTY
    return (
        source.lengths.astype(np.int32),
        target.lengths.astype(np.int32),
        fold_hashes(source, folded[0]),
        fold_hashes(target, folded[1]),
        mixed(hashes[0]) ^ hashes[1],
        marks,
    )


def _mark(where: Sequence[bool] | NDArray[np.bool_], mark: int) -> NDArray[np.uint8]:
    return np.asarray(where, np.bool_).astype(np.uint8) * np.uint8(mark)


def signs(texts: Texts) -> NDArray[np.uint8]:
    """Marks of characters that hint at damage."""
    marks = np.zeros(len(texts.sizes), np.uint8)
    # Only what is not printable ASCII can be one; unsigned numbers below 0x20 become huge here.
    odd = np.flatnonzero(texts.codes - np.uint32(0x20) >= 0x5F)
    codes, following = texts.codes[odd], texts.codes[np.minimum(odd + 1, len(texts.codes) - 1)]
    ends = texts.starts + texts.sizes - 1
    rows = np.searchsorted(ends, odd)
    inside = odd != ends[rows]
    control = ((codes < 0x20) & (codes != 0x09)) | ((codes >= 0x7F) & (codes < 0xA0))
    # "Ã¤" is what becomes of "ä", "â€" of quotes and dashes.
    latin = ((codes == 0xC3) | (codes == 0xC2)) & (following >= 0x80) & (following < 0xC0)
    garbled = latin | ((codes == 0xE2) & (following == 0x20AC))
    for mark, found in ((CONTROL, control), (REPLACED, codes == 0xFFFD), (GARBLED, garbled)):
        marks[rows[found & inside]] |= mark
    return marks
