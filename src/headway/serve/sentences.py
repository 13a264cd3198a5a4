"""The sentences of a text or of a page, translated one by one and put back where they stood.

Translators learn from single sentences: of a paragraph they write the first ones, and of line
breaks nothing. So they are asked about a sentence at a time, and all between stays as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.decode.sources import SENTENCE_END

Form = Literal["text", "html"]

LINE_END = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
MARKUP = re.compile(
    r"""<!--.*?(?:-->|\Z)                                  # a comment
    | <(script|style)\b.*?(?=</\1\b|\Z)                   # what is nobody's language
    | <[a-z/!?](?:=\s*"[^"]*" | =\s*'[^']*' | [^>])*+(?:>|\Z)  # a tag, with values of attributes
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""Of a page. What is not closed goes on to the end, so that no text is read twice: html.parser
reads 20,000 characters of unclosed tags for seconds, and all others wait for it."""

BEGINS_WITH = re.compile(r"[\s.,;:!?…)\]]*")
"""What stands behind a tag and belongs to the sentence before it."""


@dataclass(frozen=True)
class Sentence:
    start: int
    end: int
    """Where it stands in what was sent."""

    text: str
    """What the model reads of it."""


def sentences(given: str, form: Form = "text") -> list[Sentence]:
    """In order. What has neither letter nor digit is none: nothing of it could be translated."""
    found = []
    for first, last in [(0, len(given))] if form == "text" else _between_tags(given):
        for start, end in _cut(given, first, last, form):
            said = given[start:end]
            text = said if form == "text" else " ".join(html.unescape(said).split())
            if any(map(str.isalnum, text)):
                found.append(Sentence(start, end, text))
    return found


def put_back(given: str, found: Sequence[Sentence], made: Sequence[str], form: Form) -> str:
    """`given` with each of its sentences in other words."""
    parts: list[str] = []
    at = 0
    for sentence, text in zip(found, made, strict=True):
        between = given[at : sentence.start]
        # East Asian sentences stand together without a space; what they become may not.
        glued = not between and parts and not parts[-1].endswith(("。", "！", "？"))
        parts.append(" " if glued else between)
        parts.append(text if form == "text" else html.escape(text, quote=False))
        at = sentence.end
    return "".join([*parts, given[at:]])


def _cut(text: str, first: int, last: int, form: Form) -> Iterator[tuple[int, int]]:
    """The sentences of a part of the text, without the white space around them. In a page a line
    break is a space like any other."""
    if form == "text":
        lines = [*_apart(LINE_END, text, first, last)]
    else:
        begun = BEGINS_WITH.match(text, first, last)
        lines = [(begun.end() if begun else first, last)]
    for line in lines:
        for start, end in _apart(SENTENCE_END, text, *line):
            said = text[start:end]
            start += len(said) - len(said.lstrip())
            yield start, start + len(said.strip())


def _apart(way: re.Pattern[str], text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    at = first
    for match in way.finditer(text[first:last]):
        yield at, first + match.start()
        at = first + match.end()
    yield at, last


def _between_tags(given: str) -> Iterator[tuple[int, int]]:
    """Where a page has text: neither tags nor comments, nor scripts and styles."""
    return _apart(MARKUP, given, 0, len(given))
