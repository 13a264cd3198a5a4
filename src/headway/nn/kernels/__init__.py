"""Triton kernels. They are imported only where they are used, and each has an equivalent in
PyTorch.

Without a GPU, they run in Triton's interpreter (TRITON_INTERPRET=1), so tests can compare each
kernel with its equivalent on any machine.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def _found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # an import hook may raise it
        return False


HAS_TRITON = _found("triton")
"""Whether Triton is installed. It is not available on all platforms; without it, the PyTorch
equivalents are used."""


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a CUDA device; 1 for other devices."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
