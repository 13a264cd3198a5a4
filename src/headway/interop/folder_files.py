"""Read files in an untrusted folder safely. Paths outside the folder and oversized files raise an
error."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from headway.errors import FolderError

CONFIG_JSON = "config.json"
GENERATION_JSON = "generation_config.json"
ADAPTER_JSON = "adapter_config.json"
"""Configuration file of a PEFT adapter. Adapters contain only changes to another model, so they
cannot be imported alone."""

LARGEST_JSON = 64 << 20
"""Maximum size in bytes of a JSON file. The largest published vocabularies have 20 MB."""


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder. Raise an error if its name or a symbolic link leads
    outside.

    Names and links are untrusted. Only links within the local cache of the Hugging Face hub may
    lead to another folder.
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
    """Return the parsed contents of a JSON file. Raise an error if the file is oversized or
    invalid."""
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
    """Return the contents of a JSON file as a dict. Raise an error if it does not contain an
    object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise FolderError(f"{path} must contain a JSON object.")
    return value


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
