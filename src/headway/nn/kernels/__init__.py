"""Triton kernels. Imported only where they are used; each has a twin in plain torch.

Without a GPU they run in Triton's interpreter (TRITON_INTERPRET=1), which is how the tests hold
the very code of the kernels to their twins on any machine.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def _found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # something on the import path refuses to look
        return False


HAS_TRITON = _found("triton")
"""False on platforms that torch serves without it; the twins in plain torch then do the work."""


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of the device: how much can run at once."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
