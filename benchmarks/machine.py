"""What this machine is and the most it can do, so that every result says where it was measured."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median wall time of one call."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def alternating(
    systems: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, float]:
    """Median seconds of each system's work, taking turns so that all see the same machine."""
    threads = torch.get_num_threads()
    for work in systems.values():
        torch.set_num_threads(threads)  # CTranslate2 leaves its caller with one
        work()
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, work in systems.items():
            torch.set_num_threads(threads)
            times[name].append(seconds(work, device, 1))
    return {name: statistics.median(values) for name, values in times.items()}


PEAK_SIZES = {"cuda": (8192, 1 << 32), "cpu": (2048, 1 << 28)}
"""Rows of the square matrices, and bytes of the copy."""


def peaks(device: torch.device) -> dict[str, float]:
    """The best matrix product and copy that torch reaches here, on random data."""
    size, n_bytes = PEAK_SIZES[device.type]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.empty(n_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    for _ in range(3):
        a @ b
        target.copy_(source)
    product = seconds(lambda: a @ b, device, 20)
    copy = seconds(lambda: target.copy_(source), device, 10)
    return {"tflops": 2 * size**3 / product / 1e12, "copy_gb_s": 2 * n_bytes / copy / 1e9}


def python(*words: str) -> str:
    """What a fresh `python words` prints."""
    command = [sys.executable, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def python_shown(*words: str) -> None:
    """A fresh `python words`, and what it says as it comes."""
    subprocess.run([sys.executable, *words], check=True)


def side_by_side(work: Sequence[Callable[[], object]], lanes: int, cores: int) -> None:
    """Each of these, so many at a time, each at a time with so many cores of its own, which the
    processes that it starts have too."""
    own = sorted(os.sched_getaffinity(0))
    if lanes * cores > len(own):
        raise SystemExit(f"{lanes} times {cores} cores are more than the {len(own)} there are.")
    free: queue.Queue[list[int]] = queue.Queue()
    for lane in range(lanes):
        free.put(own[lane * cores : (lane + 1) * cores])

    def one(job: Callable[[], object]) -> None:
        mine = free.get()
        os.sched_setaffinity(0, mine)  # of this thread alone
        try:
            job()
        finally:
            free.put(mine)

    with ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(one, job) for job in work]:
            done.result()


def peak_of_child(module: str, words: list[str]) -> int:
    """Bytes a fresh process needs at its highest to run `python -m module words`."""
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run([sys.executable, '-m', *sys.argv[1:]], check=True, stdout=sys.stderr);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    return int(python("-c", code, module, *words).split()[-1]) * 1024


def describe(device: torch.device) -> dict[str, Any]:
    versions = {}
    for name in ("torch", "transformers", "triton", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if gpu else _cpu_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.date.today().isoformat(),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="folder for the result; benchmarks/results")


def save(
    name: str, device: torch.device, results: dict[str, Any], folder: Path | None = None
) -> Path:
    """Write `NAME-DEVICE.json` into the folder; where none is given, into $OUT or `results/`."""
    folder = folder or Path(os.environ.get("OUT", RESULTS))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{device.type}.json"
    record = {"machine": describe(device), **results}
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path
