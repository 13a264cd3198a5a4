"""Where a kernel can run: interpreted on the CPU, or compiled on the GPU where there is one."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def kernel_device(device: torch.device) -> torch.device:
    pytest.importorskip("triton")
    if device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton compiles for the GPU here and interprets nothing")
    return device


@pytest.fixture
def interpreted() -> torch.device:
    """For kernels whose fp32 form exists only to be interpreted: compiled, it would be slow."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton compiles for the GPU here and interprets nothing")
    return torch.device("cpu")
