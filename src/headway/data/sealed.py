"""A folder of files with a manifest of their checksums, written last: complete, or not there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.config.durable import check_identity, identity
from headway.errors import DataError, FolderError

MANIFEST = "manifest.json"
VERSION = 1
"""Counts up when the files change their form, so that older ones are made again."""


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write the manifest. `fingerprint` in it is a checksum of everything."""
    files = {
        path.name: identity(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST
    }
    values = json.loads(json.dumps({"version": VERSION, **facts, "files": files}))
    text = _text(values)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_sealed(
    folder: Path, note: Callable[[str], None] = lambda text: None
) -> dict[str, Any] | None:
    """The manifest, if it and all files are, to the byte, as they were written; else None, and the
    folder is to be made again. `note` hears what is wrong with one that is there."""
    try:
        return _verified(folder)
    except FolderError as error:
        if folder.is_dir():
            note(f"{error} The data is prepared again.")
        return None


def load_sealed(folder: Path) -> dict[str, Any]:
    """The same for who cannot make it again."""
    try:
        return _verified(folder)
    except FolderError as error:
        raise DataError(
            f"there is no prepared data in {folder}, or it is damaged: {error} Give the command "
            "of the training again, which prepares it."
        ) from error


def _verified(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
        values = dict(json.loads(text))
        values.pop("fingerprint")
        if _text(values) != text:
            raise ValueError
        if values["version"] != VERSION:
            raise FolderError(f"{folder} was made by another version.")
        for name, promised in values["files"].items():
            check_identity(folder / name, promised)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: it is not what was written.") from error
    return values | {"fingerprint": _fingerprint(values)}


def _text(values: dict[str, Any]) -> str:
    return json.dumps({**values, "fingerprint": _fingerprint(values)}, indent=1)


def _fingerprint(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
