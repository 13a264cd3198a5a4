"""Names of attention heads as users see them: `cross 2.4` is head 4 of layer 2, counted from 1.

Files and Python count from 0 (`cross.1.3`). Only this module converts between the two forms.
"""

from __future__ import annotations

from headway.errors import UserError


def head_given(word: str, option: str) -> tuple[str, int, int]:
    """Return the kind, layer and head in a name such as `cross.2.4` (or `cross 2.4`, as printed).
    The layer and head are returned as indices from 0."""
    kind, *numbers = word.strip().replace(" ", ".").split(".")
    if len(numbers) != 2:
        raise UserError(
            f"{option} {word.strip()!r} does not name a head. Write kind.layer.head with numbers "
            "from 1, for example cross.2.4."
        )
    layer, head = (number_given(number, word) - 1 for number in numbers)
    return kind, layer, head


def number_given(word: str, whole: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise UserError(f"{word!r} in {whole.strip()!r} must be a whole number of at least 1.")
    return int(word)


def shown(name: str) -> str:
    """Return the name of a head as it is printed: `cross.1.3` becomes `cross 2.4`, `cross.1.mean`
    becomes `cross 2 mean`. Other names are returned unchanged."""
    kind, *rest = name.split(".")
    if not rest or not rest[0].isdecimal():
        return name
    layer, *rest = rest
    counted = [f".{int(part) + 1}" if part.isdecimal() else f" {part}" for part in rest]
    return f"{kind} {int(layer) + 1}" + "".join(counted)
