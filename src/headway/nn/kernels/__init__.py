"""Triton kernels. They are imported only where they are used; each has an equivalent in torch.

Without a GPU, they run in Triton's interpreter (TRITON_INTERPRET=1). The tests use it to compare
the kernels with their equivalents on any machine.
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
"""False on platforms without Triton, where the equivalents in torch are used."""


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of the device; 1 if it is not a CUDA device."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
