"""Complete state of a run at one step, and the checkpoint folder that stores it.

The folder has `*.safetensors` and `state.json`. Their checksums are in `manifest.json`, which is
written last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway import __version__
from headway.errors import FolderError
from headway.storage import check_identity, identity, seal_json, sync

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    step: int
    best: int | None
    """Step of the best checkpoint at the time of writing, which may be this one. None: no
    checkpoint was evaluated yet."""

    passing: bool
    """Whether the checkpoint is temporary, because it was saved when training was stopped, between
    regular checkpoints."""

    files: Mapping[str, Mapping[str, Any]]
    """Size (`size`) and checksum (`sha256`) of each file, by file name."""

    headway: str = __version__
    torch: str = str(torch.__version__)

    @classmethod
    def of(cls, folder: Path, names: Iterable[str], **facts: Any) -> Manifest:
        """Build the manifest of files that have been written."""
        return cls(files={name: identity(folder / name) for name in names}, **facts)

    def text(self) -> str:
        """Return the JSON text, which ends with the SHA-256 of everything before it."""
        return seal_json(json.dumps(asdict(self), indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest. Raises an error unless it is byte for byte what `Manifest.text` returned."""
    text = (folder / MANIFEST).read_bytes()
    try:
        values = json.loads(text)
        values.pop("sha256")
        manifest = Manifest(**values)
        if manifest.text().encode() == text and folder.name.endswith(f"step-{manifest.step}"):
            return manifest
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise FolderError(f"{folder} is damaged: {MANIFEST} has changed since it was written.")


def verify(folder: Path, only: Iterable[str] | None = None) -> Manifest:
    """Check files of the manifest against their checksums.

    `only`: names of the files to check. None: all files.
    """
    manifest = read_manifest(folder)
    for name, promised in manifest.files.items():
        if only is not None and name not in only:
            continue
        check_identity(folder / name, dict(promised))
    return manifest


STATE = "state.json"
WEIGHTS = ("model", "ema")
"""Names of the files with weights: `model`, and `ema` for its moving average, which is preferred
for use. Their tensors must be finite."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that a run needs to resume as if it had not been interrupted."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    """Tensors by name, for each file: "model" (each shared weight once), "optimizer", "ema", and
    any others."""

    state: dict[str, Any]
    """State that is stored as JSON. Floats are restored exactly, but tuples become lists."""

    transient: bool = False
    """Whether the snapshot was saved when training was stopped, between regular checkpoints. It is
    set only by `read_snapshot`."""


def write_snapshot(folder: Path, snapshot: Snapshot, *, best: int | None, passing: bool) -> None:
    """Create the checkpoint folder, write all files and sync them to disk."""
    state = json.dumps(snapshot.state)
    folder.mkdir()
    (folder / STATE).write_bytes(state.encode())
    names = [STATE]
    for name, tensors in snapshot.tensors.items():
        names.append(f"{name}.safetensors")
        save_file(_separate(tensors), folder / names[-1], {"format": "pt"})
    for name in names:
        sync(folder / name)
    manifest = Manifest.of(folder, names, step=snapshot.step, best=best, passing=passing)
    (folder / MANIFEST).write_bytes(manifest.text().encode())
    sync(folder / MANIFEST)
    sync(folder)


def read_snapshot(folder: Path, manifest: Manifest) -> Snapshot:
    """Read the snapshot of a checkpoint folder that has been verified."""
    try:
        tensors = {
            name.removesuffix(".safetensors"): load_file(folder / name)
            for name in manifest.files
            if name.endswith(".safetensors")
        }
        state = json.loads((folder / STATE).read_bytes())
    except (SafetensorError, ValueError) as error:
        raise FolderError(f"cannot read {folder}: {error}.") from error
    return Snapshot(manifest.step, tensors, state, manifest.passing)


def not_finite(tensors: Mapping[str, Mapping[str, Tensor]]) -> str | None:
    """Return the name of the first weight with a NaN or an infinity; None if all are finite.

    A sum is finite only if its terms are. One pass without a copy and with a single synchronization
    is therefore nearly always enough.
    """
    named = [
        (name, tensor)
        for file in WEIGHTS
        for name, tensor in tensors.get(file, {}).items()
        if tensor.is_floating_point()
    ]
    if not named:
        return None
    sums = torch.stack([tensor.detach().sum(dtype=torch.float32) for _, tensor in named])
    if bool(sums.isfinite().all()):
        return None
    return next((name for name, tensor in named if not bool(tensor.isfinite().all())), None)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without shared memory, which safetensors does not support."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        where = tensor.untyped_storage().data_ptr()
        packed = tensor.detach().contiguous()
        own[name] = packed.clone() if where in seen else packed
        seen.add(where)
    return own
