"""What all tests share: a device, and what must not depend on where and beside what they run.

A test that takes `device` runs on the CPU, and the same test on a GPU with `make test-gpu`.
"""

from __future__ import annotations

import gc
import io
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import hypothesis
import pytest
import torch

from headway.data import workers
from headway.nn.devices import pick_device
from headway.progress import Progress

if not torch.cuda.is_available():
    # Triton reads this when a kernel is first imported; the kernels then run on the CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Forcing files to a disk is what many tests would wait for. In memory they lose nothing that is
# tested: a process that is killed leaves there what it had written.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A shell starts what runs in the background with Ctrl-C ignored, and children inherit that: tests
# that interrupt would wait for ever, in this process and in those that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

OPTIONAL = frozenset({
    "av", "ctranslate2", "hatchling", "httpx2", "jiwer", "libretranslatepy", "onnx", "onnxruntime",
    "onnxscript", "openai", "playwright", "pyarrow", "sacremoses", "schemathesis", "sentencepiece",
    "soundfile", "starlette", "tiktoken", "tokenizers", "transformers", "uvicorn", "zensical",
})  # fmt: skip
"""Packages without which the test files that import them are skipped: a machine with a GPU may have
torch and little else."""


class TestFile(pytest.Module):
    """A test file, skipped where it imports one of the `OPTIONAL` packages and that is missing."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error.__cause__
            if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
                package = cause.name.partition(".")[0]
                if package in OPTIONAL:
                    pytest.skip(f"needs {package}, which is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    made: pytest.Module = TestFile.from_parent(parent, path=module_path)
    return made


# The same examples every time, and no limit on time: other work may hold all cores.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")


# Tests cut little into many blocks, and processes to share them take seconds to begin. Those of
# workers say so.
workers.ALONE = 1_000_000


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: it is not searched again and again
    for what could be thrown away."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # extension modules complain of what is still there when Python ends


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    torch.manual_seed(0)
    return pick_device(request.param)


@pytest.fixture
def slow() -> Iterator[Progress]:
    """A pipe, and a clock that goes on for 11 seconds at every look: all work is shown."""
    clock = count(0, 11)
    with Progress(stream=io.StringIO(), clock=lambda: float(next(clock)), beat=None) as progress:
        yield progress
