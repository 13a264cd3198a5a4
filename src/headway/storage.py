"""Files and folders that a crash leaves whole or absent, and that tell when a bit of them changed.

A file is written beside its place, forced to the disk and renamed. What is read from a run folder
carries a SHA-256 of itself, or is named with one by a file that does. A file without one, of an
older version or made by hand, is taken as it is.
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

from headway.errors import FolderError

HEX = "[0-9a-f]{64}"
LAST_LINE = re.compile(rf',\n "sha256": "({HEX})"\n}}\n'.encode())
"""Of a JSON object: the SHA-256 of all before it, closed by a line with a brace."""

LONGEST = 160
"""More than the bytes of a line with a checksum."""


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


def identity(path: Path) -> dict[str, Any]:
    """Size and SHA-256."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def check_identity(path: Path, promised: dict[str, Any]) -> None:
    """Refuse a file that is not the one that was written."""
    what = f"{path.parent} is damaged: "
    if not path.is_file():
        raise FolderError(f"{what}{path.name} is missing.")
    size = path.stat().st_size
    if size != promised["size"]:
        raise FolderError(f"{what}{path.name} has {size:,} bytes, not {promised['size']:,}.")
    if identity(path) != promised:
        raise FolderError(f"{what}the SHA-256 of {path.name} is another.")


def seal_json(text: str) -> str:
    """The text of a JSON object with a SHA-256 of it as the last entry."""
    body = text.rstrip().removesuffix("}").rstrip() + "\n}"
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body[:-2]},\n "sha256": "{digest}"\n}}\n'


def read_json(path: Path) -> Any:
    """What `seal_json` gave, without the seal. Refused with one that is wrong or broken; other
    text that is no JSON raises ValueError."""
    data = path.read_bytes()
    end = data[-LONGEST:]
    found = LAST_LINE.search(end)
    if found and found.end() == len(end):
        body = data[: len(data) - len(found[0])] + b"\n}"
        if hashlib.sha256(body).hexdigest() == found[1].decode():
            return json.loads(body)
    elif b'"sha256": "' not in end and not re.search(rf'"{HEX}"\n'.encode(), end):
        return json.loads(data.decode())
    raise FolderError(f"{path} is damaged: it is not what was written.")


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


TEMPORARY = "headway-work-"
"""What the names of our folders among the temporary files of the system begin with."""


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder for work without a run folder.

    It is gone afterwards, also after SIGTERM. After SIGKILL it stays until the next process that
    makes one: a folder is locked by its owner while it is in use, and those that are not are
    removed.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        if (lock := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    lock = None
    while lock is None:  # another process may take it for one of a process that has ended
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        lock = _locked(folder)

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)

    with _ending(remove):
        yield folder


def _locked(folder: Path) -> int | None:
    """Handle that locks one of our folders; None if it is locked or was renamed."""
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
    """Call it at the end, and before SIGTERM ends the process where nobody else handles it."""
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
    """Nothing is overwritten, and nobody stands in the folder that is replaced."""
    if out.is_dir() and out.resolve() == Path.cwd():
        raise FolderError(f"--out {out} is the folder you are in. Name one inside it.")
    if out.is_dir() and any(out.iterdir()):
        raise FolderError(f"{out} exists and is not empty. Give --out another folder.")
    if out.exists() and not out.is_dir():
        raise FolderError(f"{out} is a file. Give --out another name.")
