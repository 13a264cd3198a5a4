"""`headway make`, which is no command any more: who gives it is told the program to run."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.errors import ConfigError, suggest

KINDS = ("shapes", "moving", "digits")


def make(
    kind: Annotated[str, typer.Argument()] = "shapes",
    words: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """Data with known truth is made by examples/make_shapes.py and the like."""
    if kind not in KINDS:
        raise ConfigError(f"cannot make {kind!r}.{suggest(kind, KINDS)}")
    raise ConfigError(
        "data is made by programs beside the library: "
        f"python examples/make_{kind}.py --out {kind}, with the options that `headway make` had. "
        "They are in the project's repository, under examples/; see docs/tasks/media.md."
    )
