"""Sound files opened with care: what they are, and whether they hold what they promise."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headway.errors import DataError, UserError

if TYPE_CHECKING:
    from soundfile import SoundFile

MOST_CHANNELS = 32
RATES = (1_000, 768_000)

LARGEST_PAGE = 27 + 255 + 255 * 255
"""Bytes of a page of an Ogg file."""

UNKNOWN = 1 << 48
"""More samples than any file has: what the decoder says where the header says nothing."""


@contextmanager
def opened(path: str | Path) -> Iterator[SoundFile]:
    """Decides by what a file holds, not by its name."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise UserError(f"Sound needs `pip install soundfile` ({error}).") from error
    try:
        if not Path(path).is_file():
            raise DataError(f"{path} is {'a folder' if Path(path).is_dir() else 'not a file'}.")
        if not Path(path).stat().st_size:
            raise DataError(f"{path} is empty: it has no bytes.")
    except OSError as error:  # a name that is too long, say
        raise DataError(f"cannot read {str(path)[:200]}: {error.strerror or error}.") from error
    try:
        _check_whole(Path(path))
        file = soundfile.SoundFile(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except (soundfile.SoundFileError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read as sound: it is damaged, cut short, or of another kind. "
            "Known: wav, flac, ogg, mp3, aiff, au, and .npy."
        ) from error
    with file:
        if file.channels > MOST_CHANNELS or not RATES[0] <= file.samplerate <= RATES[1]:
            raise DataError(
                f"{path} says that it has {file.channels:,} channels of {file.samplerate:,} "
                f"samples a second; up to {MOST_CHANNELS} and {RATES[0]:,} to {RATES[1]:,} can be."
            )
        if not file.frames:
            raise no_samples(path)
        yield file


CHUNKS = {
    (b"RIFF", b"WAVE"): ("WAV", "<4sI", b"data"),
    (b"FORM", b"AIFF"): ("AIFF", ">4sI", b"SSND"),
    (b"FORM", b"AIFC"): ("AIFF", ">4sI", b"SSND"),
}
"""Formats of chunks, by how a file begins: its name, how a chunk does, and the one of samples."""


def _check_whole(path: Path) -> None:
    """The samples of a WAV, AIFF, AU or Ogg file must be all there: the decoder would not tell.

    Programs that write to a pipe do not know the size and write the largest, which says nothing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] == b".snd" and len(head) == 12:
            begin, said = struct.unpack(">II", head[4:])
            _check_size(path, said, size - begin)
            return
        if head[:4] == b"OggS":
            _check_end(path, file, size)
            return
        kind, chunk, wanted = CHUNKS.get((head[:4], head[8:]), ("", "", b""))
        for _ in range(100 if kind else 0):
            name_size = file.read(8)
            if len(name_size) < 8:
                raise DataError(
                    f"{path} is cut short: its header says {kind}, but no sound follows."
                )
            name, said = struct.unpack(chunk, name_size)
            if name == wanted:
                _check_size(path, said, size - file.tell())
                return
            file.seek(said + said % 2, 1)


def _check_end(path: Path, file: BinaryIO, size: int) -> None:
    """The last page of an Ogg file says that it is the last, and is all there."""
    file.seek(max(0, size - LARGEST_PAGE))
    tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    n_parts = page[26] if len(page) > 26 else 0
    whole = len(page) >= 27 + n_parts and len(page) >= 27 + n_parts + sum(page[27 : 27 + n_parts])
    if not whole or not page[5] & 4:
        raise DataError(f"{path} is cut short: the page that ends an Ogg file is not there.")


def _check_size(path: Path, said: int, there: int) -> None:
    if there < said < 0x7FFFF000:
        raise DataError(
            f"{path} is cut short: its header promises {said:,} bytes of sound, "
            f"{max(0, there):,} are there."
        )


def no_samples(path: str | Path) -> DataError:
    return DataError(f"{path} has no samples: it lasts 0 s.")


def lasting(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds >= UNKNOWN / RATES[1]:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.4g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
