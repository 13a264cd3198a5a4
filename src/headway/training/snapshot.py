"""The state of a run at one step, and the folder that holds it.

`*.safetensors` and `state.json`, then, written last, `manifest.json` with what they promise to be.
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


STATE = "state.json"
WEIGHTS = ("model", "ema")
"""Files whose tensors must be finite. With an average, that is what is evaluated and used."""


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on as if it had never stopped."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    """By file: "model" (each weight once), "optimizer", "ema", and any others."""

    state: dict[str, Any]
    """What JSON can hold: floats come back exactly, tuples as lists."""

    passing: bool = False
    """Set on reading: saved on a stop, between what the run saves by itself."""


def write_snapshot(folder: Path, snapshot: Snapshot, *, best: int | None, passing: bool) -> None:
    """Make the folder and force all of it to the disk."""
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
    """Of a folder that has been verified."""
    try:
        tensors = {
            name.removesuffix(".safetensors"): load_file(folder / name)
            for name in manifest.files
            if name.endswith(".safetensors")
        }
        state = json.loads((folder / STATE).read_bytes())
    except (SafetensorError, ValueError) as error:
        raise FolderError(f"{folder} cannot be read: {error}.") from error
    return Snapshot(manifest.step, tensors, state, manifest.passing)


def not_finite(tensors: Mapping[str, Mapping[str, Tensor]]) -> str | None:
    """The first weight that holds a NaN or an infinity.

    A finite sum has finite terms, so one pass without a copy is nearly always enough, with one wait
    for the device.
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
    """Each with memory of its own, which is what the format can hold."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        where = tensor.untyped_storage().data_ptr()
        packed = tensor.detach().contiguous()
        own[name] = packed.clone() if where in seen else packed
        seen.add(where)
    return own
