"""Read sentence pairs from aligned files or tables, and filter them by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data.files import is_stream, spool
from headway.data.source import pair_source
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.specs.tasks import SPECS
from headway.storage import work_folder

TextPair = tuple[str, str]
"""Source text and target text."""

TASK = next(spec.name for spec in SPECS.values() if spec.reads_pairs)


def read_pairs(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], settings: DataSettings
) -> Iterator[TextPair]:
    """Yield all pairs in the order of the files, in bounded memory."""
    with work_folder() as folder:
        again = [_rereadable(path, folder) for path in pairs]
        run = RunSettings(task=TASK, data=settings)
        for example in pair_source(run, again, source, target):
            yield example.text("source"), example.text("target")


def _rereadable(path: str, folder: Path) -> str:
    """Return a path that can be read twice. Columns are bound before pairs are read, so a stream is
    first copied into the folder."""
    if not is_stream(path):
        return path
    spool(path, folder / "standard-input")
    return str(folder / "standard-input")


def filter_pairs(
    lengths_2B: NDArray[np.int64], valid_B: NDArray[np.bool_], data: DataSettings
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return whether each pair is kept, and the number of dropped pairs by reason.

    Pairs longer than `data.max_len` and pairs with an empty side are dropped. Training pairs are
    also dropped if the ratio of their lengths exceeds `data.max_ratio`.

    Args:
        lengths_2B: Number of tokens of the source and of the target of each pair.
        valid_B: Whether each pair is in the validation set.
        data: Settings with the limits.
    """
    longer_B, shorter_B = lengths_2B.max(axis=0), lengths_2B.min(axis=0)
    too_long_B = (longer_B > data.max_len) | (shorter_B == 0)
    uneven_B = ~too_long_B & ~valid_B & (longer_B > data.max_ratio * shorter_B)
    uneven_B &= bool(data.max_ratio)
    dropped = {
        "over_long": int((too_long_B & ~valid_B).sum()),
        "validation_over_long": int((too_long_B & valid_B).sum()),
        "ratio": int(uneven_B.sum()),
    }
    return ~(too_long_B | uneven_B), dropped
