"""Whether anything has become slower since the house began to be rebuilt: the old package beside
the new one, taking turns, so that both see the same machine.

    python -m benchmarks.floor                       # all cases
    python -m benchmarks.floor --cases help first    # some

What is compared is what people run: `headway --help` and a first answer in a fresh process; a
second answer, many answers, and training (tokens a second that the run itself reports) in one that
has both packages loaded. Each round asks both, first the one and then the other; a case's ratio is
the median of the rounds' ratios of time, new by old: 1.02 is 2 % slower. The exit code is 1 where a
ratio is above `--limit` by more than the rounds differ among themselves.

The old package is taken out of git (`tests/golden/before.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.machine import pick_device, save
from benchmarks.sentences import pair_lengths
from benchmarks.train_run import write_corpus
from tests.golden import before

SYSTEMS = {"old": before.NAME, "new": "headway"}
CASES = ("help", "first", "second", "many", "train")
MODEL = "tatoeba-de-en"
TEXT = "Der alte Mann liest ein Buch."

Measure = Callable[[str], float]
"""Seconds that the package of this name takes."""


@dataclass(frozen=True)
class Size:
    """A model to train and how much of it is a step."""

    preset: str
    tokens: int
    words: int = 2000
    changes: tuple[str, ...] = ()


SMALLEST = tuple(f"model.{name}" for name in ("d_model=16", "n_heads=2", "n_layers=1", "d_ff=32"))
SIZES = {
    "tiny": Size("transformer-tiny", 2048),
    "base": Size("transformer-base", 320, 16_000),
    "toy": Size("transformer-tiny", 110, 60, SMALLEST),
}


def fresh(words: Sequence[str], package: str) -> float:
    """A command in a process of its own, from its start to its end."""
    start = time.perf_counter()
    machine.python("-m", f"{package}.cli.main", *words)
    return time.perf_counter() - start


def here(words: Sequence[str], package: str) -> float:
    """The same in this process, where everything is imported by then."""
    command = import_module(f"{package}.cli.main").main
    start = time.perf_counter()
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        assert command(list(words)) == 0, f"{package} {' '.join(words)} failed"
    return time.perf_counter() - start


def trained(words: Sequence[str], n: list[int], root: Path, package: str) -> float:
    """Seconds a thousand tokens, as the run reports them for its later steps."""
    n[0] += 1
    out = root / f"{package}-{n[0]}"
    here([*words, "--out", str(out)], package)
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    return 1000 / statistics.median(row["tokens_per_s"] for row in rows[len(rows) // 4 :])


def training(size: Size, steps: int, threads: int, root: Path) -> Measure:
    root.mkdir()
    corpus = write_corpus(pair_lengths(max(60, steps * size.tokens // 20)), size.words, root)
    words = [
        "train", "translate", *corpus, "tokenizer.kind=words", "data.valid_size=8",
        f"model.preset={size.preset}", *size.changes, f"train.batch_tokens={size.tokens}",
        f"train.steps={steps}", f"train.eval_every={steps}", "train.average=1",
        "decode.beam=1", "decode.max_len=4",
    ]  # fmt: skip
    if pick_device().type == "cpu":
        words.append(f"train.threads={threads}")
    return partial(trained, words, [0], root)


def measures(args: argparse.Namespace, root: Path) -> dict[str, Measure]:
    answer = ["predict", MODEL, "--text", TEXT]
    many = root / "many.txt"
    many.write_text("".join(f"{TEXT[:-1]} {n % 90}.\n" for n in range(args.lines)))
    found: dict[str, Measure] = {
        "help": partial(fresh, ["--help"]),
        "first": partial(fresh, answer),
        "second": partial(here, answer),
        "many": partial(here, ["predict", MODEL, str(many), "--out", str(root / "answers.txt")]),
    }
    if "train" in args.cases:
        for name in args.sizes:
            steps = args.steps or (60 if name == "tiny" else 12)
            found[f"train {name}"] = training(SIZES[name], steps, args.threads, root / name)
    return {name: work for name, work in found.items() if name.split()[0] in args.cases}


def compared(measure: Measure, rounds: int) -> dict[str, Any]:
    """Each round asks both; who is first changes from round to round."""
    times: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for number in range(rounds):
        order = list(SYSTEMS) if number % 2 else list(reversed(SYSTEMS))
        for name in order:
            times[name].append(measure(SYSTEMS[name]))
    ratios = [new / old for old, new in zip(times["old"], times["new"], strict=True)]
    middle = statistics.median(ratios)
    # The standard error of a median, from the middle distance of the rounds to it.
    apart = statistics.median(abs(ratio - middle) for ratio in ratios)
    return {
        **{name: statistics.median(values) for name, values in times.items()},
        "ratio": middle,
        "uncertain": 1.86 * apart / rounds**0.5,
        "ratios": ratios,
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "base"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, help="of a training; 60 of tiny, 12 of base")
    parser.add_argument("--lines", type=int, default=200, help="to translate")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit", type=float, default=1.03)
    args = parser.parse_args(words)
    torch.set_num_threads(args.threads)
    folder = str(before.make())
    before.before("cli.main")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [folder, os.environ.get("PYTHONPATH", "")])
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for name, measure in measures(args, Path(root)).items():
            if name.split()[0] not in ("help", "first"):  # the others begin with all in memory
                for package in SYSTEMS.values():
                    measure(package)
            found[name] = compared(measure, args.rounds)
            row = found[name]
            print(
                f"{name}: old {row['old']:.4g} s, new {row['new']:.4g} s, "
                f"ratio {row['ratio']:.3f} ± {row['uncertain']:.3f}", flush=True,
            )  # fmt: skip
    about = {name: getattr(args, name) for name in ("rounds", "steps", "lines", "threads")}
    result = {"work": about | {"old": before.COMMIT[:12]}, "cases": found}
    print(save("floor", pick_device(), result))
    slow = [n for n, row in found.items() if row["ratio"] - row["uncertain"] > args.limit]
    for name in slow:
        print(f"{name} is slower than the floor allows: {found[name]['ratio']:.3f}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
