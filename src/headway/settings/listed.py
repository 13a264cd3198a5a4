"""Accept a single value where a list is expected."""

from __future__ import annotations

from os import PathLike
from typing import Any


def ensure_list(given: Any) -> Any:
    """Wrap a single text or path in a list; other values are returned unchanged."""
    return [given] if isinstance(given, str | bytes | PathLike) else given
