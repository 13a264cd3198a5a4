"""Tiny runs and shipped models compute the stored numbers.

`expected/` has losses, trained weights and answers. After an intended change of a number, renew
that piece only (`python -m tests.golden.make --only answers/classify`). State why in CHANGES.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from . import make
from .compare import differences

MOST_BYTES = 500_000
MOST_SHOWN = 25
"""Differences of one piece that are listed."""


@pytest.mark.parametrize("subject", make.SUBJECTS)
def test_the_stored_numbers_are_computed(subject: str, tmp_path: Path) -> None:
    found = changes(subject, tmp_path)
    assert not found, "\n" + "\n".join(found)


def changes(subject: str, folder: Path) -> list[str]:
    """One line per changed value, with its place, the old and the new value."""
    old, known, found = make.expected(subject), make.makers(subject), list[str]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for piece, maker in known.items():
            lines = list(differences(old.get(piece), maker(folder), f"{piece}/{subject}"))
            more = [f"... and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
            found += [*lines[:MOST_SHOWN], *more]
    finally:
        torch.set_num_threads(threads)
    return found


def test_every_expected_piece_is_computed() -> None:
    stored = {path.stem for path in make.EXPECTED.iterdir()}
    assert stored == set(make.SUBJECTS)
    for subject in make.SUBJECTS:
        assert list(make.expected(subject)) == list(make.makers(subject))


def test_expected_files_are_small() -> None:
    files = [path for path in make.EXPECTED.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
