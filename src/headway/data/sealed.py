"""A folder of files with a manifest of their checksums, written last: complete, or not there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
VERSION = 1
"""Counts up when the files change their form, so that older ones are made again."""


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write the manifest. `fingerprint` in it is a checksum of everything."""
    files = {
        path.name: identity(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST
    }
    values = {"version": VERSION, **facts, "files": files}
    said = json.dumps(values, sort_keys=True)
    values["fingerprint"] = hashlib.sha256(said.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(values, indent=1), encoding="utf-8")


def read_sealed(folder: Path) -> dict[str, Any] | None:
    """The manifest, if all files are as it says; else None, and the folder is to be made again."""
    try:
        values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if values["version"] != VERSION:
            return None
        intact = all(identity(folder / name) == said for name, said in values["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return values if intact else None


def identity(path: Path) -> dict[str, Any]:
    """Size and SHA-256."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}
