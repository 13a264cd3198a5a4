"""The page's scripts and style without what only readers of the source need: comments, spaces.

A line break stays wherever it could end a statement, and texts stay as they are. `const` becomes
`let`, which is shorter and does the same in a script that works; `let a; let b` becomes `let a, b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

TOKEN = re.compile(
    r"""
    (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<space>\s+)
    |(?P<word>[\w$]+)
    |(?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)

PATTERN = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
"""A regular expression of JavaScript."""

BEFORE_PATTERN = set("(,=:[!&|?{};+>\n")
GOES_ON, CONTINUES = set("{([,;:?&|=><"), set(")].,;:?")
"""Behind and before these a line break never ends a statement."""

WORD = re.compile(r"[\w$]")

KEPT = 32
"""Scripts whose short form is kept: all pages that a process makes have the same ones."""


@lru_cache(KEPT)
def shorter(source: str) -> str:
    """JavaScript that does the same. What does not parse stays as it is: the browser says why."""
    return _shorter(source)


def _shorter(source: str) -> str:
    try:
        return "".join(_joined(_with_one_let(_without_parentheses(_with_gaps(source)))))
    except IndexError:  # a template without an end
        return source


def _with_gaps(source: str) -> list[tuple[str, str]]:
    """Every token with what stood before it: nothing, a space, or a line break."""
    found, gap = [], ""
    for kind, text in _tokens(source, 0):
        if kind in ("space", "comment"):
            gap = "\n" if "\n" in text or gap == "\n" else " "
        else:
            text = _short_template(text) if text[0] == "`" else text
            found.append((gap, "let" if text == "const" else text))
            gap = ""
    return found


def _without_parentheses(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """`(x) =>` is `x =>`."""
    texts = [text for _, text in tokens]
    gone = {
        place
        for at in range(len(texts) - 4)
        if texts[at] == "(" and texts[at + 2 : at + 5] == [")", "=", ">"]
        for place in (at, at + 2)
        if WORD.match(texts[at + 1])
    }
    for at, (gap, text) in enumerate(tokens):
        if at not in gone:
            yield (tokens[at - 1][0] or " " if at - 1 in gone else gap), text


def _with_one_let(tokens: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """`let a = 1; let b = 2;` is `let a = 1, b = 2;`, where no line break ends the first."""
    inside, held, last = [False], False, ";"  # by depth: is the statement one of `let`?
    for gap, text in tokens:
        if held and text == "let":
            held, last = False, ","
            yield "", ","
            continue
        if held:
            held, inside[-1] = False, False
            yield "", ";"
        if gap == "\n" and last not in GOES_ON and text[0] not in CONTINUES:
            inside[-1] = False
        if text == "let" and (gap == "\n" or last in ";{}"):
            inside[-1] = True
        if text in ("(", "[", "{"):
            inside.append(False)
        elif text in (")", "]", "}") and len(inside) > 1:
            inside.pop()
        if text == ";" and inside[-1]:
            held = True
        else:
            yield gap, text
        last = text[-1]
    if held:
        yield "", ";"


def _joined(tokens: Iterable[tuple[str, str]]) -> Iterator[str]:
    last, held = "", ""
    for gap, text in tokens:
        if held and text != "}":  # the semicolon or comma before a brace goes
            yield held
        if last and gap == "\n":
            if last not in GOES_ON and text[0] not in CONTINUES:
                yield "\n"
        elif last and gap and _needs_gap(last, text):
            yield " "
        held = text if text in (";", ",") else ""
        if not held:
            yield text
        last = text[-1]
    yield held


def _needs_gap(last: str, text: str) -> bool:
    return bool(WORD.match(last) and WORD.match(text)) or (last == text[0] and last in "+-")


def _tokens(source: str, at: int) -> Iterator[tuple[str, str]]:
    before = "\n"  # the last token that is not a gap: after a value a slash divides
    while at < len(source):
        found = TOKEN.match(source, at)
        assert found is not None
        kind, text = str(found.lastgroup), found[0]
        if text == "`":
            kind, text = "text", source[at : _end_of_template(source, at)]
        elif text == "/" and (before in BEFORE_PATTERN or before == "return"):
            pattern = PATTERN.match(source, at)
            kind, text = ("text", pattern[0]) if pattern else (kind, text)
        yield kind, text
        at += len(text)
        if kind not in ("space", "comment"):
            before = text if kind != "text" else "a"


def _short_template(text: str) -> str:
    """The same with what is written into it shortened."""
    parts, at = [], 0
    while (begin := text.find("${", at)) >= 0:
        if text[begin - 1] == "\\":
            return text  # rare enough to be left alone
        end = _end_of_insert(text, begin + 2)
        parts += [text[at : begin + 2], _shorter(text[begin + 2 : end - 1]), "}"]
        at = end
    return "".join([*parts, text[at:]])


def _end_of_template(source: str, at: int) -> int:
    """The place behind the template text that begins here, whatever is written into it."""
    at += 1
    while source[at] != "`":
        if source[at] == "\\":
            at += 2
        elif source.startswith("${", at):
            at = _end_of_insert(source, at + 2)
        else:
            at += 1
    return at + 1


def _end_of_insert(source: str, at: int) -> int:
    depth = 1
    for _, text in _tokens(source, at):
        at += len(text)
        depth += {"{": 1, "}": -1}.get(text, 0)
        if depth == 0:
            return at
    raise IndexError("an insert without an end")


@lru_cache(KEPT)
def shorter_style(source: str) -> str:
    """CSS without comments and without spaces that mean nothing."""
    bare = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    lines = (re.sub(r"\s*([{};,])\s*", r"\1", line.strip()) for line in bare.splitlines())
    whole = re.sub(r"(?<=[{};,])\n", "", "\n".join(line for line in lines if line))
    return whole.replace(";}", "}")
