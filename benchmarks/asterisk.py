"""The Asterisk prompts as data for Whisper: one array of samples, and manifests that point into it.

    python -m benchmarks.asterisk data/asterisk --out data/asterisk16k

`prompts.npy` has all samples at 16 kHz as 16-bit numbers; `all.tsv`, `train.tsv` and `valid.tsv`
have a line a prompt (path, start, end, rate, text). Every fifth prompt of those with words is for
validation, by its text: prompts that say the same are on the same side.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headway.data.media.audio import read_audio

RATE = 16_000
TEXTS = "core-sounds-en.txt"
EVERY = 5


def prompts(folder: Path) -> list[tuple[Path, str]]:
    """The recordings whose text is what is said: not tones, beeps and silence in brackets."""
    found: dict[Path, str] = {}
    for line in (folder / TEXTS).read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition(":")
        path = folder / f"{name.strip()}.wav"
        text = " ".join(_said(text).split())
        if not line.startswith(";") and path.is_file() and re.search(r"\w", text):
            found.setdefault(path, text)
    return list(found.items())


def _said(text: str) -> str:
    return re.sub(r"\[.*?\]|\(.*?\)|<.*?>", "", text)


def words(text: str) -> str:
    """As word errors are counted: lower case, letters, digits and apostrophes within words."""
    kept = re.sub(r"[^\w' ]+", " ", _said(text).lower().replace("’", "'"))
    return " ".join(word.strip("'") for word in kept.split() if word.strip("'"))


def is_valid(text: str) -> bool:
    return zlib.crc32(words(text).encode()) % EVERY == 0


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    found, parts, start = prompts(given.folder), [], 0
    lines: dict[str, list[str]] = {"all": [], "train": [], "valid": []}
    for path, text in found:
        samples_S = read_audio(path, RATE)
        parts.append(np.round(np.clip(samples_S, -1, 1) * 32767).astype(np.int16))
        end = start + len(samples_S)
        line = f"prompts.npy\t{start / RATE:.6f}\t{end / RATE:.6f}\t{RATE}\t{text}\n"
        for name in ("all", "valid" if is_valid(text) else "train"):
            lines[name].append(line)
        start = end
    np.save(given.out / "prompts.npy", np.concatenate(parts))
    for name, rows in lines.items():
        (given.out / f"{name}.tsv").write_text("path\tstart\tend\trate\ttext\n" + "".join(rows))
    counts = ", ".join(f"{len(rows)} in {name}.tsv" for name, rows in lines.items())
    print(f"{given.out}: {counts}; {start / RATE / 60:.1f} minutes")


if __name__ == "__main__":
    main()
