"""`headway train translate` as people run it, beside the bare step of `train_step` on the same
sentences: what the loop, the data and the search for room cost on the way.

Sentences are of made-up words, one token each, so that their lengths are what was asked for: as in
`train_step`, and some of them up to `--longest` tokens long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.machine import alternating, describe, pick_device, save
from benchmarks.sentences import batches, flat_batch, pair_lengths
from benchmarks.train_step import EAGER, GRAPHED, SIZES, Work, headway_round

Pairs = list[tuple[int, int]]

LETTERS = str.maketrans("0123456789", "abcdefghij")
"""Words of letters: tokenizers part letters from digits."""


def with_long(pairs: Pairs, share: float, longest: int, seed: int = 1) -> Pairs:
    """The same, but a share of them have any length up to `longest`, alike on both sides."""
    random = torch.Generator().manual_seed(seed)
    is_long = torch.rand(len(pairs), generator=random) < share
    lengths = torch.randint(100, longest + 1, (len(pairs),), generator=random)
    return [
        (int(n), int(n)) if long else pair
        for pair, long, n in zip(pairs, is_long, lengths, strict=True)
    ]


def write_corpus(pairs: Pairs, n_words: int, folder: Path) -> list[str]:
    """Two files of sentences; the flags that name them. An end token makes each longer by one."""
    random = torch.Generator().manual_seed(2)
    for side, name in enumerate(("source", "target")):
        with (folder / name).open("w") as file:
            for pair in pairs:
                n = max(1, pair[side] - 1)
                words = torch.randint(n_words, (n,), generator=random).tolist()
                file.write(" ".join(str(word).translate(LETTERS) for word in words) + "\n")
    return ["--source", str(folder / "source"), "--target", str(folder / "target")]


def train(pairs: Pairs, folder: Path, size: str, tokens: int, steps: int, longest: int) -> Any:
    """Rates and padding that the run itself reported, without its first quarter."""
    settings = SIZES[size]
    words = [
        "train", "translate", *write_corpus(pairs, int(0.997 * settings.vocab_size), folder),
        "--out", str(folder / "run"), "tokenizer.kind=words",
        f"tokenizer.vocab_size={settings.vocab_size}", f"data.max_len={longest}",
        "data.max_ratio=100", "data.valid_size=200", f"train.batch_tokens={tokens}",
        f"train.steps={steps}", f"train.eval_every={steps}", "model.preset=transformer-base",
        f"model.d_model={settings.d_model}", f"model.n_layers={settings.n_layers}",
        f"model.n_heads={settings.n_heads}", f"model.d_ff={settings.d_ff}",
        "train.average=1", "decode.max_len=20", "decode.beam=1",
    ]  # fmt: skip
    if pick_device().type == "cuda":
        words.append("train.compile=yes")  # as long runs are by themselves
    machine.python_shown("-m", "headway.cli.main", *words)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    rows = rows[len(rows) // 4 :]
    return {
        "target_tokens_per_s": statistics.median(row["tokens_per_s"] for row in rows),
        "padding": statistics.mean(row["padding"] for row in rows),
        "most_padding": max(row["padding"] for row in rows),
        "waited": statistics.mean(row["stall"] for row in rows),
    }


def bare(pairs: Pairs, size: str, tokens: int, longest: int, rounds: int) -> dict[str, Any]:
    """The step alone on some of these sentences."""
    device, settings = pick_device(), SIZES[size]
    gpu = device.type == "cuda"
    cut = batches(pairs, tokens)[:12]
    fixed = tokens if gpu else None
    flat = [flat_batch(batch, settings.vocab_size, device, fixed, longest) for batch in cut]
    n_targets = sum(target for batch in cut for _, target in batch)
    work = Work(flat=flat, padded=[], n_targets=n_targets, n_tokens=tokens)
    step = headway_round(settings, work, device, GRAPHED if gpu else EAGER)
    took = alternating({"bare": step}, device, rounds)["bare"]
    return {"target_tokens_per_s": n_targets / took}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--tokens", type=int, help="of a step; 25,088 on a GPU, else 600")
    parser.add_argument("--pairs", type=int, default=120_000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--longest", type=int, nargs="*", default=[100, 300])
    parser.add_argument("--share", type=float, default=0.01, help="of sentences over 100 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(words)
    device = pick_device()
    tokens = args.tokens or (25_088 if device.type == "cuda" else 600)
    found: dict[str, Any] = {}
    for longest in args.longest:
        pairs = pair_lengths(args.pairs)
        if longest > 100:
            pairs = with_long(pairs, args.share, longest)
        with tempfile.TemporaryDirectory() as folder:
            run = train(pairs, Path(folder), args.size, tokens, args.steps, longest)
        step = bare(pairs, args.size, tokens, longest, args.rounds)
        ratio = run["target_tokens_per_s"] / step["target_tokens_per_s"]
        found[f"up to {longest} tokens"] = {"train": run, "step": step, "ratio": ratio}
        print(f"up to {longest}: {json.dumps(found[f'up to {longest} tokens'])}", flush=True)
    about = {name: getattr(args, name) for name in ("size", "pairs", "steps", "share")}
    result = {"machine": describe(device), "work": about | {"tokens": tokens}, "lengths": found}
    print(save(f"train-run-{args.size}", device, result))


if __name__ == "__main__":
    main()
