"""Names, numbers, options and values in a message, whatever its wording and order."""

from __future__ import annotations

import re
from collections.abc import Iterable


def naming(*facts: object) -> str:
    """A pattern for texts that hold all of these facts, in any order.

    A string with spaces is several facts, except in backticks, for example a command.
    Facts match as whole words: `train.lr` is not found in `train.lrr`, `--text` not in
    `--text-field`, and `2` neither in `20` nor in `2.5`.
    """
    return r"(?s)\A" + "".join(f"(?=.*{_whole(fact)})" for fact in _split(facts))


def missing(text: object, *facts: object) -> list[str]:
    """The facts that the text does not hold, as whole words."""
    return [fact for fact in _split(facts) if not re.search(_whole(fact), str(text))]


def figures(text: str) -> list[str]:
    """All words of the text with a digit, in order, without the punctuation around them."""
    return [word.strip("().,;:'\"") for word in re.findall(r"\S*\d\S*", text)]


def _split(facts: Iterable[object]) -> list[str]:
    return [one.strip("`") for fact in facts for one in re.findall(r"`[^`]+`|\S+", str(fact))]


def _whole(fact: str) -> str:
    before = r"(?<![\w-])" if fact[0].isalnum() or fact[0] in "_-" else ""
    after = r"(?!-?\w)" if fact[-1].isalnum() or fact[-1] == "_" else ""
    if fact[0].isdigit():
        before += r"(?<!\d[.,])"
    if fact[-1].isdigit():
        after += r"(?![.,]\d)"
    return before + re.escape(fact) + after
