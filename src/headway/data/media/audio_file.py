"""Open audio files and check that they are complete."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headway.data.sniff import AU, FORM, OGG, RIFF, WAVE
from headway.errors import DataError, UserError

if TYPE_CHECKING:
    from soundfile import SoundFile

MOST_CHANNELS = 32
"""Maximum number of channels. A header with more channels is damaged or malicious."""

RATES = (1_000, 768_000)
"""Minimum and maximum sampling rate in Hz that is accepted. Other values come from damaged
headers."""

LARGEST_PAGE = 27 + 255 + 255 * 255
"""Maximum size of an Ogg page in bytes: header, segment table and 255 segments of 255 bytes."""

UNKNOWN = 1 << 48
"""Number of samples above which the length counts as unknown. For headers without a length, the
decoder reports such large values."""


@contextmanager
def open_audio(path: str | Path) -> Iterator[SoundFile]:
    """Open an audio file. The format is detected from the contents, not from the file name."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise UserError(
            f"soundfile cannot be imported ({error}). To read audio, install it: "
            "`pip install soundfile`"
        ) from error
    try:
        if not Path(path).is_file():
            raise DataError(
                f"{path} {'is a folder' if Path(path).is_dir() else 'is not an existing file'}. "
                "Give an audio file."
            )
        if not Path(path).stat().st_size:
            raise DataError(f"{path} is empty (0 bytes).")
    except OSError as error:  # such as a name that is too long
        raise DataError(f"cannot read {str(path)[:200]}: {error.strerror or error}.") from error
    try:
        _check_whole(Path(path))
        file = soundfile.SoundFile(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except (soundfile.SoundFileError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read as audio: it is damaged, truncated, or in another format. "
            "Supported formats: wav, flac, ogg, mp3, aiff, au, and .npy."
        ) from error
    with file:
        if file.channels > MOST_CHANNELS or not RATES[0] <= file.samplerate <= RATES[1]:
            raise DataError(
                f"{path} has {file.channels:,} channels at {file.samplerate:,} Hz according to its "
                f"header. At most {MOST_CHANNELS} channels at {RATES[0]:,} to {RATES[1]:,} Hz are "
                "supported."
            )
        if not file.frames:
            raise no_samples(path)
        yield file


CHUNKS = {
    (RIFF, WAVE): ("WAV", "<4sI", b"data"),
    (FORM, b"AIFF"): ("AIFF", ">4sI", b"SSND"),
    (FORM, b"AIFC"): ("AIFF", ">4sI", b"SSND"),
}
"""Audio formats made of chunks, by the first bytes of a file. Each has a name, the `struct` layout
of a chunk header, and the name of the chunk that holds the samples."""


def _check_whole(path: Path) -> None:
    """Raise a `DataError` if a WAV, AIFF, AU or Ogg file is truncated. The decoder would ignore
    missing data.

    A chunk with the maximum size is not checked, because programs that write to a pipe store that
    size.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] == AU and len(head) == 12:
            begin, said = struct.unpack(">II", head[4:])
            _check_size(path, said, size - begin)
            return
        if head[:4] == OGG:
            _check_end(path, file, size)
            return
        kind, chunk, wanted = CHUNKS.get((head[:4], head[8:]), ("", "", b""))
        for _ in range(100 if kind else 0):
            name_size = file.read(8)
            if len(name_size) < 8:
                raise DataError(f"{path} is truncated: it has a {kind} header but no samples.")
            name, said = struct.unpack(chunk, name_size)
            if name == wanted:
                _check_size(path, said, size - file.tell())
                return
            file.seek(said + said % 2, 1)


def _check_end(path: Path, file: BinaryIO, size: int) -> None:
    """Raise a `DataError` unless an Ogg file ends with a complete page that is marked as the
    last."""
    file.seek(max(0, size - LARGEST_PAGE))
    tail = file.read()
    page = tail[tail.rfind(OGG) :]
    n_parts = page[26] if len(page) > 26 else 0
    whole = len(page) >= 27 + n_parts and len(page) >= 27 + n_parts + sum(page[27 : 27 + n_parts])
    if not whole or not page[5] & 4:
        raise DataError(f"{path} is truncated: its last Ogg page is missing or incomplete.")


def _check_size(path: Path, said: int, there: int) -> None:
    if there < said < 0x7FFFF000:
        raise DataError(
            f"{path} is truncated: its header declares {said:,} bytes of samples, but the file "
            f"contains only {max(0, there):,}."
        )


def no_samples(path: str | Path) -> DataError:
    return DataError(f"{path} contains no samples (0 s).")


def lasting(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds >= UNKNOWN / RATES[1]:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.4g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
