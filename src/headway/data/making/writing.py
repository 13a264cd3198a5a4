"""A folder of made data: arrays that grow on disk and lines of JSON about them, all or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headway.errors import ConfigError, FolderError
from headway.storage import sync

FACTS = "made.json"
"""How the folder was made: the same facts make the same bytes."""


def make_folder(out: Path, facts: dict[str, Any], write: Callable[[Path], None]) -> bool:
    """Have `write` fill a folder beside `out`, then give it its name. False: it was there."""
    if (out / FACTS).is_file():
        if json.loads((out / FACTS).read_text()) == facts:
            return False
        raise FolderError(
            f"{out} was made with other settings (see {out / FACTS}). Give --out another folder."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FolderError(f"{out} is not an empty folder. Give --out a new one.")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
    part.mkdir(parents=True)
    try:
        write(part)
        (part / FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        for path in part.iterdir():
            sync(path)
        if out.exists():
            out.rmdir()
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    sync(out.parent)
    return True


@contextmanager
def new_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[NDArray[Any]]:
    """An `.npy` file to be filled piece by piece: the memory is the disk's."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    yield array
    array.flush()


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not 1 <= count <= 10_000_000:
            raise ConfigError(f"{name}={count} must be from 1 to 10,000,000.")


def check_size(size: int) -> None:
    if not 24 <= size <= 512:
        raise ConfigError(f"size={size} must be from 24 to 512: below, shapes are mere dots.")
