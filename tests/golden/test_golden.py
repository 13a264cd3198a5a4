"""Nothing that people rely on has changed unseen.

`expected/` has what small models of every kind do, first written by 06b66eb. Where a change is
meant, renew just that piece (`python -m tests.golden.make --only answers/classify`) and say why in
CHANGES.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from . import make
from .compare import differences

MOST_BYTES = 5_000_000
SHOWN = 25
"""Differences of a piece that are listed."""


def changes(subject: str, folder: Path, slow: bool = False) -> list[str]:
    """What is not as it was, each with its place, its old and its new value."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [line for piece, maker in make.makers(subject, slow).items()
                for line in _of_piece(subject, piece, maker(folder))]  # fmt: skip
    finally:
        torch.set_num_threads(threads)


def _of_piece(subject: str, piece: str, new: Any) -> list[str]:
    old = make.expected(subject)
    if piece:
        old = old.get(piece, {})
    found = list(differences(old, new, make.key_of(piece, subject)))
    more = [f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return [*found[:SHOWN], *more]


@pytest.mark.parametrize("subject", make.subjects())
def test_nothing_has_changed(subject: str, tmp_path: Path) -> None:
    found = changes(subject, tmp_path)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("subject", [s for s in make.subjects() if make.makers(s, slow=True)])
def test_nothing_slow_has_changed(subject: str, tmp_path: Path) -> None:
    found = changes(subject, tmp_path, slow=True)
    assert not found, "\n" + "\n".join(found)


def test_every_expected_file_is_made_by_something_and_all_are_small() -> None:
    files = [path for path in make.EXPECTED.parent.rglob("*") if path.is_file()]
    named = {path.stem for path in make.EXPECTED.glob("*.json")}
    assert named == set(make.subjects())
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
