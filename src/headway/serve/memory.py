"""Memory of a server: size of a model, size of the process, and a limit on memory arenas."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from torch import nn

from headway.nn.linear import Linear

M_ARENA_MAX, ARENAS = -8, 2
"""Key of glibc's option for the maximum number of memory arenas, and its value.

By default each thread has its own arena, which keeps freed memory. Eight loaded translators take
723 MB with two arenas, and 833 MB with one arena per thread.
"""


def share_arenas() -> None:
    """Limit glibc's memory allocator to two arenas for all threads. This has no effect with other C
    libraries."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


def model_bytes(models: Iterable[nn.Module]) -> int:
    """Return the size in bytes of a model's weights and their packed copies
    (`nn/cpu_packed.py`)."""
    total = 0
    for model in models:
        held = {tensor.data_ptr(): tensor for tensor in [*model.parameters(), *model.buffers()]}
        total += sum(tensor.numel() * tensor.element_size() for tensor in held.values())
        layers = (part for part in model.modules() if isinstance(part, Linear))
        total += sum(layer.packed.n_bytes for layer in layers if layer.packed is not None)
    return total


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system does not report
    it."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0
