"""Which items are set aside for validation where nobody gives any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.data.fold import Hashes, mixed
from headway.data.media.check import absent_labels
from headway.data.media.reading import UNITS
from headway.data.media.survey import Surveyed
from headway.data.report import Finding, Report
from headway.data.split import choose_rows
from headway.data.store import ImpossibleData
from headway.errors import DataError

_SALT = np.uint64(0x5EED)


def split_off(
    seen: Surveyed, good: NDArray[np.int64], size: int, report: Report
) -> NDArray[np.bool_]:
    """Which of the good ones are for validation: equal ones together, about as many of each class
    as it has of all, and never all of a class. The report hears of classes that get none."""
    keys, unit = seen.facts["hash"][good], UNITS[seen.form.what]
    labels = [seen.targets[row] or "" for row in good.tolist()]
    try:
        if seen.target != "label":
            return choose_rows(keys, keys, size, unit, "--valid-media")
        # Voices are also compared with each other: one recording of a voice would say nothing.
        each = 2 if seen.form.what == "sounds" else 1
        held_out = choose_by_label(keys, labels, max(1, min(size, len(keys) // 10)), each)
        if not held_out.any():
            raise DataError("no class can spare one")
    except DataError as error:
        text = (
            f"no validation {unit} can be split off the {len(good):,} {unit}: they are too few, "
            "or most of them are the same, or the only ones of their class. Give some of their "
            "own (--valid-media)."
        )
        report.findings.append(Finding("error", "no-split", 0, text))
        raise ImpossibleData(report) from error
    chosen = {labels[place] for place in np.flatnonzero(held_out).tolist()}
    report.findings += absent_labels(chosen, set(labels))
    return held_out


def choose_by_label(
    keys: Hashes, labels: Sequence[str], limit: int, each: int = 1
) -> NDArray[np.bool_]:
    """At most `limit` items in whole groups of equal keys, in an order drawn from the keys.

    First `each` of a label after another, large classes before small ones where the limit is too
    low for all; then the same share of every label. A label keeps at least one for training.
    """
    draws = mixed(keys ^ _SALT)  # different for different keys
    order = np.argsort(draws, kind="stable")
    starts = np.flatnonzero(np.diff(draws[order], prepend=~draws[order[:1]]))
    ends = np.append(starts[1:], len(keys))
    names, numbers = np.unique(np.asarray(labels, object), return_inverse=True)
    lead = numbers[order[starts]]  # the label of a group, or the first of several
    held_out = np.zeros(len(keys), np.bool_)
    whole = left = np.bincount(numbers, minlength=len(names))
    in_turn = _in_turn(lead, each).tolist()
    for only_new in (True, False):
        for group in in_turn:
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


def _in_turn(lead: NDArray[np.int64], each: int) -> NDArray[np.int64]:
    """Groups by where they stand among those of their label, `each` of a label together."""
    order = np.argsort(lead, kind="stable")
    _, start, counts = np.unique(lead[order], return_index=True, return_counts=True)
    share, first = np.empty(len(lead)), np.empty(len(lead), np.int64)
    place = np.arange(len(lead)) - np.repeat(start, counts)
    share[order] = (place // each + 0.5) / np.repeat(counts, counts)
    first[order] = np.repeat(order[start], counts)  # labels in the order drawn, not by name
    return np.lexsort((first, share))
