"""Fixtures of all tests of looking inside."""

from __future__ import annotations

from tests.inside.browser import browser

__all__ = ["browser"]
