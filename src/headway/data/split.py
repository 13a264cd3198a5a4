"""Which pairs are set aside for validation, so that nothing of them is seen in training.

Pairs that share a source or a target, but for case and punctuation, belong together, and so do
pairs that such pairs connect. A group goes to one side as a whole. Splitting by source alone would
leave the same target sentences on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.fold import Hashes, Numbers, Texts, fold_hashes, mixed
from headway.data.pairs import in_blocks
from headway.errors import DataError

OPTIONS = "--valid-source, --valid-target"
"""How validation data of its own is given."""

SOME = 1_000_000
"""Rows that are worked on at once where all of them would take much memory."""

_SALT = np.uint64(0x5EED)


def validation_rows(pairs: Iterable[tuple[str, str]], size: int) -> NDArray[np.bool_]:
    """True for each pair that is set aside: about `size`, at most a tenth, in whole groups.

    The same pairs are chosen in whatever order the pairs come. Holds 16 bytes a pair.
    """
    blocks: list[tuple[Hashes, Hashes]] = []
    for block in in_blocks(pairs):
        source, target = (fold_hashes(Texts.of(side)) for side in zip(*block, strict=True))
        blocks.append((source, target))
    if not blocks:
        return np.zeros(0, np.bool_)
    source, target = (np.concatenate(side) for side in zip(*blocks, strict=True))
    return choose_rows(source, target, size)


def choose_rows(
    source: Hashes, target: Hashes, size: int, unit: str = "pairs", options: str = OPTIONS
) -> NDArray[np.bool_]:
    """`validation_rows` for pairs that are known by the hashes of their two sides."""
    if len(source) < 2:
        raise DataError(
            f"{len(source)} usable {unit} cannot be split into training and validation. "
            f"Give more {unit}, or validation {unit} of their own ({options})."
        )
    limit = max(1, min(size, len(source) // 10))
    chosen = _whole_groups(groups(source, target), source, limit)
    if not chosen.any():
        # Everything hangs together, as where targets are a few fixed answers.
        chosen = _whole_groups(groups(source, source), source, limit)
    if not chosen.any():
        raise DataError(
            f"no validation {unit} can be split off: all or most of the {len(source):,} {unit} "
            f"have the same {'source' if unit == 'pairs' else 'text'}. Give validation {unit} of "
            f"their own ({options})."
        )
    return chosen


def groups(source: Hashes, target: Hashes) -> Numbers:
    """For each pair the first pair of its group: connected by shared sources and targets."""
    first = np.arange(len(source), dtype=_numbers(len(source)))
    by_source, by_target = _Runs(source), _Runs(target)
    while True:
        before = first
        first = by_target.lowest(by_source.lowest(first))
        # What one pair learns, the pair it followed till now learns too; then all follow that one.
        # Without this a long chain of pairs would take as many rounds as it has links.
        np.minimum.at(first, before, first)
        first = first[first]
        if np.array_equal(first, before):
            return first


def _numbers(n: int) -> type[np.unsignedinteger[Any]]:
    """What the number of a row fits in: the split of many pairs is where most memory is taken."""
    return np.uint32 if n < 1 << 32 else np.uint64


class _Runs:
    """Rows with equal keys."""

    def __init__(self, keys: Hashes) -> None:
        kind = _numbers(len(keys))
        self.order = np.argsort(keys, kind="stable").astype(kind)
        ordered = keys[self.order]
        changes = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        del ordered
        self.starts = np.flatnonzero(changes).astype(kind)
        self.sizes = np.diff(np.append(self.starts, kind(len(keys))))

    def lowest(self, values: Numbers) -> Numbers:
        """For each row the lowest value among the rows with its key."""
        lowest = np.minimum.reduceat(values[self.order], self.starts)
        spread = np.empty_like(values)
        spread[self.order] = np.repeat(lowest, self.sizes)
        return spread


def _whole_groups(first: Numbers, source: Hashes, limit: int) -> NDArray[np.bool_]:
    """Groups in an order drawn from their hashes, each that still fits, up to `limit` pairs."""
    draws = np.full(len(first), np.iinfo(np.uint64).max, np.uint64)
    for row in range(0, len(first), SOME):
        block = slice(row, row + SOME)
        np.minimum.at(draws, first[block], mixed(source[block] ^ _SALT))
    leaders = np.flatnonzero(first == np.arange(len(first), dtype=first.dtype))
    draws = draws[leaders]
    sizes = np.bincount(first, minlength=len(first)).astype(first.dtype)
    taken = np.zeros(len(first), np.bool_)
    left = limit
    for number in leaders[np.argsort(draws, kind="stable")]:
        if left == 0:
            break
        if sizes[number] <= left:
            taken[number] = True
            left -= int(sizes[number])
    return taken[first]
