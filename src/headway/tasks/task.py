"""Base class of tasks: data preparation, statistics, training, prediction and evaluation.

Each task has its own module in this package. Static facts about it are in the table of
`specs/tasks.py`, whose rows name these classes. The `Objective` of a task defines its loss and
its scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from headway.data.store import PreparedData, load_prepared
from headway.errors import UserError
from headway.progress import SILENT, OnProgress, Progress, no_progress
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats
from headway.settings.run import Resolved, RunSettings
from headway.settings.task_rows import spec_of
from headway.specs.tasks import Spec
from headway.tasks.answers import Answer
from headway.tasks.evaluate import Evaluator, TrainingData, evaluate_files
from headway.tasks.modality import decided
from headway.tasks.objective import Objective
from headway.tasks.scores import Scores

if TYPE_CHECKING:
    from headway.decode.continuous import BatchMember, ContinuousBatch
    from headway.decode.stream import OnOutputPiece
    from headway.tasks.loaded_run import LoadedRun

Note = Callable[[str], None]

ENDS = 2
"""Number of special tokens around a text."""


@dataclass(frozen=True)
class InferenceRequest:
    """A request to opened runs, with the settings and options of one call. The runs stay as they
    are."""

    opened: LoadedRun
    settings: Resolved
    """Settings of the first run, with the changes of the command."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the command, by name."""

    progress: Progress = SILENT
    """Progress reporter."""

    between: OnProgress = no_progress
    """Called between two batches, where the lock of the models may be released for others."""

    @property
    def runs(self) -> tuple[Resolved, ...]:
        """Settings of each run of an ensemble, with the changes of the command."""
        return (self.settings, *self.opened.runs[1:])


@runtime_checkable
class Predictor(Protocol):
    @abstractmethod
    def answers(self, lines: Iterable[Any], live: bool = False) -> Iterator[Answer]:
        """Yield one answer per line, in order; with `live`, as soon as the line is available. A
        line is a text, or a `Question` of `data.predict_input` for tasks with several texts."""
        ...

    def summary(self) -> str:
        """A line for people about the inputs that were processed."""
        return ""


@runtime_checkable
class ContinuousBatchingPredictor(Predictor, Protocol):
    """A predictor for continuous batching: it generates one token per step, and requests may join
    and leave the batch between steps."""

    @property
    def can_batch(self) -> bool:
        """Whether its decoding method allows continuous batching."""
        ...

    def new_batch(self) -> ContinuousBatch:
        """A new batch, which can serve all predictors of the same opened runs."""
        ...

    def member(
        self, growing: ContinuousBatch, question: Any, *, on_piece: OnOutputPiece | None = None,
        top: int = 0, number: int = 0,
    ) -> BatchMember:  # fmt: skip
        """The member that joins the batch `growing` for a question. `number` is the index of the
        question among those of one caller."""
        ...

    def finished_answer(self, question: Any, member: BatchMember) -> Answer:
        """The answer to a question whose member is finished."""
        ...


@dataclass(frozen=True)
class Task(ABC):
    row: Spec

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        """Check, split and tokenise the data, or load it if that is done already. By default the
        data is text."""
        from headway.data.prepare import prepare
        from headway.tasks.parent_run import tokenizer_of

        assert self.row.is_text, "tasks on media implement `prepare`"
        return prepare(settings, folder, progress, tokenizer=tokenizer_of(settings))

    def load_prepared(self, folder: Path) -> PreparedData:
        return load_prepared(folder)

    def describe(self, prepared: PreparedData) -> str:
        """The amount of training data, for people: `29,000 pairs`."""
        return f"{prepared.train.n:,} {self.row.counts}s"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        """Facts about the data on which default settings depend. By default the data is text."""
        from headway.tasks.parent_run import parent_of

        lengths = prepared.train["text"].lengths + ENDS
        return DatasetStats(
            n=prepared.train.n, n_tokens=int(lengths.sum()), longest=int(lengths.max()),
            vocab_size=prepared.tokenizer.vocab_size, labels=tuple(prepared.labels),
            parent=parent_of(settings),
        )  # fmt: skip

    def check(self, settings: Resolved, prepared: PreparedData) -> None:  # noqa: B027
        """Raise an error if the model cannot be trained on the data."""

    @abstractmethod
    def objective(self, settings: Resolved, prepared: PreparedData) -> Objective[Any]:
        """Loss and validation of a run."""

    def predictor(self, use: InferenceRequest) -> Predictor:
        """What answers inputs: by default the evaluator, if it is a `Predictor` too. Otherwise the
        task only trains and evaluates."""
        found = self.evaluator(use)
        if not isinstance(found, Predictor):
            raise UserError(f"the task {self.row.name} makes no predictions.")
        return found

    @abstractmethod
    def evaluator(self, use: InferenceRequest) -> Evaluator[Any, Any]:
        """How test sets are scored."""

    def evaluation(self, use: InferenceRequest, files: DataSettings) -> Scores:
        """Scores on a test set."""

        def load_data() -> TrainingData:
            try:
                return self.load_prepared(use.opened.folder)
            except (UserError, OSError):
                return None

        return evaluate_files(self.evaluator(use), use.opened, files, load_data, use.progress)


def find_task(settings: RunSettings) -> Task:
    """The task of a run; its row is decided from the data files if the settings leave it open."""
    return make_task(spec_of(decided(settings)))


def make_task(row: Spec) -> Task:
    """The task of a row. Its module is imported here, on first use, because tasks have different
    dependencies."""
    module, _, name = row.objective.rpartition(".")
    path = module if "." in module else f"headway.tasks.{module}"
    made: Callable[[Spec], Task] = getattr(import_module(path), name)
    return made(row)
