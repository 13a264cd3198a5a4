"""Lazy access to the tensors in a foreign folder.

Names, shapes and types are read when the folder is opened, values on access. Safetensors files are
preferred to pickles, which are read without executing code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headway.errors import FolderError
from headway.interop.folder_files import inside, read_table
from headway.interop.pickles import read_pickle

LARGEST_HEADER = 16 << 20
"""Maximum size in bytes of a safetensors header. Ten thousand tensors take about a megabyte."""

MOST_SHARDS = 1000
"""Maximum number of weight files of a model. The largest published models have a few hundred."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Supported tensor types of safetensors. The other types are for quantized weights."""

WHOLE = ("model.safetensors", "pytorch_model.bin")
INDEX = tuple(f"{name}.index.json" for name in WHOLE)


class TensorEntry(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]


class LazyWeights(Mapping[str, Tensor]):
    """Tensors by name, in the order of the files. Values are read on access."""

    def __init__(self, entries: dict[str, TensorEntry], files: list[Path]) -> None:
        self.entries, self.files = entries, files

    def __getitem__(self, name: str) -> Tensor:
        return self.entries[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def on_meta(self) -> dict[str, Tensor]:
        """Return the tensors without their values, on the device "meta"."""
        return {
            name: torch.empty(entry.shape, dtype=entry.dtype, device="meta")
            for name, entry in self.entries.items()
        }


def open_weights(folder: Path) -> LazyWeights:
    """Open the weights of a folder, which are a single file or several files with an index."""
    for whole, index in zip(WHOLE, INDEX, strict=True):
        if (folder / whole).exists():
            path = inside(folder, whole)
            return LazyWeights(_entries(path), [path])
        if (folder / index).exists():
            return _sharded(folder, index)
    others = [p.name for p in folder.glob("*.h5")] + [p.name for p in folder.glob("*.msgpack")]
    hint = (
        f" {others[0]} has weights of TensorFlow or Flax: convert it to safetensors."
        if others
        else ""
    )
    raise FolderError(f"{folder} contains no weights: {' or '.join(WHOLE)} is needed.{hint}")


def shards_of(folder: Path, index: str) -> list[str]:
    """Return the names of the weight files that an index lists."""
    return list(dict.fromkeys(_weight_map(folder, index).values()))


def _weight_map(folder: Path, index: str) -> dict[str, str]:
    """Return the file name of each tensor, read from an index."""
    table = read_table(inside(folder, index)).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        raise FolderError(f"{folder / index} needs a `weight_map` from tensor names to files.")
    n_files = len(set(table.values()))
    if n_files > MOST_SHARDS:
        raise FolderError(
            f"{folder / index} lists {n_files:,} files; at most {MOST_SHARDS:,} are supported."
        )
    return table


def _sharded(folder: Path, index: str) -> LazyWeights:
    table = _weight_map(folder, index)
    names = list(dict.fromkeys(table.values()))
    suffix = Path(index.removesuffix(".index.json")).suffix
    entries: dict[str, TensorEntry] = {}
    files = []
    for name in names:
        if Path(name).suffix != suffix:
            raise FolderError(
                f"{folder / index} lists {name[:200]!r}, which is not a {suffix} file."
            )
        files.append(inside(folder, name))
        for tensor, entry in _entries(files[-1]).items():
            if table.get(tensor) != name:
                raise FolderError(
                    f"{files[-1]} contains the tensor {tensor}, but {index} assigns this tensor to "
                    f"{repr(table[tensor]) if tensor in table else 'no file'}."
                )
            entries[tensor] = entry
    missing = [tensor for tensor in table if tensor not in entries]
    if missing:
        raise FolderError(
            f"{folder / index} assigns the tensor {missing[0]} to {table[missing[0]]}, but that "
            "file does not contain it."
        )
    return LazyWeights(entries, files)


def _entries(path: Path) -> dict[str, TensorEntry]:
    if not path.is_file():
        raise FolderError(f"the file {path} does not exist.")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    tensors = read_pickle(path)
    return {
        name: TensorEntry(tuple(tensor.shape), tensor.dtype, partial(_detached, tensor))
        for name, tensor in tensors.items()
    }


def _detached(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _safetensors(path: Path) -> dict[str, TensorEntry]:
    """Open a safetensors file. The library checks that the tensors fill the file without gaps or
    overlaps."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        raise FolderError(
            f"{path} is damaged or not a safetensors file: it declares a header of "
            f"{length:,} bytes; the limit is {LARGEST_HEADER:,}."
        )
    try:
        file_ = safe_open(path, framework="pt")
        names = file_.keys()
        return {name: _entry(file_, name, path) for name in names}
    except (SafetensorError, OSError, ValueError, OverflowError, MemoryError) as error:
        raise FolderError(
            f"{path} is damaged or not a safetensors file ({error}). Copy it again from its source."
        ) from error


def _entry(file: Any, name: str, path: Path) -> TensorEntry:
    view = file.get_slice(name)
    kind = view.get_dtype()
    if kind not in DTYPES:
        raise FolderError(
            f"{path}: the tensor {name} has the type {kind}, which is not supported. Supported: "
            f"{', '.join(DTYPES)}."
        )
    return TensorEntry(tuple(view.get_shape()), DTYPES[kind], partial(file.get_tensor, name))
