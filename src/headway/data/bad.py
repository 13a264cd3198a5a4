"""Lines that are not what they should be: refused with their number, or left out (`data.bad`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headway.errors import DataError


def refused(problem: str, others: Iterable[bool], what: str = "lines") -> DataError:
    """The first bad line of a file. `others`: whether each that follows is bad too; `what` is lost
    if they are left out."""
    n = 1 + sum(others)
    like = f" {n:,} lines of this file are like that." if n > 1 else ""
    return DataError(
        f"{problem}{like} Mend that, or, where nothing is scored, leave such {what} out: "
        "data.bad=skip"
    )


def is_bad(read: Callable[[], object]) -> bool:
    try:
        read()
    except DataError:
        return True
    return False
