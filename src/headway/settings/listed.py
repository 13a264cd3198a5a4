"""Where several are expected, one may be given."""

from __future__ import annotations

from os import PathLike
from typing import Any


def listed(given: Any) -> Any:
    """What was given, one by one. A text or a path is one input, and not its characters."""
    return [given] if isinstance(given, str | bytes | PathLike) else given
