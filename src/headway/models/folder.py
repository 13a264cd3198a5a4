"""Save and load models as self-contained folders with `config.toml` and `model.safetensors`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headway.errors import FolderError
from headway.models.build import build_model
from headway.models.int8_weights import from_int8
from headway.models.parts.counted import resize_tables
from headway.settings.folder import (
    CONFIG,
    WEIGHTS,
    file_in,
    load_settings,
    run_folder,
    write_config,
)
from headway.settings.model import ModelSettings
from headway.settings.toml import to_toml
from headway.storage import HEX, replace_file

__all__ = [
    "load_model",
    "load_settings",
    "load_weights",
    "model_weights",
    "save_model",
    "save_weights",
]

TensorShape = tuple[int, ...]

CHECKSUM = "sha256"
"""Name of the header entry with the SHA-256 of all tensors, including their names, types and
shapes."""


def save_model(folder: Path, model: nn.Module, settings: ModelSettings) -> None:
    """Write the weights and settings of a model to a folder, each file atomically.

    The settings are written last, so a new folder with settings is complete.
    """
    save_weights(folder, model_weights(model))
    try:
        write_config(folder, to_toml(settings))
    except OSError as error:
        raise FolderError(f"cannot write the model to {folder}: {error}.") from error


def save_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write `model.safetensors`, without settings."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / WEIGHTS, lambda part: _write(part, tensors))
    except (OSError, SafetensorError) as error:
        raise FolderError(f"cannot write the model to {folder}: {error}.") from error


def load_model(
    folder: str | Path,
    device: torch.device | str = "cpu",
    settings: ModelSettings | None = None,
) -> nn.Module:
    """Load the model of a folder and verify its weights.

    `settings`: settings of the folder, if the caller has already read them. None: read them here.
    """
    folder = run_folder(folder)
    settings = load_settings(folder) if settings is None else settings
    path = file_in(folder, WEIGHTS)
    model = build_model(settings, device=device, seed=None)
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            notes = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise FolderError(
            f"{path} is damaged or not a safetensors file ({error}). Copy it again from its source."
        ) from error
    load_weights(model, from_int8(weights), f"{path} does not fit the model of {folder / CONFIG}.")
    # Files of other programs have no checksum. Ours are recognized by the name of the entry, or by
    # a value that looks like a checksum, so that damage to one of the two is detected.
    ours = CHECKSUM in notes or any(re.fullmatch(HEX, note) for note in notes.values())
    if ours and notes != _notes(weights):
        raise FolderError(
            f"{path} is damaged: its weights do not match the stored SHA-256 checksum. "
            "Copy the file again from its source."
        )
    return model


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model by name. A shared tensor is listed once."""
    return {names[0]: tensor.detach() for names, tensor in _tensors_with_names(model)}


@torch.no_grad()
def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], misfit: str = "the weights do not fit."
) -> None:
    """Copy all weights into the model. A shared tensor may have any one of its names."""
    resize_tables(model, weights)
    ours = {_name_in(weights, names): tensor for names, tensor in _tensors_with_names(model)}
    shapes = {name: tuple(tensor.shape) for name, tensor in ours.items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != theirs:
        raise FolderError(f"{misfit}\n{describe_difference(shapes, theirs)}")
    for name, tensor in ours.items():
        tensor.copy_(weights[name])


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    # The metadata include the format, so that other tools accept the file as a PyTorch file.
    save_file(tensors, path, _notes(tensors))
    path.chmod(0o644)  # the library makes it readable only by its owner
    # The library writes metadata in random order, but equal weights should give equal bytes.
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        assert len(text) == size
        file.seek(8)
        file.write(text)


def _notes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {"format": "pt", CHECKSUM: _checksum(tensors)}


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe_difference(
    ours: dict[str, TensorShape], theirs: dict[str, TensorShape], limit: int = 5
) -> str:
    """Return text that lists the tensors that are only in the file or only in the model, or that
    differ in shape. `limit`: maximum number of tensors."""
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            there, here = theirs.get(name, "missing"), ours.get(name, "missing")
            lines.append(f"  {name}: file {there}, model {here}")
    more = f"\n  ... and {len(lines) - limit} more" if len(lines) > limit else ""
    return "\n".join(lines[:limit]) + more


def _tensors_with_names(model: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Return every tensor of the model with all of its names. Tied weights have several."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    return [(names[key], tensor) for key, tensor in tensors.items()]


def _name_in(file: Iterable[str], names: list[str]) -> str:
    """Return the name that a file uses for a shared tensor. If the file has none of the names,
    return the first."""
    known = set(file)
    return next((name for name in names if name in known), names[0])
