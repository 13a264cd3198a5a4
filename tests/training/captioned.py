"""Tiny images with captions: two coloured squares, and which is where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (40, 40, 230)}
SIZE = 8


def scene(first: str, second: str) -> tuple[NDArray[np.uint8], str]:
    """Y X C: the first colour on the left half, the second on the right."""
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    image[2:6, :4], image[2:6, 4:] = COLOURS[first], COLOURS[second]
    return image, f"{first} left of {second}"


def write_scenes(folder: Path, n: int = 48, seed: int = 0, name: str = "scenes") -> Path:
    """A stack of images and a manifest; some noise makes every image another one."""
    draw = np.random.default_rng(seed)
    names = list(COLOURS)
    images, lines = [], []
    for number in range(n):
        image, text = scene(*(names[i] for i in draw.integers(0, len(names), 2)))
        noise = draw.integers(0, 20, image.shape)
        images.append((image + noise).astype(np.uint8))
        lines.append({"path": f"{name}.npy", "index": number, "text": text})
    np.save(folder / f"{name}.npy", np.stack(images))
    return write_manifest(folder / f"{name}.jsonl", lines)


def write_manifest(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
