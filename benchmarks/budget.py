"""Whether `headway train --budget` is kept: on the machine as it is, and beside other work that
begins or ends midway. Wall clock of the whole command, from outside."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import pick_device, save
from headway.training.estimate import seconds

PAIRS = Path(__file__).parents[1] / "examples" / "data" / "tatoeba-de-en.tsv.gz"
SPIN = "while True: pass"
CASES = {
    "as it is": {"first half": 0, "second half": 0},
    "busy from the middle on": {"first half": 0, "second half": 1},
    "busy up to the middle": {"first half": 1, "second half": 0},
}
"""Where the other processes are."""


def load(n: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(n)]


def end(load: list[subprocess.Popen[bytes]]) -> None:
    for process in load:
        process.kill()
        process.wait()


def trained(words: list[str], out: Path, budget: str, busy: dict[str, int]) -> dict[str, Any]:
    """`busy`: processes that take the cores in the first half of the budget, and in the second."""
    command = [sys.executable, "-m", "headway", "train", "translate", *words]
    load_before, others = os.getloadavg()[0], load(busy["first half"])
    try:
        start = time.perf_counter()
        process = subprocess.Popen([*command, "--out", str(out), "--budget", budget])
        while process.poll() is None and time.perf_counter() - start < seconds(budget) / 2:
            time.sleep(0.1)
        end(others)
        others = load(busy["second half"])
        code = process.wait()
        took = time.perf_counter() - start
    finally:
        end(others)
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = next(entry for entry in reversed(entries) if entry["kind"] == "end")
    plans = [json.loads(line) for line in (out / "plan.jsonl").read_text().splitlines()]
    return {
        "budget_s": seconds(budget), "took_s": took, "code": code, "other_processes": busy,
        "load_before": load_before, "steps": last["step"], "result": last["text"],
        "decisions": sum(line["kind"] != "time" for line in plans),
        "kept": abs(took - seconds(budget)) <= max(20.0, 0.1 * seconds(budget)),
    }  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", default=str(PAIRS))
    parser.add_argument("--budgets", nargs="+", default=["1m", "4m"])
    parser.add_argument("--busy", type=int, default=4, help="processes beside it")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--settings", nargs="*", default=[], help="of the training, key=value")
    args = parser.parse_args(words)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for budget in args.budgets:
            for name in args.cases:
                out = Path(folder) / f"{len(results)}"
                busy = {half: share * args.busy for half, share in CASES[name].items()}
                case = trained(["--pairs", args.pairs, *args.settings], out, budget, busy)
                results[f"{budget}, {name}"] = case
                print(f"{budget}, {name}: {case['took_s']:.1f} s, {case['steps']} steps")
    print(save("budget", pick_device(), {"runs": results}))


if __name__ == "__main__":
    main()
