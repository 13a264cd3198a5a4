"""Preparing a million pairs, as it was before the data had one way in and now, in turns.

Each turn is a process of its own, on as many cores as are asked for. Both read the same files of
invented sentences (`benchmarks.data`) and check, split, learn a vocabulary, tokenise and store.
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
from typing import Literal

import torch

from benchmarks import machine
from benchmarks.data import WORDS, write_corpus
from benchmarks.machine import save

Which = Literal["before", "now"]


def prepared(which: Which, folder: Path) -> None:
    sides = {f"data.{side}": [str(folder / f"{side}.txt")] for side in ("source", "target")}
    if which == "before":
        from tests.golden.before import before

        settings = before("config.run").load_run_settings(None, [], sides)
        before("data.store").prepare(settings, folder / which)
        return
    from headway.config.run import load_run_settings
    from headway.data.prepare import prepare

    prepare("pairs", load_run_settings(None, [], sides), folder / which)


def timed(which: Which, folder: Path, cores: int) -> dict[str, float]:
    """Seconds by the clock, and of processors, of a process that does nothing else."""
    asked = ["--only", which, str(folder), "--cores", str(cores)]
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
    parser.add_argument("--only", nargs=2, help="prepare a folder with `before` or `now`, and stop")
    args = parser.parse_args(words)
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    if args.only:
        os.sched_setaffinity(0, cores)
        prepared(args.only[0], Path(args.only[1]))
        return
    found: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name), args.pairs, WORDS)
        for turn in range(args.turns):
            for which in ("before", "now"):
                shutil.rmtree(Path(name) / which, ignore_errors=True)
                found[which].append(timed(which, Path(name), len(cores)))
                print(f"turn {turn + 1}, {which}: {found[which][-1]['seconds']:.1f} s")
    best = {which: min(one["seconds"] for one in turns) for which, turns in found.items()}
    print(f"{args.pairs:,} pairs: {best['before']:.1f} s before, {best['now']:.1f} s now")
    facts = {"pairs": args.pairs, "cores": len(cores), "load": os.getloadavg()[0], **found}
    print(save("prepare", torch.device("cpu"), {"work": facts, "best_seconds": best}))


if __name__ == "__main__":
    main()
