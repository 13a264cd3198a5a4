"""Tensors in a pickle of torch, without running anything that the file asks for.

Two locks: the names of all functions in the pickle are read first and must be those that make
tensors; then `torch.load` reads it with `weights_only=True`. There is no other way in.
"""

from __future__ import annotations

import mmap
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from headway.errors import FolderError

ALLOWED = re.compile(
    r"collections OrderedDict"
    r"|torch\._utils _rebuild_(?:tensor|tensor_v2|parameter)"
    r"|torch (?:Float|Half|BFloat16|Double|Long|Int|Short|Char|Byte|Bool)Storage"
)
"""What a table of tensors is made of; everything else is refused."""

LARGEST_PICKLE = 64 << 20
"""Bytes of the pickle in a zip, which holds names and shapes alone."""

LEGACY_PARTS = 5
"""Pickles one after another in a file of torch before 1.6: a mark, a version, the machine, the
tensors, the order of the numbers."""


def read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in its order. They are mapped where the file allows it, and hold no
    more numbers than the file has."""
    return _checked(_loaded(path), path)


def read_checkpoint(
    path: Path, facts: str, tensors: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same of a file that holds a table of whole numbers beside that of tensors: both, by
    their names in it."""
    value = _loaded(path)
    if not isinstance(value, dict) or set(value) != {facts, tensors}:
        raise FolderError(f"{path} does not hold {facts!r} and {tensors!r}, and nothing else.")
    table = value[facts]
    if not isinstance(table, dict) or not all(type(number) is int for number in table.values()):
        raise FolderError(f"{path}: {facts!r} is no table of whole numbers.")
    return {str(name): number for name, number in table.items()}, _checked(value[tensors], path)


def _loaded(path: Path) -> Any:
    """What the pickle holds: numbers, text, tables and tensors, nothing else."""
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            if zipped:
                _check_zip(path)
            else:
                _check_legacy(file, path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped or None)
    except FolderError:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, MemoryError, RecursionError) as error:
        raise _damaged(path, error) from error
    except (pickle.UnpicklingError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise _damaged(path, error) from error
    except (AttributeError, OverflowError, AssertionError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> FolderError:
    return FolderError(
        f"{path} is damaged, or no file of weights ({str(error).splitlines()[0][:200]}). "
        "Only tensors are read from it."
        if str(error)
        else f"{path} is damaged, or no file of weights ({type(error).__name__})."
    )


def _check_zip(path: Path) -> None:
    """Torch stores its parts as they are, so that their sizes are those in the file."""
    with zipfile.ZipFile(path) as file:
        entries = file.infolist()
        packed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]
        total = sum(entry.file_size for entry in entries)
        if packed or total > path.stat().st_size:
            what = f"{packed[0]!r} is compressed" if packed else f"its parts have {total:,} bytes"
            raise FolderError(f"{path} is no file of weights as torch writes them: {what}.")
        pickles = [e for e in entries if e.filename.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1 or pickles[0].file_size > LARGEST_PICKLE:
            raise FolderError(f"{path} is a zip file, but holds no weights of torch.")
        _check_names(BytesIO(file.read(pickles[0])), path)


def _check_legacy(file: IO[bytes], path: Path) -> None:
    if not path.stat().st_size:
        raise FolderError(f"{path} is empty.")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for _ in range(LEGACY_PARTS):
            _check_names(mapped, path)


def _check_names(stream: Any, path: Path) -> None:
    """Refuse a pickle that names anything but what tensors are made of."""
    for name in _names(stream):
        if not ALLOWED.fullmatch(name):
            what = name.replace(" ", ".")[:200]
            raise FolderError(
                f"{path} was not read: it would run {what!r}, and a file of weights has no need "
                "to. Do not load it with anything else either, unless you trust where it is from."
            )


def _names(stream: Any) -> Iterator[str]:
    """All functions and classes that a pickle names, without making anything of it."""
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST"):
            yield str(argument)
        elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            yield f"a name that {opcode.name} puts together"  # torch never writes these


def _checked(value: Any, path: Path) -> dict[str, Tensor]:
    """Refuse what is no table of plain tensors, or claims more numbers than there are."""
    if not isinstance(value, dict):
        raise FolderError(f"{path} holds no table of tensors.")
    total = 0
    for name, tensor in value.items():
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not isinstance(name, str) or not plain or tensor.device.type != "cpu":
            raise FolderError(f"{path}: {str(name)[:100]!r} is no plain tensor.")
        n_bytes = tensor.numel() * tensor.element_size()
        total += n_bytes
        if n_bytes > tensor.untyped_storage().nbytes():
            raise FolderError(f"{path}: {name[:100]!r} claims more numbers than it has.")
    if total > 4 * path.stat().st_size:  # a tensor may go by two names
        raise FolderError(f"{path} claims {total:,} bytes of tensors, more than it can hold.")
    return value
