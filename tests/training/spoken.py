"""Speech that a tiny model learns in seconds: every letter is a tone, every space a pause."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 8000
TONES = {"a": 300.0, "b": 520.0, "c": 900.0, "d": 1500.0}
LETTER_S, PAUSE_S = 0.06, 0.06

Samples = NDArray[np.float32]


def spoken_audio(
    text: str, seed: int = 0, pause_s: float = PAUSE_S
) -> tuple[Samples, list[dict[str, Any]]]:
    """The audio of a text, and when each word begins and ends."""
    draw = np.random.default_rng([seed, *map(ord, text)])
    parts: list[Samples] = [np.zeros(int(0.03 * RATE), np.float32)]
    words: list[dict[str, Any]] = []
    for word in text.split():
        start = sum(map(len, parts)) / RATE
        for letter in word:
            n = int(LETTER_S * RATE * draw.uniform(0.85, 1.15))
            phase = 2 * np.pi * TONES[letter] * np.arange(n) / RATE
            parts.append((0.3 * np.sin(phase) * np.hanning(n) ** 0.25).astype(np.float32))
        end = sum(map(len, parts)) / RATE
        words.append({"word": word, "start": start, "end": end})
        parts.append(np.zeros(int(pause_s * RATE * draw.uniform(0.8, 1.2)), np.float32))
    audio = np.concatenate(parts)
    return audio + draw.normal(0, 1e-3, len(audio)).astype(np.float32), words


def texts(n: int, seed: int) -> list[str]:
    """No letter stands beside itself, so that even tones of one pitch can be told apart."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        words = []
        for _ in range(draw.integers(1, 4)):
            letters = [str(draw.choice(list(TONES)))]
            while len(letters) < draw.integers(1, 4):
                letters.append(str(draw.choice([x for x in TONES if x != letters[-1]])))
            words.append("".join(letters))
        found.append(" ".join(words))
    return found


def write_wav(path: Path, samples: Samples, rate: int = RATE) -> str:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return str(path)


def write_manifest(folder: Path, name: str, chosen: list[str], seed: int = 0) -> str:
    """All recordings in one file, and a line for each in a list."""
    recordings = [spoken_audio(text, seed) for text in chosen]
    write_wav(folder / f"{name}.wav", np.concatenate([audio for audio, _ in recordings]))
    lines, at = [], 0
    for text, (audio, words) in zip(chosen, recordings, strict=True):
        end = at + len(audio)
        lines.append({"path": f"{name}.wav", "start": at / RATE, "end": end / RATE, "text": text,
                      "words": words})  # fmt: skip
        at = end
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)
