"""A folder of made data: arrays that grow on disk and lines of JSON about them, all or nothing."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headway.errors import ConfigError, FolderError, UserError
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


def program(about: str, settings: type, make: Callable[[Path, Any], bool]) -> None:
    """A command line with an option for each field of the settings."""
    parser = argparse.ArgumentParser(description=about.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    types = {"int": int, "float": float, "str": str}
    for field in fields(settings):
        needed = field.default is MISSING
        parser.add_argument(
            f"--{field.name}", type=types[str(field.type)], required=needed,
            default=None if needed else field.default,
            help=None if needed else f"[default: {field.default}]",
        )  # fmt: skip
    given = vars(parser.parse_args())
    out = given.pop("out")
    try:
        new = make(out, settings(**given))
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"{out}" + ("" if new else ": it was there already"))
    for path in sorted(out.glob("*.jsonl")):
        with path.open("rb") as file:
            print(f"  {path.name:<24} {sum(1 for _ in file):>7,}")
