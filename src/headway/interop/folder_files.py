"""Files of a foreign folder: nothing outside of it is read, nothing of absurd size."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from headway.errors import FolderError

CONFIG_JSON = "config.json"
GENERATION_JSON = "generation_config.json"
ADAPTER_JSON = "adapter_config.json"
"""File of a PEFT adapter, which holds changes to another model."""

LARGEST_JSON = 64 << 20
"""Bytes of a JSON file: the vocabulary of the largest models has 20 MB."""


def inside(folder: Path, name: str) -> Path:
    """A file that the folder holds itself. A name that another file gives may be anything, and so
    may a link; only the links of the hub's own store lead elsewhere."""
    plain = name == Path(name).name and not set(name) & set("\\/\0") and len(name) < 256
    if not plain or name in ("", ".", ".."):
        raise FolderError(
            f"{folder} names the file {name[:200]!r}, which is not the plain name of a file in it."
        )
    path = folder / name
    home = folder.resolve()
    homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    if not any(path.resolve().is_relative_to(one) for one in homes):
        raise FolderError(f"{path} is a link that leads out of the folder. Copy the file there.")
    return path


def read_json(path: Path, limit: int = LARGEST_JSON) -> Any:
    """The value of a JSON file."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise FolderError(f"{path} has {size:,} bytes, too many to be what its name says.")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}.") from error
    except RecursionError as error:
        raise FolderError(f"{path} nests lists or tables too deeply.") from error
    except ValueError as error:  # also no UTF-8, and numbers with too many digits
        raise FolderError(f"{path} is not JSON: {error}.") from error


def read_table(path: Path) -> dict[str, Any]:
    """A JSON file that holds names and values."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise FolderError(f"{path} must be a table of names and values.")
    return value


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
