"""Reduce numbers to a few that can be stored, and list how two results differ.

Words and integers must be equal. Computed numbers may differ slightly, because processors sum in
different orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from .integers import fractions

DIGITS = 7
CLOSE, NEAR_ZERO = 1e-3, 1e-4
"""Tolerances for computed numbers: relative and absolute."""


def digest(*parts: bytes) -> str:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:12]


def array_facts(values: Any) -> str | dict[str, Any]:
    """A hash of an integer array; shape, mean, RMS and a random projection of a float array.

    The projection changes when values trade places.
    """
    array = np.ascontiguousarray(values)
    if array.dtype.kind in "biuS":
        whole = array.astype("<i8") if array.dtype.kind in "iu" else array
        return f"{list(array.shape)} {digest(whole.tobytes())}"
    flat = array.astype(np.float64).reshape(-1)
    found: dict[str, Any] = {"shape": list(array.shape)}
    bad = ~np.isfinite(flat)
    if bad.any():
        found["infinite"] = int(bad.sum())
        flat = np.where(bad, 0.0, flat)
    mixed = fractions(f"{array.shape}", flat.size)
    size = math.sqrt(max(1, flat.size))
    found["sums"] = [rounded(float(x)) for x in
                     (flat.mean() if flat.size else 0.0, np.linalg.norm(flat) / size,
                      flat @ mixed / size)]  # fmt: skip
    return found


def rounded(value: float) -> float:
    if value == 0.0 or not math.isfinite(value):
        return value
    return float(f"{value:.{DIGITS - 1}e}")


def plain(value: Any) -> Any:
    """A JSON value with its numbers rounded."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return rounded(value)
    assert isinstance(value, Sequence), type(value)
    return [plain(item) for item in value]


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """One line per value that differs: its place, the old and the new value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in new:
                yield f"{place}: {shown(old[key])} → gone"
            elif key not in old:
                yield f"{place}: new → {shown(new[key])}"
            else:
                yield from differences(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} → {len(new)} items; {shown(old)} → {shown(new)}"
            return
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{where}[{number}]")
    elif not same(old, new):
        yield f"{where}: {shown(old)} → {shown(new)}"


def same(old: Any, new: Any) -> bool:
    numbers = (int, float)
    if isinstance(old, numbers) and isinstance(new, numbers):
        if isinstance(old, bool) or isinstance(new, bool) or old == new:
            return old == new and type(old) is type(new)
        if isinstance(old, int) and isinstance(new, int):
            return False
        return math.isclose(old, new, rel_tol=CLOSE, abs_tol=NEAR_ZERO)
    return type(old) is type(new) and bool(old == new)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:97]}..."
