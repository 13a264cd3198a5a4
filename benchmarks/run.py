"""Every benchmark that makes sense on this machine, one after another."""

from __future__ import annotations

import subprocess
import sys

import torch

JOBS = {
    "cuda": [
        ["benchmarks.train_step", "--size", "base"], ["benchmarks.encode"], ["benchmarks.decode"],
        ["benchmarks.gpt2_train"], ["benchmarks.gpt2_documents"], ["benchmarks.gpt2_decode"],
        ["benchmarks.train_run"],
    ],
    "cpu": [
        ["benchmarks.train_step", "--size", "small"],
        ["benchmarks.train_step", "--size", "base", "--tokens", "320", "--rounds", "5"],
        ["benchmarks.encode"], ["benchmarks.decode"], ["benchmarks.gpt2_decode"],
        ["benchmarks.data"], ["benchmarks.engine"], ["benchmarks.page"],
    ],
}  # fmt: skip


def main() -> None:
    for job in JOBS["cuda" if torch.cuda.is_available() else "cpu"]:
        print(f"\n$ python -m {' '.join(job)}", flush=True)
        subprocess.run([sys.executable, "-m", *job], check=True)


if __name__ == "__main__":
    main()
