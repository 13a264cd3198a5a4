"""Two looks side by side. What they share is worked out once for the page: see `comparing.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.inside.page.look import Looked


def section(looked: Looked) -> None:
    """No look has one of its own."""
    return None
