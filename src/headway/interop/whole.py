"""Folders that are whole or not there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.errors import FolderError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes that name when all went well."""
    check_free(out)
    place = out.absolute()
    beside = place.with_name(f".{place.name}.part")
    try:
        if beside.exists():
            shutil.rmtree(beside)
        beside.mkdir(parents=True)
        yield beside
        if place.is_dir():
            place.rmdir()
        beside.replace(place)
    except OSError as error:
        raise FolderError(f"cannot write {out}: {error}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_free(out: Path) -> None:
    """Nothing is overwritten, and nobody stands in the folder that is replaced."""
    if out.is_dir() and out.resolve() == Path.cwd():
        raise FolderError(f"--out {out} is the folder you are in. Name one inside it.")
    if out.is_dir() and any(out.iterdir()):
        raise FolderError(f"{out} exists and is not empty. Give --out another folder.")
    if out.exists() and not out.is_dir():
        raise FolderError(f"{out} is a file. Give --out another name.")
