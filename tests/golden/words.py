"""What the command line says of itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import seams

COLUMNS = "100"


def help_texts(_: Path) -> dict[str, list[str]]:
    """Of every command, line by line."""
    before = os.environ.get("COLUMNS"), os.environ.get("TERMINAL_WIDTH")
    os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = COLUMNS
    try:
        top = seams.command("--help").splitlines()
        at = top.index("Commands:")
        names = [line.split()[0] for line in top[at + 1 :] if line[:3].strip() and line.strip()]
        found = {name: seams.command(name, "--help").splitlines() for name in names}
    finally:
        for name, value in zip(("COLUMNS", "TERMINAL_WIDTH"), before, strict=True):
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
    return {"headway": top, **found}


MAKERS: dict[str, Callable[[Path], Any]] = {"help": help_texts}
