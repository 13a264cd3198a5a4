"""A test that takes `device` runs on the CPU, and the same test on a GPU with `make test-gpu`."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads this when a kernel is first imported; the kernels then run on the CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    torch.manual_seed(0)
    return torch.device(request.param)
