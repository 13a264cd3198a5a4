"""Tiny data for every kind of column: a row of the table says what it needs, and has it from here.

Nothing knows of tasks. Every example is of one of three classes, which all its columns show: a word
of a text, the bright half of an image, the tone of a recording. So whatever is asked of whatever
can be learnt. A new kind of data needs an entry in `KINDS`.
"""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headway.specs.needs import Need
from headway.specs.tasks import Spec

N = 44
"""Examples of a tiny run."""

CLASSES = ("neg", "pos", "so")
_MOODS = ("awful", "great", "ok")
_WORDS = ("film", "plot", "the", "actor", "music", "scene", "and", "long", "of", "day")
RATE = 8000

Value = Callable[[int, Need, Path], Any]
"""The value of one example, and a folder for files that it may need."""


def _draw(number: int, what: str) -> np.random.Generator:
    return np.random.default_rng([number, *what.encode()])


def text(number: int, need: Need, folder: Path) -> str:
    """Of an input two to eight words, of a target fewer and shorter ones."""
    draw = _draw(number, need.role)
    if need.role == "target":
        return " ".join(["ab", "cd", "da"][number % 3 :][: 1 + number % 2] + ["bc"] * (number % 4))
    words = [str(word) for word in draw.choice(_WORDS, draw.integers(2, 8))]
    words.insert(int(draw.integers(len(words) + 1)), _MOODS[number % 3])
    return " ".join(words)


def label(number: int, need: Need, folder: Path) -> str:
    return CLASSES[number % 3]


def labels(number: int, need: Need, folder: Path) -> list[str]:
    """None, one or two."""
    return [name for n, name in enumerate(CLASSES) if number % 3 == n or (number + n) % 4 == 0][
        : number % 7
    ]


def quantity(number: int, need: Need, folder: Path) -> float:
    return 10.0 + 2.5 * (number % 3)


def words(number: int, need: Need, folder: Path) -> list[str]:
    return [*text(number, need, folder).split(), "mister", "Ada", "Byron", "in", "Rome"]


def tags(number: int, need: Need, folder: Path) -> list[str]:
    n = len(words(number, Need(name="words", kinds=frozenset({"words"}), role="input"), folder)) - 5
    return ["O"] * n + ["O", "B-per", "I-per", "O", "B-loc"]


def image(number: int, need: Need, folder: Path) -> str:
    """Grey, eight by eight; one half is bright."""
    pixels_YX = _draw(number, "image").integers(0, 60, (8, 8)).astype(np.uint8)
    pixels_YX[(np.s_[:, :4], np.s_[:, 4:], np.s_[:4])[number % 3]] += 150
    return _saved(folder / f"image-{number:02}.npy", pixels_YX)


def video(number: int, need: Need, folder: Path) -> str:
    """Four frames that become brighter, darker or neither."""
    pixels_FYX = _draw(number, "video").integers(0, 60, (4, 8, 8)).astype(np.uint8)
    light_F = np.array([0, 60, 120, 180], np.uint8)
    light_F = (light_F, light_F[::-1], np.full(4, 90, np.uint8))[number % 3]
    return _saved(folder / f"video-{number:02}.npy", pixels_FYX + light_F[:, None, None])


def _saved(path: Path, pixels: np.ndarray) -> str:
    if not path.exists():
        np.save(path, pixels)
    return str(path)


def audio(number: int, need: Need, folder: Path) -> str:
    """A tone of less than half a second."""
    path, draw = folder / f"audio-{number:02}.wav", _draw(number, "audio")
    if not path.exists():
        n = int(draw.integers(2400, 3600))
        phase_N = np.arange(n) % (2 * (4, 7, 12)[number % 3])
        samples_N = 900 * phase_N - 6000 + draw.integers(-100, 100, n)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(samples_N.astype("<i2").tobytes())
    return str(path)


def duel(number: int, need: Need, folder: Path) -> str:
    """A file that names two recordings."""
    path = folder / f"pair-{number:02}.duel"
    names = [Path(audio(n, need, folder)).name for n in (number, (7 * number + 1) % N)]
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return str(path)


KINDS: dict[str, Value] = {
    "text": text, "captions": text, "label": label, "words": words, "tags": tags, "image": image,
    "video": video, "audio": audio, "duels": duel, "labels": labels, "number": quantity,
}  # fmt: skip
"""By the kinds of the table of tasks."""

SMALL: dict[str, dict[str, Any]] = {
    "text": {"model.max_len": 40},
    "image": {"model.image.patch": 4},
    "video": {"model.image.patch": 4},
    "audio": {"model.audio.bands": 20},
}
"""Settings with which models of these kinds are tiny."""

MEDIA = {"image": "image", "video": "video", "audio": "audio", "duels": "audio"}
"""What tables call a column that holds files."""


def kind_of(need: Need) -> str:
    """Of several the one of its own: what is listed last above."""
    return max(need.kinds, key=list(KINDS).index)


def name_of(need: Need) -> str:
    return MEDIA.get(kind_of(need), need.name)


def table(row: Spec, folder: Path, n: int = N, first: int = 0) -> list[dict[str, Any]]:
    """Examples with all columns that the row needs."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number in range(first, first + n):
        one = {}
        for need in row.needs:
            if not need.optional:
                one[name_of(need)] = KINDS[kind_of(need)](number, need, folder)
        found.append(one)
    return found


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """As a file that the command line reads."""
    lines = [json.dumps(one, ensure_ascii=False) for one in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)
