"""Whisper on the Asterisk prompts: our greedy transcripts beside transformers', and word errors.

    python -m benchmarks.whisper_transcripts runs/whisper-tiny data/asterisk16k/all.tsv

The reference is `generate` of `WhisperForConditionalGeneration` on the exported folder, with its
own feature extractor, one recording at a time. Word errors are counted twice: without case and
punctuation (`plain`), and after Whisper's own normaliser of English, as its paper counts
(`whisper`; it writes numbers in digits and takes spellings for one). `--no-reference` counts word
errors alone, of any run that transcribes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.asterisk import RATE
from benchmarks.machine import save
from benchmarks.whisper_speed import Wave, hugging_face, ours
from headway.interop.hf.export import write
from headway.metrics.speech import without_case_and_punctuation, word_errors
from headway.tasks.loaded_run import open_plain

Normalise = Callable[[str], str]


def read(manifest: Path) -> tuple[list[Wave], list[str]]:
    lines = [line.split("\t") for line in manifest.read_text(encoding="utf-8").splitlines()[1:]]
    samples = np.load(manifest.parent / lines[0][0], mmap_mode="r")
    waves = [
        np.array(samples[round(float(start) * RATE) : round(float(end) * RATE)])
        for _, start, end, _, _ in lines
    ]
    return waves, [line[4] for line in lines]


def normalisers() -> dict[str, Normalise]:
    found: dict[str, Normalise] = {"plain": without_case_and_punctuation}
    try:
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer
    except ImportError:
        return found
    english: Any = EnglishTextNormalizer({})
    return found | {"whisper": lambda text: str(english(text))}


def errors(said: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Words wrong in a hundred, by both ways to count."""
    found = {}
    for name, normalise in normalisers().items():
        pairs = [(normalise(a), normalise(b)) for a, b in zip(said, texts, strict=True)]
        pairs = [(a, b) for a, b in pairs if b]
        found[name] = 100 * word_errors([b for _, b in pairs], [a for a, _ in pairs]).rate
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--first", type=int, help="only so many recordings")
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(words)
    torch.set_num_threads(args.threads)
    run = open_plain(args.run)
    waves, texts = read(args.manifest)
    waves, texts = waves[: args.first], texts[: args.first]
    transcribe = ours(run, "fp32")
    mine = [transcribe(wave) for wave in waves]
    results: dict[str, Any] = {"recordings": len(waves), "word_errors": errors(mine, texts)}
    if not args.no_reference:
        with tempfile.TemporaryDirectory() as name:
            write(run, Path(name))
            reference = hugging_face(Path(name))
            theirs = [reference(wave) for wave in waves]
        results["equal"] = sum(a == b for a, b in zip(mine, theirs, strict=True))
        results["differ"] = [
            {"ours": a, "theirs": b} for a, b in zip(mine, theirs, strict=True) if a != b
        ]
    print(json.dumps(results, indent=1, ensure_ascii=False))
    print(save("whisper-transcripts", torch.device("cpu"), results))


if __name__ == "__main__":
    main()
