"""Errors that a user can cause and fix.

Commands print them without a traceback and exit with code 2.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from types import ModuleType

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal interprets instead of showing them: C0 and C1 controls other than tab
and line feed, line separators, and marks that change the direction of text."""


def visible(text: str) -> str:
    """Return the text with control characters written as `\\u001b`, which are valid in JSON as
    well.

    Text from data, file names and models is passed through this function before it is printed on a
    terminal. An escape sequence in it could otherwise clear the screen, rename the window or hide
    what follows.
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Edge(Enum):
    """Interface by which the user calls headway."""

    PYTHON = auto()
    COMMAND_LINE = auto()
    HTTP = auto()


_edge = Edge.PYTHON


@contextmanager
def called_by(way: Edge) -> Iterator[None]:
    """Context manager that sets the interface of a command or a server, so that messages name
    options accordingly. The interface applies to the whole process, because all threads work for
    the same user."""
    global _edge
    before, _edge = _edge, way
    try:
        yield
    finally:
        _edge = before


def edge() -> Edge:
    return _edge


OPTION_NAMES = {"start": "from"}
"""Names of command-line options by their names in Python, where the two differ."""

METHODS = {"labels": "choose()", "stream": "write()", "format": "save()"}
"""Methods in Python that replace command-line options, by the name of the option."""


@dataclass(frozen=True)
class Option:
    """An option in a message: a command-line option, a Python argument or a field of an HTTP
    request.

    As text, it is spelled as the user would give it: `--n-best 3`, `n_best=3` or `n_best`.
    """

    name: str
    """Name of the option as a Python argument."""

    value: object = None
    """Value of the option. True for a switch; None if the message shows no value."""

    takes: str = ""
    """Placeholder that the message shows instead of a value, such as `FILE`."""

    def __str__(self) -> str:
        value = os.fspath(self.value) if isinstance(self.value, os.PathLike) else self.value
        if _edge is Edge.COMMAND_LINE:
            word = f"--{OPTION_NAMES.get(self.name, self.name).replace('_', '-')}"
            if value is None or value is True:
                return f"{word} {self.takes}".rstrip()
            is_bare = not isinstance(value, str) or _BARE.fullmatch(value)
            return f"{word} {value if is_bare else repr(value)}"
        if _edge is Edge.HTTP:
            return self.name
        if self.name in METHODS:
            return METHODS[self.name]
        if value is None:
            return f"{self.name}=…" if self.takes else f"{self.name}="
        return f'{self.name}="{value}"' if isinstance(value, str) else f"{self.name}={value}"


_BARE = re.compile(r"[\w./:,+-]+")
"""Pattern of values that need no quotes on the command line."""


@dataclass(frozen=True)
class Argument:
    """A positional argument in a message, with its name on the command line and in Python."""

    word: str
    name: str

    def __str__(self) -> str:
        return self.word if _edge is Edge.COMMAND_LINE else self.name


DATA_ARGUMENT = Argument("FILES", "data (a path, paths or a table)")


class UserError(Exception):
    """Error that the user can fix. The message contains what is wrong, where, and the fix."""

    def __init__(self, text: str = "", *more: object) -> None:
        super().__init__(visible(text), *more)


class ConfigError(UserError):
    """Error for a setting that is unknown, has the wrong type, or conflicts with another
    setting."""


class DataError(UserError):
    """Error for data that cannot be read, or cannot be used for training."""


@dataclass(frozen=True)
class ColumnName:
    """Name of a column in a message, which is shown as an option or as a setting."""

    option: str
    setting: str
    value: str = ""
    """Name of the column in the file. Empty: the message shows a placeholder."""

    def by_option(self) -> str:
        value = self.value or None
        return f"{Option(self.option, value, takes='NAME')}"

    def by_setting(self) -> str:
        return f"{self.setting}={self.value!r}" if self.value else f"{self.setting}=…"


class MissingColumnError(ConfigError, DataError):
    """Error for a missing column: the file is the wrong one, or the column has another name.

    By default, the message explains how to name the column with a setting.
    """

    def __init__(self, parts: Sequence[str | ColumnName]) -> None:
        self.parts = tuple(parts)
        super().__init__("".join(
            one if isinstance(one, str) else one.by_setting() for one in self.parts
        ))  # fmt: skip

    def name_options(self) -> None:
        """Change the message to name columns with options, which is possible if files are
        positional arguments."""
        text = "".join(one if isinstance(one, str) else one.by_option() for one in self.parts)
        self.args = (visible(text),)


class FolderError(UserError):
    """Error for a run folder that is missing, damaged, or unsuitable."""


class Stopped(Exception):
    """Raised when the user stops the program. Repeating the command or call resumes the work."""

    def __init__(self, text: str = "", *, saved: bool = True) -> None:
        super().__init__(text)
        self.saved = saved
        """Whether all work so far was saved, so that it can be resumed."""


@contextmanager
def columns_by_option(positional: object, said: Container[str] = ()) -> Iterator[None]:
    """Context manager in which the error for a missing column explains how to name it with an
    option.

    This requires that the data is a positional argument (`positional`), and that `said` contains no
    setting for the column.
    """
    try:
        yield
    except MissingColumnError as error:
        names = (one.setting for one in error.parts if isinstance(one, ColumnName))
        if positional and not any(name in said for name in names):
            error.name_options()
        raise


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out. Torch has an exception class for GPU memory. On
    the CPU only the message of its allocator is specific."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in NO_ROOM)


NO_ROOM = ("can't allocate memory", "Cannot allocate memory", "std::bad_alloc")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the closest known name, or all names if none is close, as the end of an error
    message."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(names)}."


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(label: str, where: str) -> str:
    """Return the label unchanged. Raise a DataError if it could break lines or columns of
    output."""
    if _CONTROL.search(label):
        raise DataError(
            f"{where}: the label {label[:60]!r} contains a control character, such as a line break "
            "or a tab, or bytes that are not UTF-8. Remove them: a label must fit on one line of "
            "output."
        )
    return label


def needs(module: str, extra: str) -> ModuleType:
    """Import and return an optional dependency. If that fails, raise an error with the command that
    installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{module} cannot be imported ({error}). Install it: `pip install 'headway[{extra}]'`"
        ) from error
