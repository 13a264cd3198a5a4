from collections.abc import Callable
from pathlib import Path
from typing import Any

MAKERS: dict[str, Callable[[Path], Any]] = {}
