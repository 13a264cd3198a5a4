"""Folders whose files are recorded in a manifest with checksums. The manifest is written last, so a
folder that has one is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.errors import DataError, FolderError
from headway.settings.renamed import MODALITIES, current
from headway.storage import check_identity, identity

MANIFEST = "manifest.json"
VERSION = 2
"""Version of the format of prepared data. Data of another version is prepared again."""

DataManifest = dict[str, Any]
"""Contents of a manifest, as JSON values."""

UNHASHED_FILES = ("report.json", "valid.jsonl", "problems.jsonl", "items.problems", "seen.json")
"""Files that are only for people to read. The fingerprint ignores them, because they contain paths
of input files."""


def write_manifest(folder: Path, facts: DataManifest) -> None:
    """Write the manifest of a folder. Its `fingerprint` is a checksum of the stored data and its
    inputs. Its `seal` is a checksum of the whole manifest."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    files = {name: identity(folder / name) for name in names}
    values = json.loads(json.dumps({"version": VERSION, **facts, "files": files}))
    counted = {name: facts for name, facts in files.items() if name not in UNHASHED_FILES}
    known = {**values, "files": counted}
    if "form" in values:  # pixels and samples are there as they were read, whatever the files were
        known["inputs"] = {k: v for k, v in values["inputs"].items() if k != "files"}
    values["fingerprint"] = _sum(known)
    text = json.dumps({**values, "seal": _sum(values)}, indent=1)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def verified_manifest(
    folder: Path, note: Callable[[str], None] = lambda text: None
) -> DataManifest | None:
    """Return the manifest of a folder if it and all files are unchanged, otherwise None. `note` is
    called with a message if the folder is damaged."""
    try:
        return _verified(folder)
    except FolderError as error:
        if folder.is_dir():
            note(f"{error} The data will be prepared again.")
        return None


def load_manifest(folder: Path) -> DataManifest:
    """Return the manifest of a folder. Raise a `DataError` if the folder is missing or damaged."""
    try:
        return _verified(folder)
    except FolderError as error:
        raise DataError(
            f"the prepared data in {folder} is missing or damaged: {error} To prepare it again, "
            "repeat the training command."
        ) from error


def _verified(folder: Path) -> DataManifest:
    path = folder / MANIFEST
    try:
        values = dict(json.loads(path.read_text(encoding="utf-8")))
        if values["version"] != VERSION or "columns" not in values:
            raise FolderError(f"{path} has the format of another version of headway.")
        if values.pop("seal") != _sum(values):
            raise ValueError
        for name, promised in values["files"].items():
            check_identity(folder / name, promised)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: its contents do not match its checksum.") from error
    return _with_current_names(values)


def _with_current_names(values: DataManifest) -> DataManifest:
    """Return the manifest with old names of settings and modalities replaced by the current
    names."""
    if "form" in values:
        values = {**values, "form": _current_form(values["form"])}
    inputs = dict(values.get("inputs", {}))
    if "form" in inputs:
        inputs["form"] = _current_form(inputs["form"])
    if "data" in inputs:
        inputs["data"] = {
            current(f"data.{name}").partition(".")[2]: value
            for name, value in inputs["data"].items()
        }
    return {**values, "inputs": inputs} if inputs else values


def _current_form(form: dict[str, Any]) -> dict[str, Any]:
    if "what" not in form:
        return form
    rest = {name: value for name, value in form.items() if name != "what"}
    return {"modality": MODALITIES[form["what"]], **rest}


def _sum(values: DataManifest) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
