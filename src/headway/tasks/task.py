"""Base class of tasks: data preparation, statistics, training, prediction and evaluation.

Each task has its own module in this package. The static properties of a task are in the table
of `specs/tasks.py`, whose rows name these classes. The `Objective` of a task defines its loss and
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
"""Number of special tokens around a text: start and end."""


@dataclass(frozen=True)
class InferenceRequest:
    """Request to loaded runs, with the settings and options of one call. It does not change the
    runs."""

    opened: LoadedRun
    settings: Resolved
    """Settings of the first run, with the overrides of this call."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of this call by name, such as `top`."""

    progress: Progress = SILENT
    """Progress reporter; by default it prints nothing."""

    between: OnProgress = no_progress
    """Function that is called between two batches. It may release the lock of the models to other
    requests."""

    @property
    def runs(self) -> tuple[Resolved, ...]:
        """Settings of each run of an ensemble; those of the first have the overrides of this
        call."""
        return (self.settings, *self.opened.runs[1:])


@runtime_checkable
class Predictor(Protocol):
    @abstractmethod
    def answers(self, lines: Iterable[Any], live: bool = False) -> Iterator[Answer]:
        """Yield one answer per line, in order.

        A line is a text, or a `Question` of `data.predict_input` for tasks with several texts.
        `live`: yield each answer as soon as the line is available.
        """
        ...

    def summary(self) -> str:
        """Return a line that summarizes the processed inputs, such as their number."""
        return ""


@runtime_checkable
class ContinuousBatchingPredictor(Predictor, Protocol):
    """Predictor that supports continuous batching, in which each step generates one token per text.
    Requests join and leave the batch between steps."""

    @property
    def can_batch(self) -> bool:
        """Whether the decoding method of this request allows continuous batching."""
        ...

    def new_batch(self) -> ContinuousBatch:
        """Create a batch that all predictors of the same loaded runs can share."""
        ...

    def member(
        self, growing: ContinuousBatch, question: Any, *, on_piece: OnOutputPiece | None = None,
        top: int = 0, number: int = 0,
    ) -> BatchMember:  # fmt: skip
        """Create the batch member that generates the answer to a question.

        Args:
            growing: Batch that the member will join.
            question: Input to answer.
            on_piece: Function that receives the text during generation.
            top: Number of most likely tokens to record at each step; 0: none.
            number: Index of the question within the caller's request, which seeds random sampling.
        """
        ...

    def finished_answer(self, question: Any, member: BatchMember) -> Answer:
        """Return the answer to a question, given its finished member of the batch."""
        ...


@dataclass(frozen=True)
class Task(ABC):
    row: Spec

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        """Check, split and tokenize the data, or load it if it is already prepared. By default the
        data is text."""
        from headway.data.prepare import prepare
        from headway.tasks.parent_run import tokenizer_of

        assert self.row.is_text, "tasks on media implement `prepare`"
        return prepare(settings, folder, progress, tokenizer=tokenizer_of(settings))

    def load_prepared(self, folder: Path) -> PreparedData:
        return load_prepared(folder)

    def describe(self, prepared: PreparedData) -> str:
        """Return a human-readable amount of training data, such as `29,000 pairs`."""
        return f"{prepared.train.n:,} {self.row.counts}s"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        """Return the dataset statistics on which default settings depend. By default the data is
        text."""
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
        """Return the training objective of a run: its examples, loss and validation."""

    def predictor(self, use: InferenceRequest) -> Predictor:
        """Return the predictor of the task. By default this is the evaluator, if it is also a
        `Predictor`; otherwise an error is raised."""
        found = self.evaluator(use)
        if not isinstance(found, Predictor):
            raise UserError(f"the task {self.row.name} makes no predictions.")
        return found

    @abstractmethod
    def evaluator(self, use: InferenceRequest) -> Evaluator[Any, Any]:
        """Return the evaluator of the task, which scores test sets."""

    def evaluation(self, use: InferenceRequest, files: DataSettings) -> Scores:
        """Return the scores of the requested runs on a test set in files."""

        def load_data() -> TrainingData:
            try:
                return self.load_prepared(use.opened.folder)
            except (UserError, OSError):
                return None

        return evaluate_files(self.evaluator(use), use.opened, files, load_data, use.progress)


def find_task(settings: RunSettings) -> Task:
    """Return the task of a run. If the settings leave the modality open, the data files decide
    it."""
    return make_task(spec_of(decided(settings)))


def make_task(row: Spec) -> Task:
    """Create the task that a row of the task table defines. Its module is imported on first use,
    because tasks have different dependencies."""
    module, _, name = row.objective.rpartition(".")
    path = module if "." in module else f"headway.tasks.{module}"
    made: Callable[[Spec], Task] = getattr(import_module(path), name)
    return made(row)
