"""Sound files opened with care: what they are, and whether they hold what they promise."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import DataError, UserError

if TYPE_CHECKING:
    from soundfile import SoundFile

MOST_CHANNELS = 32
RATES = (1_000, 768_000)

UNKNOWN = 1 << 48
"""More samples than any file has: what the decoder says where the header says nothing."""


@contextmanager
def opened(path: str | Path) -> Iterator[SoundFile]:
    """Decides by what a file holds, not by its name."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise UserError(f"Sound needs `pip install soundfile` ({error}).") from error
    if not Path(path).is_file():
        raise DataError(f"{path} is {'a folder' if Path(path).is_dir() else 'not a file'}.")
    if not Path(path).stat().st_size:
        raise DataError(f"{path} is empty: it has no bytes.")
    try:
        _check_riff(Path(path))
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


def _check_riff(path: Path) -> None:
    """The data of a WAV file must be all there: the decoder would not tell.

    Programs that write to a pipe do not know the size and write the largest, which says nothing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return
        for _ in range(100):
            name_size = file.read(8)
            if len(name_size) < 8:
                raise DataError(f"{path} is cut short: its header says WAV, but no sound follows.")
            name, said = struct.unpack("<4sI", name_size)
            there = size - file.tell()
            if name == b"data":
                if there < said < 0x7FFFF000:
                    raise DataError(
                        f"{path} is cut short: its header promises {said:,} bytes of sound, "
                        f"{there:,} are there."
                    )
                return
            file.seek(said + said % 2, 1)


def no_samples(path: str | Path) -> DataError:
    return DataError(f"{path} has no samples: it lasts 0 s.")


def lasting(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds >= UNKNOWN / RATES[1]:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.4g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
