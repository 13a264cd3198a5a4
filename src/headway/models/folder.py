"""A model in a folder: `config.toml` and `model.safetensors`. Copy the folder and it works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headway.config.folder import CONFIG, WEIGHTS, file_in, load_settings
from headway.config.model import ModelSettings
from headway.config.toml import to_toml
from headway.errors import FolderError
from headway.models.build import build_model

__all__ = ["load_model", "load_settings", "save_model"]

Shape = tuple[int, ...]


def save_model(folder: Path, model: nn.Module, settings: ModelSettings) -> None:
    """Write both files so that a crash leaves the old ones or the new ones, never half of one.

    The settings come last: a new folder that has them is complete.
    """
    weights = {names[0]: tensor.detach().contiguous() for names, tensor in _shared_once(model)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The mark lets other tools that read safetensors take the file as torch's.
        _replace(folder / WEIGHTS, lambda part: save_file(weights, part, {"format": "pt"}))
        _replace(folder / CONFIG, lambda part: part.write_bytes(to_toml(settings).encode()))
    except (OSError, SafetensorError) as error:
        raise FolderError(f"cannot write the model to {folder}: {error}") from error


def load_model(folder: Path, device: torch.device | str = "cpu") -> nn.Module:
    """The model of a folder, every weight of it taken from there."""
    settings, path = load_settings(folder), file_in(folder, WEIGHTS)
    model = build_model(settings, device=device)
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            held = file.keys()
            theirs = {name: tuple(file.get_slice(name).get_shape()) for name in held}
            ours = {_name_in(theirs, names): tensor for names, tensor in _shared_once(model)}
            shapes = {name: tuple(tensor.shape) for name, tensor in ours.items()}
            if shapes != theirs:
                raise FolderError(
                    f"{path} does not fit the model of {folder / CONFIG}.\n"
                    f"{describe_difference(shapes, theirs)}"
                )
            for name, tensor in ours.items():
                tensor.copy_(file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise FolderError(
            f"{path} is damaged or no safetensors file ({error}). Copy it again from its source."
        ) from error
    return model


def describe_difference(ours: dict[str, Shape], theirs: dict[str, Shape], limit: int = 5) -> str:
    """A short table of the tensors that only one side has, or that differ in shape."""
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            there, here = theirs.get(name, "nothing"), ours.get(name, "nothing")
            lines.append(f"  {name}: file {there}, model {here}")
    more = f"\n  ... and {len(lines) - limit} more" if len(lines) > limit else ""
    return "\n".join(lines[:limit]) + more


def _shared_once(model: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Every tensor of the model with all the names it goes by; tied weights have several."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    return [(names[key], tensor) for key, tensor in tensors.items()]


def _name_in(file: Iterable[str], names: list[str]) -> str:
    """The name under which a file holds a tensor: any one of those it goes by."""
    known = set(file)
    return next((name for name in names if name in known), names[0])


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside, force to the disk, rename."""
    part = path.with_name(f"{path.name}.part")
    try:
        write(part)
        _sync(part)
        part.replace(path)
        _sync(path.parent)  # the new name is kept only once the folder itself is
    finally:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
