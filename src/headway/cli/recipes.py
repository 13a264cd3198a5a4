"""`headway recipes`: list tested settings, most of which reproduce a published result."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.cli import completion
from headway.settings.recipes import about, recipe_names, recipe_path


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Print the settings of this recipe.", autocompletion=completion.recipes
        ),
    ] = None,
) -> None:
    """List the recipes (tested settings), or print one."""
    if name is not None:
        print(recipe_path(name).read_text(encoding="utf-8"), end="")
        return
    width = max(map(len, recipe_names()))
    for each in recipe_names():
        print(f"{each:{width}}  {about(recipe_path(each))}")
