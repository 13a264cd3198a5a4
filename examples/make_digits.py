"""Strings of spoken digits, made of single ones of the same speaker; the time of each is known.

    python examples/make_digits.py --out digits --recordings audiomnist.flac \\
        --index audiomnist_index.npy

The split is by speaker, so that a test is about voices never heard. Beside the strings there are
lists of the single recordings: digits by held-out speakers, speakers by held-out takes, and
speakers to verify who were never heard.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from made.folder import check_counts, make_folder, new_array, program, write_lines
from numpy.typing import NDArray

from headway.errors import ConfigError, DataError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RECORDINGS = "recordings.npy"
SPLITS = ("train", "valid", "test")
FRAME_S = 0.01
QUIET_DB = -30.0
"""What is softer than the loudest 10 ms of a recording by so much is taken for silence."""

Samples = NDArray[np.int16]


@dataclass(frozen=True, kw_only=True)
class DigitsSettings:
    recordings: str
    """All recordings side by side: an audio file, or an `.npy` of int16 (then `rate` says how
    many samples a second has)."""

    index: str
    """An `.npy` of a line a recording, in order: speaker, digit, take, number of samples."""

    rate: int = 8000
    """Read from an audio file where there is one."""

    n: int = 10_000
    valid: int = 500
    test: int = 1000
    longest: int = 7
    """Digits of a string; the shortest has two."""

    gap: float = 0.2
    """Seconds: between two digits is a pause of this length at most ..."""

    overlap: float = 0.0
    """... or, half of the time, so much of two digits is heard at once, at most."""

    noise: float = 0.0
    """White noise, as a share of the loudness of the speech."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(n=self.n, valid=self.valid, test=self.test)
        if not 2 <= self.longest <= 100:
            raise ConfigError(f"longest={self.longest} must be from 2 to 100.")
        for name in ("gap", "overlap", "noise"):
            if not 0.0 <= getattr(self, name) <= 2.0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be from 0 to 2.")
        if not 1000 <= self.rate <= 192_000:
            raise ConfigError(f"rate={self.rate} must be from 1,000 to 192,000.")


@dataclass(frozen=True)
class Speech:
    """Recordings side by side, and what is known of each."""

    samples: Samples
    rate: int
    speaker: NDArray[np.int64]
    digit: NDArray[np.int64]
    take: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.length)

    def clip(self, row: int) -> Samples:
        return self.samples[self.start[row] : self.start[row] + self.length[row]]

    def speakers(self) -> dict[str, list[int]]:
        """Every fifth speaker is for testing, beginning with the first, and every tenth for
        validation, beginning with the third."""
        known = np.unique(self.speaker).tolist()
        test, valid = known[::5], known[2::10]
        train = [s for s in known if s not in test and s not in valid]
        if not valid or not train:
            raise DataError(f"{len(known)} speakers are too few to hold some of them out: 3.")
        return {"train": train, "valid": valid, "test": test}


def make_digits(out: Path, settings: DigitsSettings) -> bool:
    """False: the same was there already."""
    speech = read_speech(settings)
    facts = {
        "kind": "digits",
        **vars(settings),
        "recordings": Path(settings.recordings).name,
        "index": Path(settings.index).name,
        "rate": speech.rate,
        "crc32": zlib.crc32(speech.samples.data, zlib.crc32(speech.length.tobytes())),
        "speakers": speech.speakers(),
    }
    return make_folder(out, facts, lambda folder: _write(folder, settings, speech))


def read_speech(settings: DigitsSettings) -> Speech:
    samples, rate = _samples(Path(settings.recordings), settings.rate)
    path = Path(settings.index)
    rows = _array(path)
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype.kind not in "iu" or not len(rows):
        raise DataError(
            f"{path} has {rows.dtype} numbers of shape {rows.shape}: not a line of four whole "
            "numbers (speaker, digit, take, number of samples) for each recording."
        )
    speaker, digit, take, length = rows.astype(np.int64).T
    if digit.min() < 0 or digit.max() > 9 or length.min() < 1:
        raise DataError(f"{path}: the second column must be a digit, the last at least 1.")
    if length.sum() != len(samples):
        raise DataError(
            f"{path} tells of {length.sum():,} samples and {settings.recordings} has "
            f"{len(samples):,}: they do not belong together."
        )
    return Speech(samples, rate, speaker, digit, take, np.cumsum(length) - length, length)


def _samples(path: Path, rate: int) -> tuple[Samples, int]:
    if path.suffix == ".npy":
        samples = _array(path)
        if samples.ndim != 1 or samples.dtype != np.int16:
            raise DataError(f"{path} has {samples.dtype} numbers of shape {samples.shape}: not "
                            "a row of int16 samples.")  # fmt: skip
        return samples, rate
    import soundfile

    if not path.is_file():
        raise DataError(f"{path} is no file.")
    try:
        samples, found = soundfile.read(path, dtype="int16", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise DataError(f"{path} cannot be read as audio: {error}") from error
    return np.ascontiguousarray(samples[:, 0]), int(found)


def _array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as an .npy file: {error}") from error
    return array


def _write(folder: Path, settings: DigitsSettings, speech: Speech) -> None:
    with new_array(folder / RECORDINGS, speech.samples.shape, np.int16) as kept:
        kept[:] = speech.samples
    for split, count in zip(SPLITS, (settings.n, settings.valid, settings.test), strict=True):
        _write_strings(folder, split, count, settings, speech)
    speakers = speech.speakers()
    for split, mine in speakers.items():
        rows = np.flatnonzero(np.isin(speech.speaker, mine))
        write_lines(folder / f"digits-{split}.jsonl", _singles(speech, rows, by_digit=True))
    last, before = _last_takes(speech)
    seen = ~np.isin(speech.speaker, speakers["test"])
    lists = {
        "speakers-train": ~(last | before),
        "speakers-valid": before,
        "speakers-test": last,
        "verify-train": seen & ~last,
        "verify-valid": seen & last,
        "verify-test": ~seen,
    }
    for name, wanted in lists.items():
        rows = np.flatnonzero(wanted)
        write_lines(folder / f"{name}.jsonl", _singles(speech, rows, by_digit=False))


def _last_takes(speech: Speech) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which recordings are the last take of all, and which the last but one."""
    takes = np.unique(speech.take)
    if len(takes) < 3:
        raise DataError(f"{len(takes)} takes of each digit are too few to hold two of them out.")
    return speech.take == takes[-1], speech.take == takes[-2]


def _singles(
    speech: Speech, rows: NDArray[np.int64], *, by_digit: bool
) -> Iterator[dict[str, Any]]:
    for row in rows.tolist():
        name, start = NAMES[speech.digit[row]], speech.start[row]
        speaker = f"speaker-{speech.speaker[row]:02d}"
        yield {
            "path": RECORDINGS,
            "rate": speech.rate,
            "start": float(start / speech.rate),
            "end": float((start + speech.length[row]) / speech.rate),
            "label": name if by_digit else speaker,
            "text": name,
            "speaker": speaker,
        }


@dataclass(frozen=True)
class Utterance:
    """A string of digits: which recordings, and where each begins."""

    rows: tuple[int, ...]
    starts: tuple[int, ...]
    length: int


def _write_strings(
    folder: Path, split: str, count: int, settings: DigitsSettings, speech: Speech
) -> None:
    """Lengths first, so that the array on disk has its size from the start."""
    number = SPLITS.index(split)
    mine = speech.speakers()[split]
    by_speaker = [np.flatnonzero(speech.speaker == speaker) for speaker in mine]
    plans = [
        plan_string(np.random.default_rng((settings.seed, number, i)), by_speaker, settings, speech)
        for i in range(count)
    ]
    ends = np.cumsum([plan.length for plan in plans])
    with new_array(folder / f"{split}.npy", (int(ends[-1]),), np.int16) as samples:
        for i, (plan, end) in enumerate(zip(plans, ends, strict=True)):
            rng = np.random.default_rng((settings.seed, number, i, 1))
            samples[end - plan.length : end] = spoken(plan, speech, settings.noise, rng)
    write_lines(folder / f"{split}.jsonl", _strings(f"{split}.npy", plans, ends, speech))


def plan_string(
    rng: np.random.Generator,
    by_speaker: list[NDArray[np.int64]],
    settings: DigitsSettings,
    speech: Speech,
) -> Utterance:
    rows = rng.choice(
        by_speaker[rng.integers(len(by_speaker))], rng.integers(2, settings.longest + 1)
    )
    at = int(rng.uniform(0, settings.gap) * speech.rate)
    starts = []
    for row in rows.tolist():
        starts.append(at)
        pause = rng.uniform(0, settings.gap)
        if settings.overlap and rng.random() < 0.5:
            # Never so much that a digit begins before the one in front of it is half spoken.
            most = 0.5 * speech.length[rows].min() / speech.rate
            pause = -min(rng.uniform(0, settings.overlap), most)
        at += int(speech.length[row]) + int(pause * speech.rate)
    end = starts[-1] + int(speech.length[rows[-1]])
    tail = int(rng.uniform(0, settings.gap) * speech.rate)
    return Utterance(tuple(rows.tolist()), tuple(starts), end + tail)


def spoken(plan: Utterance, speech: Speech, noise: float, rng: np.random.Generator) -> Samples:
    mixed = np.zeros(plan.length, np.float64)
    for row, start in zip(plan.rows, plan.starts, strict=True):
        mixed[start : start + speech.length[row]] += speech.clip(row)
    if noise:
        loudness = float(np.sqrt(np.mean(mixed**2)))
        mixed += rng.normal(0.0, noise * loudness, len(mixed))
    return np.clip(np.rint(mixed), -32768, 32767).astype(np.int16)


def _strings(
    path: str, plans: list[Utterance], ends: Iterable[int], speech: Speech
) -> Iterator[dict[str, Any]]:
    """Times of words are counted from the string's own beginning."""
    for plan, end in zip(plans, ends, strict=True):
        words: list[dict[str, Any]] = []
        for row, start in zip(plan.rows, plan.starts, strict=True):
            first, last = audible(speech.clip(row), speech.rate)
            words.append(
                {
                    "word": NAMES[speech.digit[row]],
                    "start": round(start / speech.rate + first, 4),
                    "end": round(start / speech.rate + last, 4),
                }
            )
        yield {
            "path": path,
            "rate": speech.rate,
            "start": float((end - plan.length) / speech.rate),
            "end": float(end / speech.rate),
            "text": " ".join(word["word"] for word in words),
            "speaker": f"speaker-{speech.speaker[plan.rows[0]]:02d}",
            "words": words,
        }


def audible(clip: Samples, rate: int) -> tuple[float, float]:
    """Seconds at which the audio in a recording begins and ends."""
    frame = max(1, round(FRAME_S * rate))
    n = -(-len(clip) // frame)
    padded = np.zeros(n * frame)
    padded[: len(clip)] = clip
    power_N = (padded.reshape(n, frame) ** 2).mean(-1)
    loud = np.flatnonzero(power_N >= power_N.max() * 10 ** (QUIET_DB / 10))
    return float(loud[0] * frame / rate), float(min(len(clip), (loud[-1] + 1) * frame) / rate)


if __name__ == "__main__":
    assert __doc__
    program(__doc__, DigitsSettings, make_digits)
