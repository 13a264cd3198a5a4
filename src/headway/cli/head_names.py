"""Heads as people see them: `cross 2.4` is head 4 of layer 2, counted from 1.

Files and Python count from 0 (`cross.1.3`). Commands read and print heads here and nowhere else.
"""

from __future__ import annotations

from headway.errors import UserError


def head_given(word: str, option: str) -> tuple[str, int, int]:
    """`cross.2.4`, or `cross 2.4` as it is printed: kind, layer and head, from 0."""
    kind, *numbers = word.strip().replace(" ", ".").split(".")
    if len(numbers) != 2:
        raise UserError(
            f"{option} {word.strip()!r} names no head. Write kind.layer.head, counted from 1: "
            "cross.2.4."
        )
    layer, head = (number_given(number, word) - 1 for number in numbers)
    return kind, layer, head


def number_given(word: str, whole: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise UserError(f"{whole.strip()!r} counts from 1, and {word!r} is no such number.")
    return int(word)


def shown(name: str) -> str:
    """`cross.1.3` is printed as `cross 2.4`, `cross.1.mean` as `cross 2 mean`; others stay."""
    kind, *rest = name.split(".")
    if not rest or not rest[0].isdecimal():
        return name
    layer, *rest = rest
    counted = [f".{int(part) + 1}" if part.isdecimal() else f" {part}" for part in rest]
    return f"{kind} {int(layer) + 1}" + "".join(counted)
