"""Inference engines: runtimes that can run an exported model instead of torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import FolderError, Option, UserError, suggest
from headway.settings.folder import WEIGHTS, engines_in, file_in, is_shipped
from headway.settings.run import RunSettings, media_settings

if TYPE_CHECKING:
    from headway.decode.engine import Engine

ENGINES = {
    "torch": "",
    "ctranslate2": "headway.interop.ctranslate2.engine:ctranslate2_engine",
    "onnx": "headway.interop.onnx.engine:onnx_engine",
}
"""Import path of the function (of type `Make`) that loads each engine, by value of `--engine`;
empty for torch. These modules depend on the tasks, as all code for foreign formats does, so they
are imported only on use."""

Make = Callable[[Path, RunSettings], "Engine"]
"""Type of the functions that load an engine, from an exported folder and the settings of the
command."""

TEXT_ALONE = ("ctranslate2",)
"""Names of the engines that run only text models."""


def check_engine(name: str) -> None:
    if name not in ENGINES:
        raise UserError(
            f"unknown value {name!r} for {Option('engine')}.{suggest(str(name), ENGINES)}"
        )


def engine_of(name: str, folder: Path, settings: RunSettings) -> Engine | None:
    """Return the engine with this name for an exported folder; None for torch."""
    check_engine(name)
    if name == "torch":
        if engines_in(folder):
            file_in(folder, WEIGHTS)
        return None
    held = engines_in(folder)
    if name not in held:
        if name in TEXT_ALONE and media_settings(settings) is not None:
            raise FolderError(
                f"{Option('engine', name)} runs only text models, but {folder} is for the task "
                f"{settings.task}. Use {Option('engine', 'onnx')} with an export (headway export "
                f"RUN --to onnx --out DIR), or {Option('engine', 'torch')} with the "
                "run."
            )
        shown = folder.name if is_shipped(folder) else str(folder)
        if held and not (folder / WEIGHTS).exists():
            raise FolderError(
                f"{folder} was exported for {Option('engine', held[0])}, not {name}. Use "
                f"{Option('engine', held[0])}, or export the original run again: headway export "
                f"RUN --to {name} --out DIR"
            )
        raise FolderError(
            f"{folder} contains no model for {Option('engine', name)}. Export one: headway export "
            f"{shown} --to {name} --out DIR"
        )
    module, function = ENGINES[name].split(":")
    make: Make = getattr(importlib.import_module(module), function)
    return make(folder, settings)
