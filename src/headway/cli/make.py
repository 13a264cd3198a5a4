"""`headway make`: a removed command, whose error names the program to run instead."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.errors import ConfigError, suggest

KINDS = ("shapes", "moving", "digits")


def make(
    kind: Annotated[str, typer.Argument()] = "shapes",
    words: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """Removed. Run examples/make_shapes.py and the other examples/make_*.py to generate data with
    known truth."""
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of data {kind!r}.{suggest(kind, KINDS)}")
    raise ConfigError(
        "`headway make` was removed. Instead, run this script with the same options: "
        f"`python examples/make_{kind}.py --out {kind}`. The script is in the examples/ folder "
        "of the repository. See docs/tasks/media.md."
    )
