"""What the JSON of a tokenizer may ask for. Someone else wrote it, and the library does as it says.

Three things would take all time or memory: a pattern that backtracks without end, replacements that
make a text longer again and again, and a token with a number that no model has a row for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headway.errors import DataError

MOST_TOKENS = 1 << 24
"""Sixty times as many as the largest vocabularies that are in use."""

MOST_GROWTH = 10.0
"""How many times as long a text may become before it is cut, beside what Unicode's own forms do."""

MOST_PARTS = 64
"""Normalisers, cutters or decoders one after another."""

LONGEST = 1000
"""Characters of a pattern's replacement, or of what is put before a text."""

FORMS = {
    "NFC": 3.0, "NFD": 4.0, "NFKC": 18.0, "NFKD": 18.0, "Precompiled": 18.0, "Lowercase": 2.0,
    "BertNormalizer": 12.0, "ByteLevel": 4.0,
}  # fmt: skip
"""What they do to the worst text. Once that is as it should be; a second one grows on the first."""

_MAY_BE_EMPTY = re.compile(r"[*?^$|]|\(\?|\{0|\\[bBAzZGK]")
_REPEAT = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(r"\\(?:[pPx]\{[^}]*\}|[kg](?:<[^>]*>|'[^']*')|.)", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:#|[imsx-]*:|[=!>]|<[=!]|<\w+>)?)?")


def check_tokenizer(facts: Any, where: str) -> None:
    """Refuse what would never end, or has no place; all else is left to the library."""
    if not isinstance(facts, dict):
        return
    _check_numbers(facts, where)
    for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        _check_growth(facts.get(name), f"{where}, {name}")
        for part in _parts(facts.get(name)):
            pattern = part.get("pattern")
            regex = pattern.get("Regex") if isinstance(pattern, dict) else None
            if isinstance(regex, str) and runs_away(regex):
                raise DataError(
                    f"{where}: the pattern {regex[:60]!r} repeats a group that itself repeats or "
                    "has alternatives: on some texts it would not end. Write it without."
                )


def check_number(number: int, token: Any, where: str) -> None:
    if not 0 <= number < MOST_TOKENS:
        raise DataError(
            f"{where}: the token {str(token)[:40]!r} has the number {number}; they go from 0 to "
            f"{MOST_TOKENS - 1:,}."
        )


def _check_numbers(facts: Mapping[str, Any], where: str) -> None:
    model, added = facts.get("model"), facts.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    for token, number in vocab.items() if isinstance(vocab, dict) else ():
        if type(number) is int:
            check_number(number, token, where)
    for one in added if isinstance(added, list) else ():
        if isinstance(one, dict) and type(one.get("id")) is int:
            check_number(one["id"], one.get("content"), where)


def _check_growth(tree: Any, where: str) -> None:
    parts = list(_parts(tree))
    if len(parts) > MOST_PARTS:
        n = f"{len(parts):,}"
        raise DataError(f"{where}: {n} parts one after another; up to {MOST_PARTS} are read.")
    growth, seen = 1.0, set[str]()
    for part in parts:
        kind, content = str(part.get("type")), part.get("content") or part.get("prepend") or ""
        if isinstance(content, str) and len(content) > LONGEST:
            raise DataError(f"{where}: {content[:20]!r}… is longer than {LONGEST:,} characters.")
        if kind == "Replace":
            growth *= _growth(part.get("pattern"), str(content))
        elif kind in seen:
            growth *= FORMS.get(kind, 1.0)
        seen.add(kind)
    if growth > MOST_GROWTH:
        raise DataError(
            f"{where}: its replacements can make a text {growth:,.0f} times as long; up to "
            f"{MOST_GROWTH:g} times are read."
        )


def _growth(pattern: Any, content: str) -> float:
    """By how much one replacement can lengthen a text."""
    found = pattern if isinstance(pattern, dict) else {}
    literal, regex = found.get("String"), str(found.get("Regex", ""))
    if isinstance(literal, str) and literal:
        return max(1.0, len(content) / len(literal))
    if literal == "" or not regex or _MAY_BE_EMPTY.search(regex):  # between all characters
        return 1.0 + len(content)
    return max(1.0, float(len(content)))


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    """All parts of nested sequences, in their order."""
    if isinstance(tree, dict):
        if tree.get("type") != "Sequence":
            yield tree
        for value in tree.values():
            for part in value if isinstance(value, list) else ():
                yield from _parts(part)


def runs_away(regex: str) -> bool:
    """Whether a group is repeated that itself repeats or has alternatives, or is called by name.

    Only such patterns need exponential time; some of them do not, and are refused with the others.
    Real tokenizers have none: their alternatives stand side by side, and what repeats is one class.
    """
    place, groups, closed = 0, [False], False
    # For each open group whether it repeats or has alternatives; and the one that was just closed.
    while place < len(regex):
        sign = regex[place]
        repeat = _REPEAT.match(regex, place)
        if sign == "\\":
            escape = _ESCAPE.match(regex, place)
            if escape and len(escape[0]) > 2 and escape[0][1] == "g":
                return True  # a group is called: it may call itself
            place = escape.end() if escape else len(regex)
            groups[-1] |= regex[place - 1].isdigit() or (escape is not None and escape[0][1] == "k")
        elif sign == "[":
            place = _behind_class(regex, place)
        elif sign == "(":
            opening = _GROUP.match(regex, place)
            place = opening.end() if opening else place + 1
            groups.append(False)
            closed = False
            continue
        elif sign == ")":
            closed = groups.pop() if len(groups) > 1 else False
            groups[-1] |= closed
            place += 1
            continue
        elif repeat:
            least, comma, most = repeat[1] or "", repeat[2], repeat[3] or ""
            once = sign == "?" or (sign == "{" and (most if comma else least) in ("0", "1"))
            if closed and not once:
                return True
            groups[-1] |= sign != "{" or bool(comma)
            place = repeat.end()
            if place < len(regex) and regex[place] in "?+":
                place += 1  # lazy, or never given back
            continue
        else:
            groups[-1] |= sign == "|"
            place += 1
        closed = False
    return False


def _behind_class(regex: str, place: int) -> int:
    """Where a class in brackets ends; there may be classes in it."""
    depth = 0
    while place < len(regex):
        if regex[place] == "\\":
            place += 1
        elif regex[place] == "[":
            depth += 1
        elif regex[place] == "]":
            depth -= 1
            if not depth:
                return place + 1
        place += 1
    return place
