"""Pictures and videos that lie together in one file: `.npy` stacks and the IDX files of MNIST.

Both are mapped, not read, so that an item costs what it holds; only IDX files that are compressed
are unpacked into memory, up to a limit.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.media.image import MAX_PIXELS
from headway.data.media.pixels import Pixels, to_frames
from headway.errors import DataError

MAX_UNPACKED = 2_000_000_000
"""Bytes of a compressed IDX file."""

_UBYTE = 8
_GZIP = b"\x1f\x8b"


def open_npy(path: str) -> NDArray[Any]:
    """A mapped array. Its header must fit the file, and it must hold numbers, not objects."""
    return _mapped(path, *_state(path))


def _state(path: str | Path) -> tuple[int, int]:
    """Tells a file from what it was before."""
    try:
        state = Path(path).stat()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}.") from error
    if not S_ISREG(state.st_mode):
        raise DataError(f"{path} is not a file.")
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=8)
def _mapped(path: str, *state: int) -> NDArray[Any]:
    """Kept open for the next item, as long as the file is what it was."""
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.ndarray):
            raise ValueError("it holds several arrays")
    except Exception as error:  # a damaged header makes numpy raise nearly anything
        raise DataError(
            f"{path} cannot be read as an .npy array of numbers: {str(error).rstrip('.')}."
        ) from error
    if not values.size:
        raise DataError(f"{path} is an array without numbers: its shape is {values.shape}.")
    return values


def _opened(path: str) -> NDArray[Any]:
    return open_idx(Path(path)) if is_idx(path) else open_npy(path)


def stack_item(path: str, index: int | None) -> NDArray[Any]:
    """The whole array, or one of the stack."""
    values = _opened(path)
    if index is None:
        return values
    _check_index(path, index, len(values))
    item: NDArray[Any] = values[index]
    return item


def stack_items(path: str, indices: Sequence[int], most: int) -> Iterator[NDArray[Any]]:
    """Some of the stack, as many at once as have so many bytes."""
    values = _opened(path)
    for index in (min(indices), max(indices)):
        _check_index(path, index, len(values))
    step = max(1, most // max(1, values.nbytes // len(values)))
    for first in range(0, len(indices), step):
        yield values[list(indices[first : first + step])]


def _check_index(path: str, index: int, n: int) -> None:
    if not 0 <= index < n:
        raise DataError(f"{path} has {n:,} items; there is no item {index} from 0 on.")


def npy_frames(values: NDArray[Any], moving: bool, channels: int, where: str) -> Pixels:
    """T C Y X of a picture Y X [C] or a video T Y X [C]."""
    frames: Pixels = stack_frames(values[None], moving, channels, where)[0]
    return frames


def stack_frames(values: NDArray[Any], moving: bool, channels: int, where: str) -> Pixels:
    """N T C Y X of several that are alike: pictures N Y X [C] or videos N T Y X [C]."""
    n, *shape = values.shape
    axes = "T Y X [C]" if moving else "Y X [C]"
    n_axes = len(shape) - moving
    if n_axes not in (2, 3):
        raise DataError(
            f"{where} has the shape {tuple(shape)}; a {'video' if moving else 'picture'} has the "
            f"axes {axes}, and a stack of them one more in front, whose item `index` names."
        )
    if prod(shape) > 4 * MAX_PIXELS:
        raise DataError(f"{where} has {prod(shape):,} numbers: too many for one item.")
    t = shape[0] if moving else 1
    one = (*shape[moving:], 1) if n_axes == 2 else tuple(shape[moving:])
    frames = to_frames(np.asarray(values).reshape(n * t, *one), channels, where)
    return frames.reshape(n, t, *frames.shape[1:])


@lru_cache(maxsize=64)
def is_idx(path: str | Path) -> bool:
    """By its name, as MNIST has it."""
    name = Path(path).name.lower()
    return name.endswith("ubyte") or ("idx" in name and Path(name).suffix in ("", ".gz", ".idx"))


def open_idx(path: Path) -> NDArray[np.uint8]:
    """The array of an IDX file; what its header says must be what is there."""
    return _idx(path, *_state(path))


@lru_cache(maxsize=4)
def _idx(path: Path, *state: int) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as raw:
            if raw.read(2) == _GZIP:
                return _unpacked(path)
        with path.open("rb") as raw:
            shape = _idx_shape(raw.read(4), raw, path)
        start = 4 + 4 * len(shape)
        size = path.stat().st_size - start
        if not prod(shape):
            raise DataError(f"{path} is an IDX file without any items.")
        if size != prod(shape):
            raise _wrong_size(path, shape, size)
        return np.memmap(path, np.uint8, "r", start, shape)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error


def _unpacked(path: Path) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            shape = _idx_shape(file.read(4), file, path)
            if prod(shape) > MAX_UNPACKED:
                raise DataError(
                    f"{path} would take {prod(shape):,} bytes of memory. Unpack it first: an IDX "
                    "file that is not compressed is not read as a whole."
                )
            values = file.read(prod(shape) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be unpacked: {error}. Is it cut short?") from error
    if len(values) != prod(shape):
        raise _wrong_size(path, shape, len(values))
    return np.frombuffer(values, np.uint8).reshape(shape)


def _idx_shape(magic: bytes, file: Any, path: Path) -> tuple[int, ...]:
    if len(magic) < 4 or magic[:2] != b"\0\0" or not magic[3]:
        raise DataError(f"{path} is no IDX file: it does not begin as one does.")
    if magic[2] != _UBYTE:
        raise DataError(f"{path} holds numbers of type {magic[2]:#04x}; only bytes (0x08) can be.")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} is cut short within its header.")
    return tuple(int(n) for n in np.frombuffer(sizes, ">u4"))


def _wrong_size(path: Path, shape: tuple[int, ...], size: int) -> DataError:
    said = " × ".join(map(str, shape))
    more = "more" if size > prod(shape) else f"{size:,}"
    return DataError(f"{path} should hold {said} bytes by its header, but holds {more}.")
