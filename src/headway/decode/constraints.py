"""Constraints on outputs (a prefix, required and banned phrases), from text to tokens.

A word can be written with tokens in several ways; bans cover all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headway.decode.search.hypothesis import NO_CONSTRAINTS, Phrase, TokenConstraints
from headway.errors import UserError
from headway.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TextConstraints:
    """The constraints on the output of one source, as text."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()

    def tokenize(self, target: Tokenizer) -> TokenConstraints:
        if self == NO_TEXT_CONSTRAINTS:
            return NO_CONSTRAINTS
        phrases = [tuple(target.encode(phrase)) for phrase in self.required]
        return TokenConstraints(
            prefix=tuple(target.encode(self.prefix)) if self.prefix else (),
            required=tuple(phrase for phrase in phrases if phrase),
            banned=banned_phrases(self.banned, target),
        )


NO_TEXT_CONSTRAINTS = TextConstraints()


def next_constraints(
    wishes: Iterator[TextConstraints] | None, n_lines: int, first: int
) -> list[TextConstraints]:
    if wishes is None:
        return [NO_TEXT_CONSTRAINTS] * n_lines
    found = list(islice(wishes, n_lines))
    if len(found) < n_lines:
        raise UserError(
            f"prefixes or constraints are given for only {first + len(found):,} lines, but the "
            "input has more. Give one per input line, and an empty one for lines without a "
            "constraint."
        )
    return found


def banned_phrases(phrases: Sequence[str], target: Tokenizer) -> tuple[Phrase, ...]:
    """The usual tokenization of each phrase. `violated_bans` finds others when they occur."""
    found = [tuple(target.encode(phrase)) for phrase in phrases]
    return tuple(dict.fromkeys(tokens for tokens in found if tokens))


def violated_bans(
    tokens: Sequence[int], phrases: Sequence[str], target: Tokenizer
) -> tuple[Phrase, ...]:
    """The token sequences in this output that write a banned phrase."""
    return tuple(
        _span(tokens, way, target)
        for way in (_as_words(target.normalise(phrase)) for phrase in phrases if phrase.strip())
        if way.search(target.decode(tokens))
    )


def _as_words(phrase: str) -> re.Pattern[str]:
    """A pattern that matches the phrase as whole words: "cat" does not match "category"."""
    words = r"\s+".join(re.escape(word) for word in phrase.split())
    return re.compile(rf"(?<!\w){words}(?!\w)")


def _span(tokens: Sequence[int], way: re.Pattern[str], target: Tokenizer) -> Phrase:
    """The shortest token sequence that contains the first occurrence of the phrase."""
    end = next(n for n in range(1, len(tokens) + 1) if _writes(tokens[:n], tokens, way, target))
    start = max((n for n in range(end) if way.search(target.decode(tokens[n:end]))), default=0)
    return tuple(tokens[start:end])


def _writes(
    head: Sequence[int], tokens: Sequence[int], way: re.Pattern[str], target: Tokenizer
) -> bool:
    """Whether the first tokens contain the whole phrase, and not only the start of a longer
    word."""
    found = way.search(target.decode(head))
    whole = way.search(target.decode(tokens))
    return found is not None and whole is not None and found.start() == whole.start()
