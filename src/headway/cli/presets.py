"""`headway presets`: named model sizes with exact parameter counts.

Models are built on the meta device, which allocates no memory for weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import completion
from headway.cli.data_arguments import JsonOption
from headway.cli.print_table import show_table
from headway.errors import ConfigError, suggest
from headway.settings.effects import ignored_by
from headway.settings.model import FAMILY_SETTINGS, ModelSettings, family_of

if TYPE_CHECKING:
    from headway.settings.presets import Preset


def presets(
    family: Annotated[
        str | None,
        typer.Option(
            help=f"Only this family: {', '.join(FAMILY_SETTINGS)}.",
            autocompletion=completion.families,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List named model sizes (presets) and their parameter counts."""
    if family is not None and family not in FAMILY_SETTINGS:
        raise ConfigError(
            f"--family {family!r} is not a model family.{suggest(family, FAMILY_SETTINGS)}"
        )
    from headway.settings.presets import PRESETS

    rows = [
        _row(name, preset)
        for name, preset in PRESETS.items()
        if family in (None, family_of(preset.settings))
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    numbers = {"layers", "width", "heads", "d_ff", "vocabulary", "parameters", "published"}
    show_table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows], numbers)


def _row(name: str, preset: Preset) -> dict[str, int | str]:
    from headway.models.summary import count_parameters, meta_model

    settings = preset.settings
    return {
        "name": name,
        "family": family_of(settings),
        "layers": _joined([stack.n_layers for stack in settings.stacks.values()]),
        "width": settings.d_model,
        "heads": _read(settings, "n_heads"),
        "d_ff": _read(settings, "d_ff"),
        "vocabulary": getattr(settings, "vocab_size", ""),
        "parameters": count_parameters(meta_model(settings)),
        "published": preset.published,
        "source": preset.source,
    }


def _read(settings: ModelSettings, name: str) -> int | str:
    """Return a size of each stack, joined by `+` if they differ. Empty if the model type does not
    use it."""
    return "" if name in ignored_by({"body": settings.body}) else _joined(settings.each(name))


def _joined(numbers: Sequence[int]) -> int | str:
    return numbers[0] if len(numbers) == 1 else "+".join(map(str, numbers))


def _cell(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
