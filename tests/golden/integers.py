"""Pseudorandom numbers that are the same on every machine: hashed integers, no library's generator.

Torch's random numbers differ between processors, and numpy's may differ between versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


def whole_numbers(name: str, n: int) -> NDArray[np.uint64]:
    """`n` integers of 64 bits (splitmix64), with a hash of the name as seed."""
    start = np.frombuffer(sha256(name.encode()).digest()[:8], "<u8")[0]
    with np.errstate(over="ignore"):
        x = start + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fractions(name: str, n: int) -> NDArray[np.float64]:
    """Numbers in [-1, 1), multiples of 2^-15: exact in float16, float32 and float64."""
    return (whole_numbers(name, n) >> np.uint64(48)).astype(np.float64) / 2.0**15 - 1.0


def below(limit: int, name: str, n: int) -> list[int]:
    return [int(x) for x in whole_numbers(name, n) % np.uint64(limit)]


def choice(of: Sequence[T], name: str) -> T:
    return of[below(len(of), name, 1)[0]]


def choices(of: Sequence[T], name: str, n: int) -> list[T]:
    return [of[i] for i in below(len(of), name, n)]
