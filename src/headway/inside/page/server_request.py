"""Parse requests of a served page: JSON from the browser becomes a text, a `GenerationOptions` and
an `Intervention`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from headway.errors import UserError, suggest
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import NEW_TOKENS, GenerationOptions
from headway.settings.decode import DecodeSettings

MOST_TEXT = 20_000
"""Most characters of a text; for nearly all models their own limit is lower."""

MOST_BEAM, MOST_NEW = 32, 512
"""Limits of the beam and of new tokens, so that one request does not hold the server for
minutes."""


@dataclass(frozen=True, kw_only=True)
class LookRequest:
    """A request as the page sends it. Positions, layers and heads count from 0."""

    text: str
    output: str | None = None
    """Output that the model reads instead of generating it; None: the model generates it."""

    force: str = ""
    """Text that the output must begin with."""

    hidden: tuple[tuple[str, int], ...] = ()
    """Stream and position of tokens that no other token may attend to."""

    off: tuple[str, ...] = ()
    """Heads that are switched off, such as `cross.2.5`."""

    beam: int | None = None
    length_penalty_alpha: float | None = None
    temperature: float | None = None
    """Temperature for sampling; None: search."""

    seed: int = 1
    new: int = NEW_TOKENS
    checkpoint: str | None = None
    """Label of a stage of the training; None: the final weights."""

    walk: tuple[str, int, int, int] | None = None
    """Kind, layer, head and position of the token that the walkthrough follows; None: the
    default."""

    maps: bool = False
    """Whether to make saliency maps, which run the model about a hundred times."""

    def ask(self, usual: DecodeSettings) -> GenerationOptions:
        """Convert the request to a `GenerationOptions`; `usual` are the decoding settings where it
        has none."""
        given: dict[str, Any] = {
            "beam": self.beam,
            "length_penalty_alpha": self.length_penalty_alpha,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.temperature is not None:
            given |= {"sample": True, "temperature": self.temperature, "seed": self.seed}
        if self.beam is not None:
            given |= {"n_best": 1, "groups": 1}  # a smaller beam may not allow more
        decode = replace(usual, **given)
        return GenerationOptions(
            output=self.output, prefix=self.force, decode=decode, max_new_tokens=self.new
        )

    def change(self) -> Intervention:
        return Intervention(
            hidden=frozenset(self.hidden), disabled_heads=frozenset(map(head_named, self.off))
        )


def parse(values: Mapping[str, object]) -> LookRequest:
    """Parse and check a request; raise a `UserError` with a short message if a value is wrong."""
    known = {field.name for field in fields(LookRequest)}
    for name in values:
        if name not in known:
            raise UserError(
                f"unknown key {name[:60]!r} in the request.{suggest(name, sorted(known))}"
            )
    if "text" not in values:
        raise UserError("the request has no key 'text'.")
    return LookRequest(**{name: READERS[name](name, value) for name, value in values.items()})


def head_named(name: str) -> tuple[str, int, int]:
    """Parse the name of a head: `cross.2.5` is head 5 of layer 2 of cross attention, counted from
    0."""
    kind, *numbers = name.split(".")
    if len(numbers) != 2 or not all(re.fullmatch("[0-9]{1,9}", part) for part in numbers):
        raise UserError(
            f"{name[:60]!r} is not the name of a head. Write kind.layer.head, such as cross.0.3."
        )
    return kind, int(numbers[0]), int(numbers[1])


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} must be a string, not {value!r:.40}.")
    if len(value) > MOST_TEXT:
        raise UserError(f"{name} has {len(value):,} characters, but the limit is {MOST_TEXT:,}.")
    return value


def _maybe(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else read(name, value)


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UserError(f"{name} must be an integer from {low} to {high:,}, not {value!r:.40}.")
        return value

    return read


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} must be a number, not {value!r:.40}.")
    if not abs(value) <= sys.float_info.max:  # also false for NaN
        raise UserError(f"{name} must be a finite number.")
    return float(value)


def _yes(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, not {value!r:.40}.")
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > 10_000:
        raise UserError(f"{name} must be a list of at most 10,000 entries.")
    return value


def _hidden(name: str, value: object) -> tuple[tuple[str, int], ...]:
    found = []
    for entry in _list(name, value):
        stream, place = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(stream, str) or not isinstance(place, int) or isinstance(place, bool):
            raise UserError(
                f'{name} must be a list of pairs such as ["source", 3], but has {entry!r:.40}.'
            )
        found.append((stream, place))
    return tuple(found)


def _walk(name: str, value: object) -> tuple[str, int, int, int]:
    kind, *numbers = _list(name, value) or [None]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
    if not isinstance(kind, str) or len(numbers) != 3 or len(whole) != 3:
        raise UserError(
            f'{name} must be a list of kind, layer, head and row, such as ["cross", 0, 3, 2], '
            f"not {value!r:.40}."
        )
    return kind, whole[0], whole[1], whole[2]


def _heads(name: str, value: object) -> tuple[str, ...]:
    heads = tuple(_text(name, entry) for entry in _list(name, value))
    for head in heads:
        head_named(head)
    return heads


READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "text": _text,
    "output": _maybe(_text),
    "force": _text,
    "hidden": _hidden,
    "off": _heads,
    "beam": _maybe(_whole(1, MOST_BEAM)),
    "length_penalty_alpha": _maybe(_number),
    "temperature": _maybe(_number),
    "seed": _whole(0, 2**31 - 1),
    "new": _whole(1, MOST_NEW),
    "checkpoint": _maybe(_text),
    "walk": _maybe(_walk),
    "maps": _yes,
}
"""Parser of each key of a request."""
