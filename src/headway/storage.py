"""Crash-safe writing of files and folders, with checksums that reveal later changes.

A file is written under a temporary name, synced to disk and renamed. Every file of a run folder
either contains its own SHA-256 or is listed with one in another file. A file without a checksum,
such as one written by hand, is accepted unchecked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from headway.errors import FolderError, Option

HEX = "[0-9a-f]{64}"
LAST_LINE = re.compile(rf',\n "sha256": "({HEX})"\n}}\n'.encode())
"""Pattern of the last two lines of a sealed JSON file: the SHA-256 of everything before them, and a
closing brace."""

LONGEST = 160
"""Upper limit of the number of bytes that `LAST_LINE` matches: 64 digits, and enough for the other
characters."""


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file atomically: `write` creates the content at a temporary path, which is then
    renamed.

    At any moment, either the complete old file or the complete new file exists.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        sync(part)
        part.replace(path)
        sync(path.parent)  # the new name is durable only once the folder is synced
    except OSError as error:  # the error of a full disk does not name the file
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def replace_text(path: Path, text: str) -> None:
    replace_file(path, lambda part: part.write_bytes(text.encode()))


def sync(path: Path) -> None:
    """Force the content of a file or a folder to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def identity(path: Path) -> dict[str, Any]:
    """Return the size and SHA-256 of a file, under `size` and `sha256`."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def check_identity(path: Path, promised: dict[str, Any]) -> None:
    """Raise an error if a file is missing or differs from the recorded size and SHA-256."""
    what = f"{path.parent} is damaged: "
    if not path.is_file():
        raise FolderError(f"{what}{path.name} is missing.")
    size = path.stat().st_size
    if size != promised["size"]:
        raise FolderError(f"{what}{path.name} has {size:,} bytes instead of {promised['size']:,}.")
    if identity(path) != promised:
        raise FolderError(f"{what}the SHA-256 of {path.name} does not match its content.")


def seal_json(text: str) -> str:
    """Return the text of a JSON object with its SHA-256 added as the last entry."""
    body = text.rstrip().removesuffix("}").rstrip() + "\n}"
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body[:-2]},\n "sha256": "{digest}"\n}}\n'


def read_json(path: Path) -> Any:
    """Return the content of a JSON file written with `seal_json`, without its checksum.

    A wrong or damaged checksum raises FolderError. In a file without a checksum, invalid JSON
    raises ValueError.
    """
    data = path.read_bytes()
    end = data[-LONGEST:]
    found = LAST_LINE.search(end)
    if found and found.end() == len(end):
        body = data[: len(data) - len(found[0])] + b"\n}"
        if hashlib.sha256(body).hexdigest() == found[1].decode():
            return json.loads(body)
    elif b'"sha256": "' not in end and not re.search(rf'"{HEX}"\n'.encode(), end):
        return json.loads(data.decode())
    raise FolderError(f"{path} is damaged: its content does not match its SHA-256 checksum.")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Context manager with a temporary folder next to `out`, which is renamed to `out` on
    success."""
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


TEMPORARY = "headway-work-"
"""Prefix of the names of headway's folders in the system's temporary directory."""


@contextmanager
def work_folder() -> Iterator[Path]:
    """Context manager with a temporary folder, for work that has no run folder.

    The folder is removed on exit, even after SIGTERM. After SIGKILL it remains until another
    process calls this function, which removes all such folders that no process has locked.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        if (lock := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    lock = None
    while lock is None:  # another process may remove it as abandoned before it is locked
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        lock = _locked(folder)

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)

    with _ending(remove):
        yield folder


def _locked(folder: Path) -> int | None:
    """Lock one of headway's temporary folders and return its file descriptor. Return None if
    another process has locked the folder, or if it was replaced."""
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = os.fstat(handle)
        if state.st_uid == os.getuid() and os.path.samestat(state, folder.stat()):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


@contextmanager
def _ending(act: Callable[[], object]) -> Iterator[None]:
    """Context manager that calls `act` on exit. It is called before SIGTERM ends the process as
    well, unless the program has its own handler."""
    handled = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )

    def end(number: int, frame: FrameType | None) -> None:
        act()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    if handled:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if handled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        act()


def check_free(out: Path) -> None:
    """Raise an error unless a new folder can be created at `out`: it must be missing or empty, and
    not the current directory."""
    if out.is_dir() and out.resolve() == Path.cwd():
        raise FolderError(
            f"{Option('out', out)} is the current directory. Choose a new folder inside it."
        )
    if out.is_dir() and any(out.iterdir()):
        raise FolderError(
            f"{out} exists and is not empty. Choose another folder for {Option('out')}."
        )
    if out.exists() and not out.is_dir():
        raise FolderError(f"{out} is a file. Choose another name for {Option('out')}.")
