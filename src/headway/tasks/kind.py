"""A task as a run and the command line see it: how its data, its model, its training, its answers
and its scores come about. One file each in `tasks`; what can be said without doing any of it is in
the table, `specs.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headway.data.store import Prepared
from headway.progress import SILENT, OnProgress, Progress, unheard
from headway.settings.data import DataSettings
from headway.settings.facts import DeviceFacts, Facts, Proposal
from headway.settings.run import Resolved, RunSettings
from headway.tasks.answers import Answer
from headway.tasks.opened import Opened
from headway.tasks.scores import Scores
from headway.tasks.task import Task

Note = Callable[[str], None]


@dataclass(frozen=True)
class Use:
    """What one call asks of opened runs. It changes nothing about them."""

    opened: Opened
    settings: Resolved
    """Of the first, as the command changed them."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the command, by name."""

    progress: Progress = SILENT
    """Where to show how far it is."""

    between: OnProgress = unheard
    """Called between two batches: whoever holds the models may let others have them."""


class Predictor(Protocol):
    def answers(self, lines: Iterable[Any], live: bool = False) -> Iterator[Answer]:
        """One for each line, in order; `live`: as soon as the line is there. A line is a text, or a
        `Question` of `data.unlabelled` where the task knows of more than one text."""
        ...

    def summary(self) -> str:
        """What was done, for people."""
        ...


class Kind(Protocol):
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        """Check, split, tokenise; or find all that done before."""
        ...

    def load_prepared(self, folder: Path) -> Prepared: ...

    def describe(self, prepared: Prepared) -> str:
        """How much there is to train on: `29,000 pairs`."""
        ...

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        """What choices about model and training rest on."""
        ...

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        """Model and training where nobody says. Nothing but the facts is looked at."""
        ...

    def check(self, settings: Resolved, prepared: Prepared) -> None:
        """Refuse data that such a model cannot learn from."""
        ...

    def task(self, settings: Resolved, prepared: Prepared) -> Task: ...

    def predictor(self, use: Use) -> Predictor: ...

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        """Scores on a test set."""
        ...
