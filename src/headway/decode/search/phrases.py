"""Banned words as tokens. A word can be written with tokens in many ways; bans find them all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headway.decode.search.hypothesis import Phrase
from headway.tokens.tokenizer import Tokenizer


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
