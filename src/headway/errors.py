"""Errors that a user can cause. Commands print them without a traceback and exit with code 2."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from types import ModuleType

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys rather than shows: C0 and C1 controls other than tab and line
feed, line separators, and marks that change the direction of the text."""


def visible(text: str) -> str:
    """The text with control characters written as `\\u001b`, which are also valid in JSON.

    Text from data, file names and models goes through here before it reaches a terminal, where an
    escape sequence could clear the screen, rename the window or hide what follows.
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Edge(Enum):
    """Way in which the user calls headway."""

    PYTHON = auto()
    COMMAND_LINE = auto()


_edge = Edge.PYTHON


@contextmanager
def command_line() -> Iterator[None]:
    """Context of a command: options in messages are named as they are typed. Applies to the whole
    process, because the threads of a command work for the same user."""
    global _edge
    before, _edge = _edge, Edge.COMMAND_LINE
    try:
        yield
    finally:
        _edge = before


def edge() -> Edge:
    return _edge


OPTION_NAMES = {"start": "from", "among": "labels"}
"""Command-line options that are named otherwise than the argument in Python."""


@dataclass(frozen=True)
class Option:
    """An option of a command, which is an argument of a function in Python.

    As text, it is named as the user would give it: `--n-best 3` or `n_best=3`."""

    name: str
    """Name of the argument in Python."""

    value: object = None
    """A value, True for an option without one, a placeholder in upper case (`FILE`), or None."""

    def __str__(self) -> str:
        value = self.value
        is_placeholder = isinstance(value, str) and value.isupper()
        if _edge is Edge.COMMAND_LINE:
            word = f"--{OPTION_NAMES.get(self.name, self.name).replace('_', '-')}"
            if value in (None, True):
                return word
            plain = is_placeholder or not isinstance(value, str) or _PLAIN.fullmatch(value)
            return f"{word} {value if plain else repr(value)}"
        if value is None:
            return f"{self.name}="
        if is_placeholder:
            return f"{self.name}=…"
        return f'{self.name}="{value}"' if isinstance(value, str) else f"{self.name}={value!r}"


_PLAIN = re.compile(r"[\w./:,+-]+")
"""Values that need no quotes."""


class UserError(Exception):
    """An error that the user can fix; the message states what is wrong, where, and the fix."""

    def __init__(self, text: str = "", *more: object, python: str = "") -> None:
        """`python`: the message for a caller in Python, if the fix differs by more than arguments
        in the place of options."""
        super().__init__(visible(text), *more)
        self.python = visible(python)


class ConfigError(UserError):
    """A setting that is unknown, has the wrong type, or conflicts with another."""


class DataError(UserError):
    """Data that cannot be read, or cannot be used for training."""


class MissingColumnError(ConfigError, DataError):
    """A column is missing: the file may be the wrong one, or settings must name the column."""

    def __init__(self, text: str, file: str = "", options: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.file = file
        self.options = dict(options or {})
        """Options that name the same columns, by the settings that the message mentions."""

    def by_option(self, said: Container[str] = ()) -> str:
        """The message with options in the place of settings, for a file that was given without an
        option. Unchanged if `said` has one of the settings."""
        text = str(self)
        if any(setting in said for setting in self.options):
            return text
        for setting, option in self.options.items():
            text = text.replace(f"{setting}=…", f"{option} NAME").replace(
                f"{setting}=", f"{option} "
            )
        return text


class FolderError(UserError):
    """A run folder that is missing, damaged, or does not fit."""


class Stopped(Exception):
    """The user stopped the program; running it again resumes the work."""

    def __init__(self, text: str = "", *, saved: bool = True) -> None:
        super().__init__(text)
        self.saved = saved
        """Whether all work so far was saved, so that it can be resumed."""


class InPython(ContextDecorator):
    """Context that rewrites the message of a `UserError` for Python: arguments, not options."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError) and error.args:
            text = error.python or in_python_syntax(str(error.args[0]))
            error.args = (text, *error.args[1:])


@contextmanager
def columns_by_argument(data: object, said: Container[str] = ()) -> Iterator[None]:
    """Context in which the error for a missing column of `data` mentions the argument that names
    it, unless `said` contains a setting for it."""
    try:
        yield
    except MissingColumnError as error:
        if data is not None:
            error.args = (error.by_option(said), *error.args[1:])
        raise


_OPTION = re.compile(
    r"headway [a-z]+ [^`\n)]*?(?=[`\n)]|\.(?:\s|$)|$)"  # a whole command stays one
    r"|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)"
    r"(?: (?P<value>(?!(?:a|an|and|another|as|does|goes|has|is|it|names|or|out|shows|takes|to|"
    r"which|with)\b)(?:'[^']*'|[\w./:-]*\w)))?"
)
_ARGUMENTS = {"from": "start", "labels": "among"}
_CALLS = {"stream": "write()", "format": "save()"}
_SWITCHES = ("restart", "int8", "alignments", "scores", "lowercase", "tokenised")


def in_python_syntax(text: str) -> str:
    """Rewrite options in a message as Python arguments: `--n-best 3` as `n_best=3`, `--from RUN`
    as `start=…`. Whole commands stay as they are."""

    def say(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name is None:
            return found[0]
        rest = f" {value}" if value else ""
        if name in _CALLS:
            return _CALLS[name] + rest
        if name in _SWITCHES:
            return f"{name}=True{rest}"
        name = _ARGUMENTS.get(name, name).replace("-", "_")
        if not value:
            return f"{name}="
        if value.isupper():  # a placeholder, such as RUN or FILE
            return f"{name}=…"
        quoted = value if value[0] == "'" or value.isdecimal() else f'"{value}"'
        return f"{name}={quoted}"

    return _OPTION.sub(say, text)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out. torch has an exception class for GPU memory; on
    the CPU only the message of its allocator tells."""
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
    """Return the label unchanged, after checking that it cannot break lines or columns of
    output."""
    if _CONTROL.search(label):
        raise DataError(
            f"{where}: the label {label[:60]!r} contains a control character, such as a line break "
            "or a tab, or bytes that are not UTF-8. Remove them: a label must fit on one line of "
            "output."
        )
    return label


def needs(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{module} cannot be imported ({error}). Install it: `pip install 'headway[{extra}]'`"
        ) from error
