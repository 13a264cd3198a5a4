"""The state of a run at one step, and the folder that holds it.

`*.safetensors` and `state.json`, then, written last, `manifest.json` with size and SHA-256 of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.errors import FolderError
from headway.storage import sync
from headway.training.manifest import MANIFEST, Manifest

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
