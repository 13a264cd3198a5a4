"""Safe reading of files in an untrusted folder: no paths outside of it, no files of absurd size."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from headway.errors import FolderError

CONFIG_JSON = "config.json"
GENERATION_JSON = "generation_config.json"
ADAPTER_JSON = "adapter_config.json"
"""Configuration file of a PEFT adapter, which contains only changes to another model."""

LARGEST_JSON = 64 << 20
"""Limit on the bytes of a JSON file; the largest published vocabularies have 20 MB."""


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder; raise an error if its name or a link leads outside.

    Names and links are untrusted. Only links within the hub's own cache may lead to another folder.
    """
    plain = name == Path(name).name and not set(name) & set("\\/\0") and len(name) < 256
    if not plain or name in ("", ".", ".."):
        raise FolderError(
            f"{folder}: {name[:200]!r} is not a valid file name. Use the name of a file in this "
            "folder, without a path."
        )
    path = folder / name
    home = folder.resolve()
    homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    if not any(path.resolve().is_relative_to(one) for one in homes):
        raise FolderError(
            f"{path} links to a file outside the folder. Replace the link with a copy."
        )
    return path


def read_json(path: Path, limit: int = LARGEST_JSON) -> Any:
    """Parse a JSON file of limited size."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise FolderError(f"{path} has {size:,} bytes; the limit is {limit:,} bytes.")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}.") from error
    except RecursionError as error:
        raise FolderError(f"cannot read {path}: its JSON is nested too deeply.") from error
    except ValueError as error:  # also invalid UTF-8, and numbers with too many digits
        raise FolderError(f"{path} is not valid JSON: {error}.") from error


def read_table(path: Path) -> dict[str, Any]:
    """Parse a JSON file that must contain an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise FolderError(f"{path} must contain a JSON object.")
    return value


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
