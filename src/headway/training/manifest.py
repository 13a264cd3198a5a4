"""What a checkpoint promises to hold: its files with sizes and SHA-256, and who wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headway import __version__
from headway.errors import FolderError
from headway.storage import check_identity, identity, seal_json

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    step: int
    best: int | None
    """The step of the best checkpoint when this one was written, which may be itself."""

    passing: bool
    """Saved on a stop, between what the run saves by itself."""

    files: Mapping[str, Mapping[str, Any]]
    """Name to `size` and `sha256`."""

    headway: str = __version__
    torch: str = str(torch.__version__)

    @classmethod
    def of(cls, folder: Path, names: Iterable[str], **facts: Any) -> Manifest:
        """Of files that are written."""
        return cls(files={name: identity(folder / name) for name in names}, **facts)

    def text(self) -> str:
        """JSON whose last line is the SHA-256 of all before it, for it has no other guard."""
        return seal_json(json.dumps(asdict(self), indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Refused unless it is, to the byte, what `Manifest.text` wrote."""
    text = (folder / MANIFEST).read_bytes()
    try:
        values = json.loads(text)
        values.pop("sha256")
        manifest = Manifest(**values)
        if manifest.text().encode() == text and folder.name.endswith(f"step-{manifest.step}"):
            return manifest
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise FolderError(f"{folder} is damaged: {MANIFEST} is not what was written.")


def verify(folder: Path, only: Iterable[str] | None = None) -> Manifest:
    """Check every file, or `only` those of them that there are, against the manifest."""
    manifest = read_manifest(folder)
    for name, promised in manifest.files.items():
        if only is not None and name not in only:
            continue
        check_identity(folder / name, dict(promised))
    return manifest
