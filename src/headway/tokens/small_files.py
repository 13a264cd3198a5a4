"""Read the small text files of a tokenizer, with a limit on their size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.errors import DataError

MAX_FILE = 1 << 29
"""Maximum size of a file in bytes. Larger files are damaged or not tokenizers: the largest
published tokenizers have some ten megabytes."""


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise DataError(f"{path} is too large for a tokenizer: more than {MAX_FILE:,} bytes.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error}.") from error


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}.") from error


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON object. If the file is missing, return an empty object."""
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict):
        raise DataError(f"{path} must contain a JSON object.")
    return found
