"""Every benchmark that makes sense on this machine, one after another."""

from __future__ import annotations

import subprocess
import sys

import torch


def main() -> None:
    base = ["benchmarks.train_step", "--size", "base"]
    if torch.cuda.is_available():
        jobs = [
            [*base, "--compiled-peers"], ["benchmarks.encode"], ["benchmarks.decode"],
            ["benchmarks.gpt2_train"], ["benchmarks.gpt2_decode"],
        ]  # fmt: skip
    else:
        small = ["benchmarks.train_step", "--size", "small"]
        steps = [small, [*base, "--tokens", "320", "--rounds", "5"]]
        jobs = [
            *steps, ["benchmarks.encode"], ["benchmarks.decode"], ["benchmarks.gpt2_decode"],
            ["benchmarks.data"], ["benchmarks.engine"], ["benchmarks.page"],
        ]  # fmt: skip
    for job in jobs:
        print(f"\n$ python -m {' '.join(job)}", flush=True)
        subprocess.run([sys.executable, "-m", *job], check=True)


if __name__ == "__main__":
    main()
