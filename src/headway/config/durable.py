"""Files that a crash leaves whole: written beside, forced to the disk, renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make the file beside its place, then put it there: the old one or the new one
    exists at any moment, never half of one."""
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        sync(part)
        part.replace(path)
        sync(path.parent)  # the new name is kept only once the folder itself is
    except OSError as error:  # a full disk does not say which file has no room
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def replace_text(path: Path, text: str) -> None:
    replace_file(path, lambda part: part.write_bytes(text.encode()))


def sync(path: Path) -> None:
    """Force a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
