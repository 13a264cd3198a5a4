"""Tiny images, videos and tones whose class is plain to see or hear."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.settings.run import RunSettings, load_run_settings

SIDES = ("left", "right", "top")
SIZE = 8
RATE = 8000
TINY = {"model.n_layers": 1, "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 64}
SHORT = {"train.precision": "fp32", "train.batch_tokens": 160, "train.micro_tokens": 160,
         "train.optimizer": "adamw", "train.lr": 5e-3, "train.schedule": "linear"}  # fmt: skip


def image(side: str, draw: np.random.Generator, size: int = SIZE) -> NDArray[np.uint8]:
    """Y X, grey: one half is bright."""
    pixels = draw.integers(0, 60, (size, size)).astype(np.uint8)
    half = {
        "left": np.s_[:, : size // 2],
        "right": np.s_[:, size // 2 :],
        "top": np.s_[: size // 2],
    }
    pixels[half[side]] += 150
    return pixels


def write_images(folder: Path, n: int = 60, seed: int = 0) -> str:
    """A folder a class."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    for number in range(n):
        side = SIDES[number % len(SIDES)]
        (folder / side).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image(side, draw)).save(folder / side / f"{number}.png")
    return str(folder)


def write_videos(folder: Path, n: int = 40, seed: int = 0) -> str:
    """They become brighter or darker, as a stack and its list."""
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    videos, lines = [], []
    for number in range(n):
        light_T = np.array([0, 60, 120, 180])[:: 1 if number % 2 else -1]
        noise = draw.integers(0, 60, (4, SIZE, SIZE))
        videos.append((noise + light_T[:, None, None]).astype(np.uint8))
        label = "brighter" if number % 2 else "darker"
        lines.append({"path": "videos.npy", "index": number, "label": label})
    np.save(folder / "videos.npy", np.stack(videos))
    return write_list(folder / "videos.jsonl", lines)


def write_list(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def write_wave(path: Path, pitch: float, draw: np.random.Generator, seconds: float = 0.0) -> None:
    """A tone with a little noise, of 0.1 s or a bit more."""
    n = round(RATE * (seconds or 0.1 + 0.05 * draw.random()))
    tone = 0.4 * np.sin(2 * np.pi * pitch * np.arange(n) / RATE + draw.random())
    samples = tone + 0.02 * draw.standard_normal(n)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((32767 * samples).astype("<i2").tobytes())


def write_speakers(folder: Path, pitches: dict[str, float], n: int = 12, seed: int = 0) -> str:
    """Each speaker hums a tone of their own; a folder each."""
    draw = np.random.default_rng(seed)
    for name, pitch in pitches.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(n):
            write_wave(folder / name / f"{number}.wav", pitch * (1 + 0.02 * draw.random()), draw)
    return str(folder)


def settings_of(task: str, media: str, **changes: Any) -> RunSettings:
    given: dict[str, Any] = {"task": task, "data.media": [media], "data.valid_size": 12}
    given |= TINY | SHORT | {key.replace("__", "."): value for key, value in changes.items()}
    return load_run_settings(None, [], given)
