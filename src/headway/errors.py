"""What a user can cause. The command prints these without a traceback and exits with code 2."""

from __future__ import annotations

import difflib
import importlib
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


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(names)}."


def needs(module: str, extra: str) -> ModuleType:
    """Import an optional dependency now, or say in one line how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"This needs `pip install 'headway[{extra}]'` ({module}: {error})."
        ) from error
