"""What a user can cause. The command prints these without a traceback and exits with code 2."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from types import ModuleType


class UserError(Exception):
    """Something the user can put right; the message says what is wrong, where, and the way out."""


class ConfigError(UserError):
    """A setting that is unknown, of the wrong type, or impossible beside another."""


class DataError(UserError):
    """Text that cannot be read, or cannot be learned from."""


class FolderError(UserError):
    """A run folder that is missing, damaged, or does not fit."""


class Stopped(Exception):
    """Someone asked the program to stop; what is unfinished will be done when it is run again."""

    def __init__(self, text: str = "", *, saved: bool = True) -> None:
        super().__init__(text)
        self.saved = saved
        """Whether all that was done can be gone on with."""


def out_of_memory(error: BaseException) -> bool:
    """Whether there was no room: torch has a class for that of a GPU, and on a CPU it says so in
    the words of its allocator."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in NO_ROOM)


NO_ROOM = ("can't allocate memory", "Cannot allocate memory", "std::bad_alloc")


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(names)}."


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(label: str, where: str) -> str:
    """The label as it is. Answers are lines, some with columns: it must not break them."""
    if _CONTROL.search(label):
        raise DataError(
            f"{where}: the label {label[:60]!r} holds a line break, a tab, another control "
            "character or bytes that are no UTF-8. Answers are a line each: write it without."
        )
    return label


def needs(module: str, extra: str) -> ModuleType:
    """Import an optional dependency now, or say in one line how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"This needs `pip install 'headway[{extra}]'` ({module}: {error})."
        ) from error
