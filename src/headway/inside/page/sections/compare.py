"""Two looks side by side. What they share is worked out once for the page: see `comparing.py`."""

from __future__ import annotations

from typing import Any


def section(looked: Any) -> None:
    """No look has one of its own."""
    return None
