"""What is known of media that have been read: all that the check and the split need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data.media.decoding import UNREADABLE, Facts, read_facts, read_problems
from headway.data.media.items import MediaItems
from headway.data.media.reading import Form
from headway.data.media.source import Target


@dataclass
class Surveyed:
    """Items of one split and what is known of them."""

    items: MediaItems
    form: Form
    target: Target
    facts: Facts
    problems: Mapping[int, str]
    """Why some could not be read."""

    targets: list[str | None]
    """Labels or texts."""

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Could be read, and has what is to be learned."""
        readable = self.facts["marks"] & UNREADABLE == 0
        if self.target == "none":
            return readable
        if self.target == "other":
            return readable.reshape(-1, 2).all(1).repeat(2)
        return readable & np.array([one is not None for one in self.targets], np.bool_)

    @property
    def counts(self) -> Counter[str]:
        """Of labels."""
        if self.target != "label":
            return Counter()
        return Counter(one for one in self.targets if one is not None)


def survey(
    splits: tuple[MediaItems, MediaItems], folder: Path, form: Form, target: Target
) -> tuple[Surveyed, Surveyed]:
    """Of training and of validation, which were read one after the other into the folder."""
    facts, problems = read_facts(folder), read_problems(folder)
    found = []
    for items, first in zip(splits, (0, len(splits[0])), strict=True):
        known = facts[first : first + len(items)]
        bad = {row - first: why for row, why in problems.items() if 0 <= row - first < len(items)}
        targets = [_target(items, row, target) for row in range(len(items))]
        found.append(Surveyed(items, form, target, known, bad, targets))
    return found[0], found[1]


def _target(items: MediaItems, row: int, target: Target) -> str | None:
    if target in ("none", "other"):
        return None
    item = items[row]
    return item.label if target == "label" else item.text
