"""From text files to token arrays: pairs a second and the memory it takes, for a million pairs.

The sentences are made of invented words with the frequencies of a natural language, so that the
vocabulary keeps growing. Preparing means all of it: check, split, tokenizer, tokenising, storing.
Batching is then timed alone, against what training on a GPU reads in a second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import peak_of_child, save
from headway.data.prepare import prepare
from headway.data.store import Columns, load_prepared
from headway.settings.run import load_run_settings
from headway.tasks.preprocess.text import SourceTextDataset
from headway.tasks.seq2seq_dataset import Seq2SeqDataset

WORDS = 200_000
MEAN_WORDS = 18


def write_corpus(folder: Path, n_pairs: int, n_words: int = WORDS, seed: int = 0) -> None:
    draw = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    for side in ("source", "target"):
        sizes = draw.integers(2, 12, n_words)
        words = np.array(["".join(draw.choice(letters, size)) for size in sizes])
        with (folder / f"{side}.txt").open("w", encoding="utf-8") as file:
            for first in range(0, n_pairs, 10_000):
                lengths = np.random.default_rng([seed, first]).poisson(MEAN_WORDS, 10_000) + 1
                ranks = np.minimum(draw.zipf(1.2, int(lengths.sum())) - 1, n_words - 1)
                parts = np.split(words[ranks], np.cumsum(lengths)[:-1])
                rows = parts[: n_pairs - first]
                file.writelines(" ".join(part) + ".\n" for part in rows)


def prepared(folder: Path) -> float:
    sides = {f"data.{side}": [str(folder / f"{side}.txt")] for side in ("source", "target")}
    settings = load_run_settings(None, [], sides)
    start = time.perf_counter()
    prepare(settings, folder / "run")
    return time.perf_counter() - start


def batching(pairs: Columns, folder: Path) -> float:
    """Target tokens a second that one thread puts into batches of 25,000."""
    words = load_prepared(folder / "run").vocabularies
    made = Seq2SeqDataset.of(
        SourceTextDataset(pairs["source"], words.source), pairs["target"], words.target
    )
    rows = np.random.default_rng(0).permutation(len(made))[:50_000]
    parts = np.array_split(rows, 50)
    start = time.perf_counter()
    n_targets = sum(
        made.batch(part, torch.device("cpu")).streams[1].layout.n_rows for part in parts
    )
    return n_targets / (time.perf_counter() - start)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=WORDS, help="of the invented language")
    parser.add_argument("--only", type=Path, help="prepare this folder and stop")
    args = parser.parse_args(words)
    if args.only:
        prepared(args.only)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder, args.pairs, args.words)
        start = time.perf_counter()
        peak = peak_of_child("benchmarks.data", ["--only", str(folder)])
        took = time.perf_counter() - start
        empty = folder / "small"
        empty.mkdir()
        write_corpus(empty, min(1000, args.pairs), args.words)
        base = peak_of_child("benchmarks.data", ["--only", str(empty)])
        rate = batching(load_prepared(folder / "run").train, folder)
    print(f"{args.pairs:,} pairs in {took:.0f} s: {args.pairs / took:,.0f} pairs/s")
    print(f"peak memory {peak / 2**20:,.0f} MiB, of which {base / 2**20:,.0f} for a tiny corpus")
    print(f"batching: {rate:,.0f} target tokens/s in one thread")
    found = {
        "pairs": args.pairs,
        "seconds": took,
        "peak_memory_bytes": peak,
        "tiny_corpus_bytes": base,
        "batching_target_tokens_per_s": rate,
    }
    print(save("data", torch.device("cpu"), {"work": found}))


if __name__ == "__main__":
    main()
