"""Split a text or an HTML page into sentences, and put their translations back in place.

Translators are trained on single sentences. In a paragraph they would translate only the first few
sentences, and lose line breaks. Each sentence is therefore translated alone, and all text between
sentences is kept.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.decode.split_text import SENTENCE_END

TextFormat = Literal["text", "html"]

LINE_END = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
MARKUP = re.compile(
    r"""<!--.*?(?:-->|\Z)                                  # a comment
    | <(script|style)\b.*?(?=</\1\b|\Z)                   # code, not language
    | <[a-z/!?](?:=\s*"[^"]*" | =\s*'[^']*' | [^>])*+(?:>|\Z)  # a tag, with values of attributes
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""Pattern of the markup of an HTML page.

An unclosed tag extends to the end, so that no text is scanned twice. In contrast, `html.parser`
takes seconds for 20,000 characters of unclosed tags, and would block all other requests.
"""

BEGINS_WITH = re.compile(r"[\s.,;:!?…)\]]*")
"""Pattern of spaces and punctuation that follow a tag, but belong to the sentence before it."""


@dataclass(frozen=True)
class SentenceSpan:
    start: int
    end: int
    """End of the sentence in the request text. `start` and `end` are character positions."""

    text: str
    """Text of the sentence as the model reads it."""


def split_sentences(given: str, form: TextFormat = "text") -> list[SentenceSpan]:
    """Return the sentences of a text or an HTML page. Parts without a letter or digit are
    omitted."""
    found = []
    for first, last in [(0, len(given))] if form == "text" else _between_tags(given):
        for start, end in _sentence_spans(given, first, last, form):
            said = given[start:end]
            text = said if form == "text" else " ".join(html.unescape(said).split())
            if any(map(str.isalnum, text)):
                found.append(SentenceSpan(start, end, text))
    return found


def replace_sentences(
    given: str, found: Sequence[SentenceSpan], made: Sequence[str], form: TextFormat
) -> str:
    """Return the text `given` with each sentence replaced by its translation."""
    parts: list[str] = []
    at = 0
    for sentence, text in zip(found, made, strict=True):
        between = given[at : sentence.start]
        # East Asian text has no space between sentences, but its translation may need one.
        glued = not between and parts and not parts[-1].endswith(("。", "！", "？"))
        parts.append(" " if glued else between)
        parts.append(text if form == "text" else html.escape(text, quote=False))
        at = sentence.end
    return "".join([*parts, given[at:]])


def _sentence_spans(
    text: str, first: int, last: int, form: TextFormat
) -> Iterator[tuple[int, int]]:
    """Yield the positions of the sentences in a part of the text, without surrounding white space.
    In HTML, a line break counts as a space."""
    if form == "text":
        lines = [*_split_at(LINE_END, text, first, last)]
    else:
        begun = BEGINS_WITH.match(text, first, last)
        lines = [(begun.end() if begun else first, last)]
    for line in lines:
        for start, end in _split_at(SENTENCE_END, text, *line):
            said = text[start:end]
            start += len(said) - len(said.lstrip())
            yield start, start + len(said.strip())


def _split_at(way: re.Pattern[str], text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    at = first
    for match in way.finditer(text[first:last]):
        yield at, first + match.start()
        at = first + match.end()
    yield at, last


def _between_tags(given: str) -> Iterator[tuple[int, int]]:
    """Yield the parts of an HTML page that are text, not tags, comments, scripts or styles."""
    return _split_at(MARKUP, given, 0, len(given))
