"""The runtimes that can stand in for torch, in a table you can see."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import FolderError, UserError, suggest
from headway.settings.folder import SHIPPED, WEIGHTS
from headway.settings.run import RunSettings, media_front

if TYPE_CHECKING:
    from headway.decode.engine import Engine

ENGINES = {
    "torch": "",
    "ctranslate2": "headway.interop.ctranslate2.engine:ctranslate2_engine",
    "onnx": "headway.interop.onnx.engine:onnx_engine",
}
"""What `--engine` can say: a module and a function in it, called like `Make`. They stand above the
tasks, as all foreign formats do, and are imported when they are asked for."""

Make = Callable[[Path, RunSettings], "Engine"]
"""From an exported folder and its settings as the command changed them."""

TEXT_ALONE = ("ctranslate2",)
"""Those that run no models of pictures or recordings."""

MARKS = {"ctranslate2": "model.bin", "onnx": "*.onnx"}
"""The files by which an exported folder is recognised."""


def check_engine(name: str) -> None:
    if name not in ENGINES:
        raise UserError(f"--engine has no choice {name!r}.{suggest(str(name), ENGINES)}")


def engine_of(name: str, folder: Path, settings: RunSettings) -> Engine | None:
    """The engine of this name for the folder; None is torch itself."""
    check_engine(name)
    if name == "torch":
        _check_for_torch(folder)
        return None
    if not _holds(folder, name):
        if name in TEXT_ALONE and media_front(settings) is not None:
            raise FolderError(
                f"--engine {name} runs models that read text, and {folder} is of the task "
                f"{settings.task}. Use --engine onnx with an export (headway export RUN --to onnx "
                "--out DIR), or --engine torch with the run."
            )
        shown = folder.name if folder.parent == SHIPPED else str(folder)
        other = next((known for known in MARKS if _holds(folder, known)), None)
        if other is not None and not (folder / WEIGHTS).exists():
            raise FolderError(
                f"{folder} was exported for --engine {other}, not {name}. Use --engine {other}, or "
                f"export the run that it was made of: headway export RUN --to {name} --out DIR"
            )
        raise FolderError(
            f"{folder} holds no model for --engine {name}. Make one: "
            f"headway export {shown} --to {name} --out DIR"
        )
    module, function = ENGINES[name].split(":")
    make: Make = getattr(importlib.import_module(module), function)
    return make(folder, settings)


def _holds(folder: Path, name: str) -> bool:
    return any(folder.glob(MARKS[name]))


def _check_for_torch(folder: Path) -> None:
    """An exported folder has no weights of ours; say what it has instead."""
    fitting = [name for name in MARKS if _holds(folder, name)]
    if fitting and not (folder / WEIGHTS).exists():
        raise FolderError(
            f"{folder} is an exported model without {WEIGHTS}. Use --engine {fitting[0]}."
        )
