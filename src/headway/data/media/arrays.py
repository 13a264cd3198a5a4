"""Read images and videos that are stacked in one file: `.npy` arrays and the IDX files of MNIST.

The files are memory-mapped, so that only requested items are read. Compressed IDX files are
unpacked into memory, up to a limit.
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
from headway.data.media.pixels import ByteArray, to_frames
from headway.data.sniff import is_idx
from headway.errors import DataError

MAX_UNPACKED = 2_000_000_000
"""Maximum size in bytes of an unpacked IDX file. The images of MNIST take 47 million bytes."""

_UBYTE = 8
"""Type code of unsigned bytes in the header of an IDX file."""

_GZIP = b"\x1f\x8b"


def open_npy(path: str) -> NDArray[Any]:
    """Memory-map an array of numbers in a `.npy` file. Raise a `DataError` if its header does not
    fit the size of the file."""
    return _mapped(path, *_state(path))


def _state(path: str | Path) -> tuple[int, int]:
    """Return the modification time and size of a file, by which changes are detected."""
    try:
        state = Path(path).stat()
    except FileNotFoundError as error:
        raise DataError(f"file not found: {path}.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}.") from error
    if not S_ISREG(state.st_mode):
        raise DataError(f"{path} is not a regular file.")
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=8)
def _mapped(path: str, *state: int) -> NDArray[Any]:
    """Return the memory-mapped array of a file. The mapping is cached until the file changes."""
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.ndarray):
            raise ValueError("it contains several arrays")
    except Exception as error:  # a damaged header makes numpy raise nearly anything
        raise DataError(
            f"{path} cannot be read as an .npy array of numbers: {str(error).rstrip('.')}."
        ) from error
    if not values.size:
        raise DataError(f"{path} contains an empty array of shape {values.shape}.")
    return values


def _opened(path: str) -> NDArray[Any]:
    return open_idx(Path(path)) if is_idx(path) else open_npy(path)


def stack_item(path: str, index: int | None) -> NDArray[Any]:
    """Return one item of a stack, or the whole array if no index is given."""
    values = _opened(path)
    if index is None:
        return values
    _check_index(path, index, len(values))
    item: NDArray[Any] = values[index]
    return item


def stack_items(path: str, indices: Sequence[int], most: int) -> Iterator[NDArray[Any]]:
    """Yield the requested items of a stack, in blocks of at most `most` bytes."""
    values = _opened(path)
    for index in (min(indices), max(indices)):
        _check_index(path, index, len(values))
    step = max(1, most // max(1, values.nbytes // len(values)))
    for first in range(0, len(indices), step):
        yield values[list(indices[first : first + step])]


def _check_index(path: str, index: int, n: int) -> None:
    if not 0 <= index < n:
        raise DataError(f"{path} has no item {index}: it has {n:,} items, counted from 0.")


def npy_frames(values: NDArray[Any], moving: bool, channels: int, where: str) -> ByteArray:
    """Convert an image (Y X [C]) or a video (T Y X [C]) to T C Y X."""
    frames: ByteArray = stack_frames(values[None], moving, channels, where)[0]
    return frames


def stack_frames(values: NDArray[Any], moving: bool, channels: int, where: str) -> ByteArray:
    """Convert images (N Y X [C]) or videos (N T Y X [C]) of equal shape to N T C Y X."""
    n, *shape = values.shape
    axes = "T Y X [C]" if moving else "Y X [C]"
    n_axes = len(shape) - moving
    if n_axes not in (2, 3):
        raise DataError(
            f"{where} has the shape {tuple(shape)}, but {'a video' if moving else 'an image'} must "
            f"have the axes {axes} ({'frames, ' * moving}height, width, channels). If it is a "
            "stack with one more axis in front, select an item with `index`."
        )
    if prod(shape) > 4 * MAX_PIXELS:
        raise DataError(
            f"{where} has {prod(shape):,} numbers, more than the limit of {4 * MAX_PIXELS:,}."
        )
    t = shape[0] if moving else 1
    one = (*shape[moving:], 1) if n_axes == 2 else tuple(shape[moving:])
    frames = to_frames(np.asarray(values).reshape(n * t, *one), channels, where)
    return frames.reshape(n, t, *frames.shape[1:])


def open_idx(path: Path) -> NDArray[np.uint8]:
    """Open the array in an IDX file. Raise a `DataError` if its header does not fit the size of the
    file."""
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
            raise DataError(f"{path} is an IDX file without items.")
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
                    f"{path} needs {prod(shape):,} bytes of memory, more than the limit of "
                    f"{MAX_UNPACKED:,}. Decompress the file: uncompressed IDX files are "
                    "memory-mapped."
                )
            values = file.read(prod(shape) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} cannot be decompressed: {error}. The file may be truncated."
        ) from error
    if len(values) != prod(shape):
        raise _wrong_size(path, shape, len(values))
    return np.frombuffer(values, np.uint8).reshape(shape)


def _idx_shape(magic: bytes, file: Any, path: Path) -> tuple[int, ...]:
    if len(magic) < 4 or magic[:2] != b"\0\0" or not magic[3]:
        raise DataError(f"{path} is not an IDX file: its first bytes are {magic!r}.")
    if magic[2] != _UBYTE:
        raise DataError(
            f"{path} contains numbers of type {magic[2]:#04x}; only bytes (0x08) are supported."
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} is truncated: its header is incomplete.")
    return tuple(int(n) for n in np.frombuffer(sizes, ">u4"))


def _wrong_size(path: Path, shape: tuple[int, ...], size: int) -> DataError:
    said = " × ".join(map(str, shape))
    more = "more" if size > prod(shape) else f"{size:,}"
    return DataError(f"{path}: the header declares {said} bytes, but the file contains {more}.")
