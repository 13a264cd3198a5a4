"""Hold out validation examples that share no text with the training examples.

Examples that share a text (a source or target of pairs), ignoring case and punctuation, form a
group together with all examples that are connected to them. A group is assigned as a whole. If
pairs were split by source alone, the same target sentences would be in both splits. With labels,
the same fraction of every label is held out, and at least one example of each label stays in the
training data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import Finding, Report, counted
from headway.data.hashing import IntArray, UInt64Array, mix_bits
from headway.data.scan import DatasetScan
from headway.data.store import ImpossibleData
from headway.errors import DataError, Option

SOME = 1_000_000
"""Number of examples that are processed at a time, to limit memory."""

TRIED = 64
"""Number of groups per label that are tried in the first pass, which looks for a group that can be
held out. A group cannot be held out if it is too large or has the last example of a label."""

_SALT = np.uint64(0x5EED)
"""Salt that makes the split independent of other uses of the same hashes."""


def split_off(seen: DatasetScan, size: int, report: Report) -> NDArray[np.bool_]:
    """Return whether each example is held out for validation. Problems are added to the report.
    `size`: wanted number of validation examples."""
    held_out = np.zeros(len(seen), np.bool_)
    filled = seen.filled
    # A slice makes no copy, and in most data every example has text.
    rows = slice(None) if filled.all() else filled
    schema = seen.source.schema
    # Two recordings per voice are held out, because speaker verification compares recordings of the
    # same voice.
    each = 2 if any(one.is_audio for one in schema.media_columns) else 1
    labels = seen.label[rows] if seen.labels.counts and not schema.is_tagged else None
    try:
        keys = seen.key[rows], seen.other[rows]
        unit = schema.unit
        option = seen.source.valid_option
        chosen = choose_rows(*keys, size, unit, option, labels=labels, each=each)
    except DataError as error:
        hint = "" if schema.target is None else schema.target.hint(seen)
        text = " ".join(filter(None, [str(error), hint]))
        report.findings.append(Finding("error", "no-split", 0, text))
        raise ImpossibleData(report) from error
    held_out[np.flatnonzero(filled)[chosen]] = True
    if schema.is_translation:
        _report_shared(seen, filled & ~held_out, held_out, report)
    return held_out


def _report_shared(
    seen: DatasetScan, kept: NDArray[np.bool_], held_out: NDArray[np.bool_], report: Report
) -> None:
    few = seen.other[held_out]
    shared = np.zeros(len(few), np.bool_)
    for row in range(0, len(seen), SOME):  # of all at once a sorted copy would be made
        block = slice(row, row + SOME)
        shared |= np.isin(few, seen.other[block][kept[block]])
    if n := int(shared.sum()):
        text = (
            f"{n:,} of {int(held_out.sum()):,} pairs split off for validation share their target "
            "with training pairs: groups of pairs with a common source or target are too large to "
            "be split off whole."
        )
        report.findings.append(Finding("warning", "shared-split", n, text))


VALID_OPTION = Option("valid", takes="FILE")


def choose_rows(
    source: UInt64Array,
    target: UInt64Array,
    size: int,
    unit: str = "pairs",
    option: Option | str = VALID_OPTION,
    labels: NDArray[np.int32] | None = None,
    each: int = 1,
) -> NDArray[np.bool_]:
    """Return whether each example is held out for validation.

    Whole groups are held out, and about the same fraction of each label. The choice does not depend
    on the order of the examples.

    Args:
        source: Hash of the source, or of the text, of each example.
        target: Hash of the target of each example; the same array as `source` without targets.
        size: Wanted number of examples. At most a tenth of all examples are held out.
        unit: Unit of the examples in errors.
        option: Option for separate validation data, which errors suggest.
        labels: Label of each example; None without labels.
        each: Number of examples of every label that are held out before any others.
    """
    if len(source) < 2:
        raise DataError(
            f"{counted(len(source), unit, 'usable ')} cannot be split into training and "
            f"validation data. Give more {unit}, or separate validation {unit} ({option})."
        )
    limit = max(1, min(size, len(source) // 10))
    chosen = _chosen(groups(source, target), source, limit, labels, each)
    if not chosen.any():
        # If all pairs are connected, for example because the targets are a few fixed answers, group
        # by source only.
        chosen = _chosen(groups(source, source), source, limit, labels, each)
    if not chosen.any() and labels is not None:
        raise DataError(
            f"no validation {unit} can be split off the {len(source):,} {unit}: there are too few, "
            "most are the same, or each is the only one of its class. Give separate validation "
            f"data ({option})."
        )
    if not chosen.any():
        raise DataError(
            f"no validation {unit} can be split off: all or most of the {len(source):,} {unit} "
            f"have the same {'source' if unit == 'pairs' else 'text'}. Give separate validation "
            f"{unit} ({option})."
        )
    return chosen


def _chosen(
    first: IntArray, source: UInt64Array, limit: int, labels: NDArray[np.int32] | None, each: int
) -> NDArray[np.bool_]:
    """Return whether each example is held out. `first`: index of the first example in the group of
    each example."""
    draws = np.full(len(first), np.iinfo(np.uint64).max, np.uint64)
    for row in range(0, len(first), SOME):
        block = slice(row, row + SOME)
        np.minimum.at(draws, first[block], mix_bits(source[block] ^ _SALT))
    if labels is not None:
        return choose_by_label(draws[first], labels, limit, each)
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


def groups(source: UInt64Array, target: UInt64Array) -> IntArray:
    """Return for each pair the index of the first pair in its group. Pairs that share a source or a
    target are in the same group."""
    first = np.arange(len(source), dtype=_numbers(len(source)))
    by_source, by_target = _Runs(source), _Runs(target)
    while True:
        before = first
        first = by_target.lowest(by_source.lowest(first))
        # The former first pair of each group gets the new minimum, and all pairs of the group
        # follow. Without this, a long chain of pairs would take as many rounds as it has links.
        np.minimum.at(first, before, first)
        first = first[first]
        if np.array_equal(first, before):
            return first


def _numbers(n: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest integer type for `n` indices. It saves memory, which is highest when many
    pairs are split."""
    return np.uint32 if n < 1 << 32 else np.uint64


class _Runs:
    """Examples sorted by key, for computations over examples with equal keys."""

    def __init__(self, keys: UInt64Array) -> None:
        kind = _numbers(len(keys))
        self.order = np.argsort(keys, kind="stable").astype(kind)
        ordered = keys[self.order]
        changes = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        del ordered
        self.starts = np.flatnonzero(changes).astype(kind)
        self.sizes = np.diff(np.append(self.starts, kind(len(keys))))

    def lowest(self, values: IntArray) -> IntArray:
        """Return for each example the lowest value among all examples with the same key."""
        lowest = np.minimum.reduceat(values[self.order], self.starts)
        spread = np.empty_like(values)
        spread[self.order] = np.repeat(lowest, self.sizes)
        return spread


def choose_by_label(
    draws: UInt64Array, labels: Sequence[str] | NDArray[np.int32], limit: int, each: int = 1
) -> NDArray[np.bool_]:
    """Return whether each example is held out. Whole groups are chosen, `limit` examples at most.

    First, `each` examples of every label are chosen; if the limit is too low for all labels, only
    those of the larger classes. Further examples follow, the same fraction of every label. At least
    one example of each label stays in the training data.

    Args:
        draws: Random number of each example. Examples with the same number form a group. Groups are
            tried in the order of their numbers.
        labels: Label of each example.
        limit: Maximum number of examples to hold out.
        each: Number of examples of every label that are held out before any others.
    """
    order = np.argsort(draws, kind="stable")
    starts = np.flatnonzero(np.diff(draws[order], prepend=~draws[order[:1]]))
    ends = np.append(starts[1:], len(draws))
    names, numbers = np.unique(np.asarray(labels), return_inverse=True)
    lead = numbers[order[starts]]  # the label of a group, or the first of several
    held_out = np.zeros(len(draws), np.bool_)
    whole = left = np.bincount(numbers, minlength=len(names))
    in_turn, place = _in_turn(lead, each)
    early = in_turn[place[in_turn] < each * TRIED]
    for only_new, groups in ((True, early), (False, in_turn)):
        for group in _one_by_one(groups):
            if only_new and whole[lead[group]] - left[lead[group]] >= each:
                continue
            rows = order[starts[group] : ends[group]]
            after = left - np.bincount(numbers[rows], minlength=len(names))
            if len(rows) > limit or held_out[rows[0]] or not after[numbers[rows]].all():
                continue
            held_out[rows] = True
            limit, left = limit - len(rows), after
            if not limit:
                return held_out
    return held_out


def _one_by_one(numbers: NDArray[np.int64]) -> Iterator[int]:
    """Yield the numbers of an array without building a list of all of them."""
    for first in range(0, len(numbers), SOME):
        yield from numbers[first : first + SOME].tolist()


def _in_turn(lead: NDArray[np.int64], each: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order in which groups are tried, and the rank of each group within its label.
    `lead`: label of each group. At any point in the order, about the same fraction of each label's
    groups has been tried. A label contributes `each` groups at a time."""
    order = np.argsort(lead, kind="stable")
    _, start, counts = np.unique(lead[order], return_index=True, return_counts=True)
    share, first = np.empty(len(lead)), np.empty(len(lead), np.int64)
    rank = np.arange(len(lead)) - np.repeat(start, counts)
    share[order] = (rank // each + 0.5) / np.repeat(counts, counts)
    first[order] = np.repeat(order[start], counts)  # labels in the order drawn, not by name
    place = np.empty(len(lead), np.int64)
    place[order] = rank
    return np.lexsort((first, share)), place
