"""Estimate where two aligned files stop matching, from the lengths of their lines alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.data.files import display_name, open_lines

MIN_GAIN = 2.0
"""Minimum reduction of the cost that a shift must achieve, in badly matching pairs. With a smaller
reduction, lines are assumed to be missing at the end of a file."""

FloatArray = NDArray[np.float64]

MAX_SLIPS = 16
"""Maximum number of missing lines for which a position is searched for each line. Because the work
grows with this number, more lines are assumed to be missing together at one position."""


def describe_misalignment(
    source: FloatArray, target: FloatArray, paths: tuple[str, str], encoding: str
) -> str:
    """Return a sentence that states where lines stop matching and shows the first lines that
    differ."""
    shorter = min(len(source), len(target))
    cut = paths[0] if len(source) < len(target) else paths[1]
    if not shorter:
        return f"{display_name(cut)} is empty."
    row = first_misaligned_row(source, target)
    if row >= shorter:
        return (
            f"The first {shorter:,} lines match in length: {display_name(cut)} is probably "
            f"truncated."
        )
    texts = [_line(path, row, encoding) for path in paths]
    return (
        f"Judging by line lengths, they stop matching at about line {row + 1:,}: "
        f"{_clipped(texts[0])} next to {_clipped(texts[1])}."
    )


def first_misaligned_row(source: FloatArray, target: FloatArray) -> int:
    """Return the index of the first line that matches better with a shift than without one.

    The best way to insert the missing lines gives the least unusual length ratios. If it is hardly
    better than assuming a truncated file, the number of lines of the shorter file is returned.
    """
    if len(source) > len(target):
        source, target = target, source
    missing = len(target) - len(source)
    shifts = range(missing + 1) if missing <= MAX_SLIPS else (0, missing)
    so_far = [_costs(source, target[shift : shift + len(source)]) for shift in shifts]
    best = so_far[0]
    origins = np.arange(len(source) + 1)  # where the first shift happened, if one ended here
    for step, costs in enumerate(so_far[1:]):
        gain = best - costs
        # For each number of lines so far, find the line at which leaving the previous shift cost
        # least.
        lowest = np.minimum.accumulate(gain)
        rows = np.arange(len(gain))
        at = np.maximum.accumulate(np.where(gain <= lowest, rows, 0))
        best = lowest + costs
        origins = at if step == 0 else origins[at]
    cut_short = so_far[0][-1] - best[-1] < MIN_GAIN
    return len(source) if cut_short else int(origins[-1])


def _costs(source: FloatArray, target: FloatArray) -> FloatArray:
    """Return the cost of matching the first n lines, for every n from 0. The cost of a line is the
    distance of its log length ratio from the median, at most 1."""
    ratio = np.log((source + 3) / (target + 3))
    usual = np.median(ratio)
    return np.concatenate([[0.0], np.cumsum(np.minimum(np.abs(ratio - usual), 1.0))])


def _line(path: str, row: int, encoding: str) -> str:
    for number, line in enumerate(open_lines(path, encoding)):
        if number == row:
            return line
    return ""


def _clipped(text: str, width: int = 50) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
