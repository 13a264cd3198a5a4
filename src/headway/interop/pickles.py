"""Read tensors from torch pickles without executing code from the file.

All pickles pass two checks. First, every function that the pickle names must be one that constructs
tensors. Then `torch.load` reads the file with `weights_only=True`.
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
"""Functions and classes that a pickle of tensors may name. All others are rejected."""

LARGEST_PICKLE = 64 << 20
"""Maximum size in bytes of the pickle inside a zip file. The pickle contains only names and
shapes."""

LEGACY_PARTS = 5
"""Number of pickles in a file of torch before version 1.6: magic number, version, system, tensors,
storage keys."""


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file in its order.

    They are memory-mapped if possible. Tensors that claim more data than the file has raise an
    error.
    """
    return _checked(_loaded(path), path)


def read_checkpoint(
    path: Path, facts: str, tensors: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the two parts of a checkpoint: a dict of integers and a dict of tensors, stored under
    the given names."""
    value = _loaded(path)
    if not isinstance(value, dict) or set(value) != {facts, tensors}:
        raise FolderError(f"{path} must contain exactly the entries {facts!r} and {tensors!r}.")
    table = value[facts]
    if not isinstance(table, dict) or not all(type(number) is int for number in table.values()):
        raise FolderError(f"{path}: {facts!r} must be a dict of integers.")
    return {str(name): number for name, number in table.items()}, _checked(value[tensors], path)


def _loaded(path: Path) -> Any:
    """Return the contents of a pickle: numbers, strings, containers and tensors."""
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
        f"{path} is damaged or not a file of weights ({str(error).splitlines()[0][:200]}). "
        "Only tensors can be read."
        if str(error)
        else f"{path} is damaged or not a file of weights ({type(error).__name__})."
    )


def _check_zip(path: Path) -> None:
    """Raise an error if the parts of a zip file exceed its size. Torch does not compress them."""
    with zipfile.ZipFile(path) as file:
        entries = file.infolist()
        packed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]
        total = sum(entry.file_size for entry in entries)
        if packed or total > path.stat().st_size:
            what = (
                f"{packed[0]!r} is compressed"
                if packed
                else f"its parts have {total:,} bytes, more than the file"
            )
            raise FolderError(f"{path} is not a valid torch file: {what}.")
        pickles = [e for e in entries if e.filename.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1 or pickles[0].file_size > LARGEST_PICKLE:
            raise FolderError(f"{path} is a zip file without torch weights.")
        _check_names(BytesIO(file.read(pickles[0])), path)


def _check_legacy(file: IO[bytes], path: Path) -> None:
    if not path.stat().st_size:
        raise FolderError(f"{path} is empty. Copy it again from its source.")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for _ in range(LEGACY_PARTS):
            _check_names(mapped, path)


def _check_names(stream: Any, path: Path) -> None:
    """Raise an error if a pickle names anything other than constructors of tensors."""
    for name in _names(stream):
        if not ALLOWED.fullmatch(name):
            what = name.replace(" ", ".")[:200]
            raise FolderError(
                f"{path} was not loaded, because loading it would run {what!r}. Weights do not "
                "need this. Do not load the file with another program unless you trust its source."
            )


def _names(stream: Any) -> Iterator[str]:
    """Yield all functions and classes that a pickle names, without executing it."""
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST"):
            yield str(argument)
        elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            yield f"a name built by {opcode.name}"  # torch never writes these


def _checked(value: Any, path: Path) -> dict[str, Tensor]:
    """Return the value if it is a dict of plain tensors that do not claim more data than the file
    has. Otherwise raise an error."""
    if not isinstance(value, dict):
        raise FolderError(
            f"{path} must contain a dict of tensors, but contains a value of type "
            f"{type(value).__name__}."
        )
    total = 0
    for name, tensor in value.items():
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not isinstance(name, str) or not plain or tensor.device.type != "cpu":
            raise FolderError(f"{path}: {str(name)[:100]!r} is not a plain tensor.")
        n_bytes = tensor.numel() * tensor.element_size()
        total += n_bytes
        if n_bytes > tensor.untyped_storage().nbytes():
            raise FolderError(
                f"{path} is damaged: {name[:100]!r} claims more values than its data contains."
            )
    if total > 4 * path.stat().st_size:  # a tensor may have several names
        raise FolderError(
            f"{path} is damaged: it claims {total:,} bytes of tensors, more than the file can "
            "contain."
        )
    return value
