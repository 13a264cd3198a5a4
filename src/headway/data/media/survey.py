"""What is known of media that have been read: all that the check and the split need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data.columns import number_of
from headway.data.media.decoding import UNREADABLE, Facts, read_facts, read_problems
from headway.data.media.items import MediaItems
from headway.data.media.open_item import Form
from headway.data.media.source import SEVERAL, MediaItem, Target, names_in, several
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings


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

    answer: str = "label"
    """What labels are: one each, several (`labels`), or a `number`."""

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
        if self.target != "label" or self.answer == "number":
            return Counter()
        return Counter(name for one in self.targets if one is not None for name in names_in(one))


def survey(
    splits: tuple[MediaItems, MediaItems],
    folder: Path,
    form: Form,
    target: Target,
    settings: RunSettings,
) -> tuple[Surveyed, Surveyed]:
    """Of training and of validation, which were read one after the other into the folder."""
    facts, problems = read_facts(folder), read_problems(folder)
    found: list[Surveyed] = []
    for items, first in zip(splits, (0, len(splits[0])), strict=True):
        known = facts[first : first + len(items)]
        bad = {row - first: why for row, why in problems.items() if 0 <= row - first < len(items)}
        targets = [_target(items, row, target) for row in range(len(items))]
        found.append(Surveyed(items, form, target, known, bad, targets))
    if target == "label":
        answer = _answer(settings, [one for split in found for one in split.targets])
        for split in found:
            split.answer = answer
            split.targets = [
                one and _as_answer(one, answer, settings.data, split.items[row])
                for row, one in enumerate(split.targets)
            ]
    return found[0], found[1]


def _answer(settings: RunSettings, targets: Sequence[str | None]) -> str:
    """As someone said, or several labels where there are lists of them."""
    asked = getattr(getattr(settings, settings.task), "answer", "label")
    if asked != "auto":
        return str(asked)
    return "labels" if any(one and one.startswith(SEVERAL) for one in targets) else "label"


def _as_answer(label: str, answer: str, data: DataSettings, item: MediaItem) -> str:
    if answer == "labels":
        listed = label.startswith(SEVERAL)
        return label if listed else several(map(str.strip, label.split(data.label_separator)))
    if answer == "number":
        return number_of(label, "label", item.place)
    names = names_in(label)
    if len(names) > 1:
        raise DataError(
            f"{item.place} has {len(names)} labels ({' '.join(names)[:60]}), and here one has one. "
            "Leave one of them, or train with classify.answer=labels."
        )
    return names[0] if names else label


def _target(items: MediaItems, row: int, target: Target) -> str | None:
    if target in ("none", "other"):
        return None
    item = items[row]
    return item.label if target == "label" else item.text
