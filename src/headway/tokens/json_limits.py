"""Limits on tokenizer JSON from untrusted sources, which the library `tokenizers` executes
unchecked.

Three things could use up all time or memory: a pattern with catastrophic backtracking, replacements
that lengthen a text repeatedly, and a token id far beyond the vocabulary of any model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headway.errors import DataError

MOST_TOKENS = 1 << 24
"""Upper limit on token ids, about sixty times the largest vocabularies in use."""

MOST_GROWTH = 10.0
"""Maximum factor by which all replacements together may lengthen a text. The first use of each
normalizer in `FORMS` is not counted."""

MOST_PARTS = 64
"""Maximum number of normalizers, pre-tokenizers or decoders in a sequence. Published tokenizers
have far fewer."""

LONGEST = 1000
"""Maximum number of characters of a replacement or a prefix, far more than is useful."""

FORMS = {
    "NFC": 3.0, "NFD": 4.0, "NFKC": 18.0, "NFKD": 18.0, "Precompiled": 18.0, "Lowercase": 2.0,
    "BertNormalizer": 12.0, "ByteLevel": 4.0,
}  # fmt: skip
"""Factor by which each of these normalizers lengthens a text in the worst case. Using each once is
normal; further uses multiply the growth."""

_MAY_BE_EMPTY = re.compile(r"[*?^$|]|\(\?|\{0|\\[bBAzZGK]")
_REPEAT = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(r"\\(?:[pPx]\{[^}]*\}|[kg](?:<[^>]*>|'[^']*')|.)", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:#|[imsx-]*:|[=!>]|<[=!]|<\w+>)?)?")


def check_tokenizer(facts: Any, where: str) -> None:
    """Raise an error for JSON that could run forever or has impossible ids. The library checks the
    rest."""
    if not isinstance(facts, dict):
        return
    _check_numbers(facts, where)
    for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        _check_growth(facts.get(name), f"{where}, {name}")
        for part in _parts(facts.get(name)):
            pattern = part.get("pattern")
            regex = pattern.get("Regex") if isinstance(pattern, dict) else None
            if isinstance(regex, str) and may_backtrack_forever(regex):
                raise DataError(
                    f"{where}: the pattern {regex[:60]!r} repeats a group that contains "
                    "repetitions or alternatives, or calls a group. It could run forever on some "
                    "texts. Rewrite the pattern."
                )


def check_number(number: int, token: Any, where: str) -> None:
    if not 0 <= number < MOST_TOKENS:
        raise DataError(
            f"{where}: the token {str(token)[:40]!r} has id {number}; ids must be from 0 to "
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
        raise DataError(f"{where} has {n} processing parts; the limit is {MOST_PARTS}.")
    growth, seen = 1.0, set[str]()
    for part in parts:
        kind, content = str(part.get("type")), part.get("content") or part.get("prepend") or ""
        if isinstance(content, str) and len(content) > LONGEST:
            raise DataError(
                f"{where}: the text {content[:20]!r}… has more than {LONGEST:,} characters."
            )
        if kind == "Replace":
            growth *= _growth(part.get("pattern"), str(content))
        elif kind in seen:
            growth *= FORMS.get(kind, 1.0)
        seen.add(kind)
    if growth > MOST_GROWTH:
        raise DataError(
            f"{where}: the replacements can make a text {growth:,.0f} times as long; the limit "
            f"is {MOST_GROWTH:g} times."
        )


def _growth(pattern: Any, content: str) -> float:
    """Return the maximum factor by which one replacement can lengthen a text."""
    found = pattern if isinstance(pattern, dict) else {}
    literal, regex = found.get("String"), str(found.get("Regex", ""))
    if isinstance(literal, str) and literal:
        return max(1.0, len(content) / len(literal))
    if literal == "" or not regex or _MAY_BE_EMPTY.search(regex):  # between all characters
        return 1.0 + len(content)
    return max(1.0, float(len(content)))


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all components of nested sequences, in order."""
    if isinstance(tree, dict):
        if tree.get("type") != "Sequence":
            yield tree
        for value in tree.values():
            for part in value if isinstance(value, list) else ():
                yield from _parts(part)


def may_backtrack_forever(regex: str) -> bool:
    """Whether matching a pattern can take exponential time.

    That is only possible if a repeated group contains repetitions or alternatives, or if a group is
    called. Some harmless patterns of this kind are rejected, too. Published tokenizers have none:
    they repeat only single character classes, within alternatives at the top level.
    """
    place, groups, closed = 0, [False], False
    # `groups`: for each open group, whether it contains repetitions or alternatives. `closed`:
    # whether the group that was closed last contains them.
    while place < len(regex):
        sign = regex[place]
        repeat = _REPEAT.match(regex, place)
        if sign == "\\":
            escape = _ESCAPE.match(regex, place)
            if escape and len(escape[0]) > 2 and escape[0][1] == "g":
                return True  # a group that is called may call itself
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
                place += 1  # lazy or possessive
            continue
        else:
            groups[-1] |= sign == "|"
            place += 1
        closed = False
    return False


def _behind_class(regex: str, place: int) -> int:
    """Return the position after a character class in brackets, which may contain nested classes."""
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
