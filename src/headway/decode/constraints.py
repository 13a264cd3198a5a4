"""What an output must begin with, hold, or not hold: asked for as text, searched for as tokens.

A word can be written with tokens in many ways; bans find them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headway.decode.search.hypothesis import NO_WISH, Phrase, Wish
from headway.errors import UserError
from headway.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TextWish:
    """What one source asks of its output, as text."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()

    def tokens(self, target: Tokenizer) -> Wish:
        if self == NOTHING:
            return NO_WISH
        phrases = [tuple(target.encode(phrase)) for phrase in self.required]
        return Wish(
            prefix=tuple(target.encode(self.prefix)) if self.prefix else (),
            required=tuple(phrase for phrase in phrases if phrase),
            banned=banned_phrases(self.banned, target),
        )


NOTHING = TextWish()


def next_wishes(wishes: Iterator[TextWish] | None, n_lines: int, first: int) -> list[TextWish]:
    if wishes is None:
        return [NOTHING] * n_lines
    found = list(islice(wishes, n_lines))
    if len(found) < n_lines:
        raise UserError(
            f"prefixes or constraints are given for {first + len(found):,} lines, but there are "
            "more lines than that. Give one for each, empty where nothing is asked."
        )
    return found


def banned_phrases(phrases: Sequence[str], target: Tokenizer) -> tuple[Phrase, ...]:
    """The usual ways to write each phrase. `broken_bans` finds the others when they come up."""
    found = [tuple(target.encode(phrase)) for phrase in phrases]
    return tuple(dict.fromkeys(tokens for tokens in found if tokens))


def broken_bans(
    tokens: Sequence[int], phrases: Sequence[str], target: Tokenizer
) -> tuple[Phrase, ...]:
    """The tokens that write a banned phrase in this output, where it has one."""
    return tuple(
        _span(tokens, way, target)
        for way in (_as_words(target.normalise(phrase)) for phrase in phrases if phrase.strip())
        if way.search(target.decode(tokens))
    )


def _as_words(phrase: str) -> re.Pattern[str]:
    """The phrase where it stands as words of its own: "category" holds no "cat"."""
    words = r"\s+".join(re.escape(word) for word in phrase.split())
    return re.compile(rf"(?<!\w){words}(?!\w)")


def _span(tokens: Sequence[int], way: re.Pattern[str], target: Tokenizer) -> Phrase:
    """The fewest tokens around the first place where the phrase is written."""
    end = next(n for n in range(1, len(tokens) + 1) if _writes(tokens[:n], tokens, way, target))
    start = max((n for n in range(end) if way.search(target.decode(tokens[n:end]))), default=0)
    return tuple(tokens[start:end])


def _writes(
    head: Sequence[int], tokens: Sequence[int], way: re.Pattern[str], target: Tokenizer
) -> bool:
    """Whether the phrase is complete in the first tokens, and not the start of a longer word."""
    found = way.search(target.decode(head))
    whole = way.search(target.decode(tokens))
    return found is not None and whole is not None and found.start() == whole.start()
