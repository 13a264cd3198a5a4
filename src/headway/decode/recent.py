"""Searches that were made before, for whoever asks for the same again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")

MOST = 4
"""On a GPU a search holds the steps that it has recorded, and their memory."""


class Recent:
    """The last few things that were made, by what they were made for."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            found = self._made.pop(key) if key in self._made else make()
            self._made[key] = found
            while len(self._made) > self.most:
                del self._made[next(iter(self._made))]
            return cast(T, found)
