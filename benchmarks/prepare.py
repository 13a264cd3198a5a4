"""Preparing a million pairs: check, split, learn a vocabulary, tokenise and store.

Each turn is a process of its own, on as many cores as are asked for; the sentences are invented
(`benchmarks.data`).
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.data import WORDS, write_corpus
from benchmarks.machine import save


def prepared(folder: Path) -> None:
    from headway.data.prepare import prepare
    from headway.settings.run import load_run_settings

    sides = {f"data.{side}": [str(folder / f"{side}.txt")] for side in ("source", "target")}
    prepare(load_run_settings(None, [], sides), folder / "run")


def timed(folder: Path, cores: int) -> dict[str, float]:
    """Seconds by the clock, and of processors, of a process that does nothing else."""
    asked = ["--only", str(folder), "--cores", str(cores)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    machine.python("-m", "benchmarks.prepare", *asked)
    took = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": took, "processor_seconds": used}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", help="prepare this folder, and stop")
    args = parser.parse_args(words)
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    if args.only:
        os.sched_setaffinity(0, cores)
        prepared(Path(args.only))
        return
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name), args.pairs, WORDS)
        for turn in range(args.turns):
            shutil.rmtree(Path(name) / "run", ignore_errors=True)
            found.append(timed(Path(name), len(cores)))
            print(f"turn {turn + 1}: {found[-1]['seconds']:.1f} s")
    best = min(one["seconds"] for one in found)
    print(f"{args.pairs:,} pairs: {best:.1f} s")
    facts = {"pairs": args.pairs, "cores": len(cores), "load": os.getloadavg()[0], "turns": found}
    print(save("prepare", torch.device("cpu"), {"work": facts, "best_seconds": best}))


if __name__ == "__main__":
    main()
