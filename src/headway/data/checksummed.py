"""A folder of files with a manifest of their checksums, written last: complete, or not there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.errors import DataError, FolderError
from headway.storage import check_identity, identity

MANIFEST = "manifest.json"
VERSION = 2
"""Counts up when the files change their form; those of older ones are still read."""

Facts = dict[str, Any]
"""What a manifest says, as JSON has it."""

WORDS = ("report.json", "valid.jsonl", "problems.jsonl", "items.problems", "seen.json")
"""Files for people, that tell where things lie: they do not count for what the data is."""


def seal(folder: Path, facts: Facts) -> None:
    """Write the manifest. `fingerprint` in it is a checksum of what is stored and of what it was
    made from, `seal` one of everything."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    files = {name: identity(folder / name) for name in names}
    values = json.loads(json.dumps({"version": VERSION, **facts, "files": files}))
    counted = {name: facts for name, facts in files.items() if name not in WORDS}
    known = {**values, "files": counted}
    if "form" in values:  # pixels and samples are there as they were read, whatever the files were
        known["inputs"] = {k: v for k, v in values["inputs"].items() if k != "files"}
    values["fingerprint"] = _sum(known)
    text = json.dumps({**values, "seal": _sum(values)}, indent=1)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_sealed(folder: Path, note: Callable[[str], None] = lambda text: None) -> Facts | None:
    """The manifest, if it and all files are, to the byte, as they were written; else None, and the
    folder is to be made again. `note` hears what is wrong with one that is there."""
    try:
        return _verified(folder)
    except FolderError as error:
        if folder.is_dir():
            note(f"{error} The data is prepared again.")
        return None


def load_sealed(folder: Path) -> Facts:
    """The same for who cannot make it again."""
    try:
        return _verified(folder)
    except FolderError as error:
        raise DataError(
            f"there is no prepared data in {folder}, or it is damaged: {error} Give the command "
            "of the training again, which prepares it."
        ) from error


def _verified(folder: Path) -> Facts:
    path = folder / MANIFEST
    try:
        values = dict(json.loads(path.read_text(encoding="utf-8")))
        if not 1 <= values["version"] <= VERSION:
            raise FolderError(f"{path} was made by another version of headway.")
        mark = "fingerprint" if values["version"] == 1 else "seal"
        if values.pop(mark) != _sum(values):
            raise ValueError
        for name, promised in values["files"].items():
            check_identity(folder / name, promised)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: it is not what was written.") from error
    return {"fingerprint": _sum(values), **values}


def _sum(values: Facts) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
