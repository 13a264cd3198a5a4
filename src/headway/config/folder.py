"""Where the files of a model folder are, and its settings. Reading them needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.config.load import load_model_settings
from headway.config.model import ModelSettings
from headway.config.run import RunSettings, load_run_settings
from headway.errors import FolderError

CONFIG = "config.toml"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
IMPORTED = "import.json"
"""Where the weights came from, if they are not our own."""

IMPORT_IT = " If it is a model of Hugging Face, make a run of it: headway import {folder} --out RUN"

SHIPPED = Path(__file__).parent.parent / "shipped"
"""Models that come with the package; they answer to their name."""


def shipped_names() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def run_folder(name: str) -> Path:
    """A folder as it is given, or the shipped model of that name. A folder comes first."""
    path = Path(name)
    if not path.is_dir() and name in shipped_names():
        return SHIPPED / name
    if not path.exists() and not path.parent.name:
        names = ", ".join(shipped_names())
        raise FolderError(
            f"there is no run folder {name}, and no model of that name comes with headway"
            + (f" ({names} do)." if names else ".")
        )
    return path


def load_run(folder: Path) -> RunSettings:
    """All settings of a finished run."""
    path = file_in(folder, CONFIG)
    settings = load_run_settings(path, [])
    if settings.model is None:
        raise FolderError(f"{path} names no model.")
    return settings


def load_settings(folder: Path, overrides: Sequence[str] = ()) -> ModelSettings:
    return load_model_settings(file_in(folder, CONFIG), list(overrides))


def file_in(folder: Path, name: str) -> Path:
    """A file of the folder, or an error that lists what is there."""
    if (folder / name).is_file():
        return folder / name
    if folder.is_dir():
        raise FolderError(
            f"there is no {name} in {folder}, which holds: {_listing(folder)}."
            + (IMPORT_IT.format(folder=folder) if name == CONFIG and _is_theirs(folder) else "")
        )
    near = folder.absolute().parent
    while not near.is_dir():
        near = near.parent
    raise FolderError(f"there is no folder {folder}. {near} holds: {_listing(near)}.")


def _is_theirs(folder: Path) -> bool:
    """Whether it looks like a folder of Hugging Face or sentence-transformers."""
    return any((folder / name).is_file() for name in ("config.json", "modules.json"))


def _listing(folder: Path, limit: int = 10) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
