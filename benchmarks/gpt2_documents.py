"""GPT-2 trained on documents by `headway.train`: speed with its attention dropout and without.

Documents have mixed lengths, as ordinary text does, or fill the window of 1,024 tokens. Words are
made up, one token each, so that lengths are what was asked for. A run is compiled and recorded as
any long run of this preset; it ends when it has reported its speed `--reports` times, once per 50
steps, and the first report, which includes compilation, does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import headway
from benchmarks.machine import add_out, pick_device, save

RATES = (0.1, 0.0)
"""Attention dropout: that of the preset, and none."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Enough(Exception):
    """Ends a run whose speed is known, without its evaluation."""


def document_lengths(n_words: int, longest: int) -> list[int]:
    """Lengths with a median of 200 words and a long tail, cut at `longest`; `n_words` in all."""
    draw, lengths = random.Random(0), [0]
    while sum(lengths) < n_words:
        lengths.append(min(longest, max(8, round(draw.lognormvariate(5.3, 0.9)))))
    return lengths[1:]


def write_documents(path: Path, lengths: Sequence[int], n_known: int) -> None:
    """One document per line; frequent words are few, as in real text."""
    draw = random.Random(1)
    words = ["".join(draw.choices(LETTERS, k=3 + i % 6)) for i in range(n_known)]
    total, weights = 0.0, []
    for rank in range(n_known):
        total += 1 / (rank + 20)
        weights.append(total)
    with path.open("w") as file:
        for length in lengths:
            file.write(" ".join(draw.choices(words, cum_weights=weights, k=length)) + "\n")


def speed(
    text: Path, out: Path, rate: float, reports: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Tokens per second and the share of dummy rows, as the run itself reports them."""
    found: list[Mapping[str, Any]] = []

    def hear(line: Mapping[str, Any]) -> None:
        if line["kind"] == "train":
            found.append(dict(line))
        if len(found) > reports:
            raise Enough

    torch.compiler.reset()
    start = time.perf_counter()
    with suppress(Enough):
        headway.train(
            "complete", text=str(text), preset="gpt2", out=out, on=hear, quiet=True,
            settings={
                "data.unit": "line", "data.valid_size": 8, "tokenizer.kind": "words",
                "tokenizer.vocab_size": 50_257, "train.steps": 20_000,
                "train.eval_every": 20_000, "train.save_every": 20_000,
                "train.batch_tokens": 32_768, "model.attention_dropout": rate, **settings,
            },
        )  # fmt: skip
    rows = found[1:] or found
    return {
        "tokens_per_s": statistics.median(row["tokens_per_s"] for row in rows),
        "padding": statistics.mean(row["padding"] for row in rows),
        "reports": len(rows),
        "took_s": time.perf_counter() - start,
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=3_000_000, help="of all documents")
    parser.add_argument("--known", type=int, default=60_000, help="different words")
    parser.add_argument("--longest", type=int, default=1023, help="words of a document")
    parser.add_argument("--reports", type=int, default=4)
    parser.add_argument("--settings", nargs="*", default=[], help="KEY=JSON, more settings")
    add_out(parser)
    args = parser.parse_args(words)
    pairs = (setting.split("=", 1) for setting in args.settings)
    more = {key: json.loads(value) for key, value in pairs}
    mixed = document_lengths(args.words, args.longest)
    full = [args.longest] * max(9, args.words // args.longest)
    table: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, lengths in {"mixed lengths": mixed, "full windows": full}.items():
            text, rows = folder / kind.replace(" ", "-"), {}
            write_documents(text, lengths, args.known)
            for rate in RATES:
                rows[f"{rate:g}"] = speed(text, folder / f"{text.name}-{rate:g}", rate,
                                          args.reports, more)  # fmt: skip
                print(f"{kind}, attention dropout {rate:g}: {rows[f'{rate:g}']}", flush=True)
            with_dropout, without = (rows[f"{rate:g}"]["tokens_per_s"] for rate in RATES)
            table[kind] = {"dropout": rows, "ratio": with_dropout / without}
            print(f"{kind}: {table[kind]['ratio']:.3f} of the speed without", flush=True)
    about = {"words": args.words, "documents": len(mixed), "mean": statistics.mean(mixed)}
    print(save("gpt2-documents", pick_device(), {"work": about, "documents": table}, args.out))


if __name__ == "__main__":
    main()
