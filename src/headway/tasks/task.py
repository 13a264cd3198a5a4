"""A task: how its data, its model, its training, its answers and its scores come about.

One file each beside this one; what can be said without doing any of it is in the table,
`specs.py`, whose rows name these classes. What a task learns by is its `Objective`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from headway.data.store import Prepared, load_prepared
from headway.decode.continuous import Continuous, Member
from headway.decode.stream import OnPiece
from headway.progress import SILENT, OnProgress, Progress, unheard
from headway.settings.data import DataSettings
from headway.settings.facts import DeviceFacts, Facts, Proposal
from headway.settings.model import PictureSettings, SoundSettings
from headway.settings.run import Resolved, RunSettings
from headway.tasks.answers import Answer
from headway.tasks.modality import row_of
from headway.tasks.objective import Objective
from headway.tasks.opened import Opened
from headway.tasks.scores import Scores
from headway.tasks.specs import Spec

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


@runtime_checkable
class Joining(Predictor, Protocol):
    """A predictor whose answers grow a token at a time: others may join and leave between steps."""

    @property
    def joins(self) -> bool:
        """Whether the way that this one searches is a matter of single steps."""
        ...

    def together(self) -> Continuous:
        """What answers grow in; one of these serves all predictors of the same opened runs."""
        ...

    def member(
        self, growing: Continuous, question: Any, *, on_piece: OnPiece | None = None,
        top: int = 0, number: int = 0,
    ) -> Member:  # fmt: skip
        """What joins `growing` for a question; `number`: which of one caller's it is."""
        ...

    def joined(self, question: Any, member: Member) -> Answer:
        """Its answer, when it is done."""
        ...


@dataclass(frozen=True)
class Task(ABC):
    row: Spec

    @abstractmethod
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        """Check, split, tokenise; or find all that done before."""

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    @abstractmethod
    def describe(self, prepared: Prepared) -> str:
        """How much there is to train on: `29,000 pairs`."""

    @abstractmethod
    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        """What choices about model and training rest on."""

    @abstractmethod
    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        """Model and training where nobody says. Nothing but the facts is looked at."""

    def check(self, settings: Resolved, prepared: Prepared) -> None:  # noqa: B027
        """Refuse data that such a model cannot learn from."""

    @abstractmethod
    def objective(self, settings: Resolved, prepared: Prepared) -> Objective[Any]: ...

    @abstractmethod
    def predictor(self, use: Use) -> Predictor: ...

    @abstractmethod
    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        """Scores on a test set."""


def find_task(settings: RunSettings, front: PictureSettings | SoundSettings | None = None) -> Task:
    """`front`: that data was prepared for, so that no file has to be looked at again."""
    return make_task(row_of(settings, front))


def make_task(row: Spec) -> Task:
    """Imported when it is needed: each brings parts that the others do without."""
    module, _, name = row.objective.rpartition(".")
    path = module if "." in module else f"headway.tasks.{module}"
    made: Callable[[Spec], Task] = getattr(import_module(path), name)
    return made(row)
