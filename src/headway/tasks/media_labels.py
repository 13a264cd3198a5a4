"""Classes of pictures, videos and recordings: what `classify` of them and `identify` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headway.config.model import PictureSettings, SoundSettings
from headway.config.run import Resolved, RunSettings, media_front
from headway.data.batches import Fixed, Rows, StepPlan, moved
from headway.data.store import Columns, Prepared
from headway.models.parts.heads import Input
from headway.models.parts.pictures import Pictures
from headway.models.parts.sounds import Sound
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, unheard
from headway.tasks.classes import (
    Labels,
    Numbers,
    class_figures,
    class_frequencies,
    class_values,
    frequency_log_probs,
    named_answers,
)
from headway.tasks.losses import shared_loss
from headway.tasks.media_reader import MediaInput, MediaReader, Speeds, readings
from headway.tasks.read import Read, readout_of
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS, Spec
from headway.tasks.task import Frequencies, Part, TaskLoss, n_examples
from headway.tasks.thumbnails import thumbnails

FEW_CLASSES = 50
"""Up to so many, every evaluation keeps its confusion matrix; beyond, the last one does."""

SAMPLES = 8
TOP = 5


class Chosen(NamedTuple):
    """Items of a step, or a part of one, and the epoch it is of."""

    epoch: int
    rows: Rows


@dataclass(frozen=True)
class Targets:
    labels_B: Tensor
    weights_B: Tensor
    """How much each item counts; zero for what only fills the fixed-size form."""


@dataclass(frozen=True)
class LabelBatch:
    input: MediaInput
    targets: Targets


@dataclass(frozen=True)
class Shown:
    """A batch as the model reads it, and what it is then a batch of."""

    stream: Input
    targets_BC: Tensor
    weights_B: Tensor


@dataclass
class LabelTask:
    prepared: Prepared
    settings: Resolved
    quick_size: int = 3000
    """Validation items that are read during training; all of them at the end."""

    def __post_init__(self) -> None:
        train = self.settings.train
        self.metric = METRICS[train.metric or "accuracy"]
        shape = front_of(self.settings)
        self.train = MediaReader(self.prepared.train.media, shape)
        self.valid = MediaReader(self.prepared.valid.media, shape)
        step_tokens = max(train.batch_tokens, self.train.longest)
        self.plan = StepPlan.of_lengths(self.train.lengths, step_tokens, train.seed, train.pool)
        self.n_labels = len(self.prepared.labels)
        self.smoothing = Smoothing.of(train.smoothing, self.n_labels, train.smoothing_kind)
        self.readout = readout_of(self.settings)
        self.labels = labels_of(self.prepared.train)
        self.weights = np.ones(self.n_labels, np.float32)
        if self.balance:
            counts = np.bincount(self.labels, minlength=self.n_labels)
            even = len(self.labels) / (self.n_labels * np.maximum(counts, 1))
            self.weights = even.astype(np.float32)

    @property
    def balance(self) -> bool:
        return bool(getattr(self.settings, self.settings.task).balance)

    def epoch(self, number: int) -> list[Chosen]:
        return [Chosen(number, rows) for rows in self.plan.epoch(number)]

    def parts(self, step: Chosen, micro_tokens: int) -> list[Part]:
        tokens = self._tokens(micro_tokens)
        return [
            Part(Chosen(step.epoch, rows), len(rows), self.plan.n_targets(rows))
            for rows in self.plan.cut(step.rows, tokens, tokens)
        ]

    def _tokens(self, micro_tokens: int) -> int:
        return self.plan.part_limit(micro_tokens)

    def fixed(self, micro_tokens: int) -> Fixed | None:
        return self.train.fixed(self._tokens(micro_tokens))

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> LabelBatch:
        rows = part.rows.rows
        found = self.train.read(rows, device, fixed, self.before(part.rows))
        n = found.layout.n_sequences
        labels_B = np.resize(self.labels[rows], n)
        weights_B = np.where(np.arange(n) < len(rows), self.weights[labels_B], 0.0)
        targets = Targets(
            torch.from_numpy(labels_B), torch.from_numpy(weights_B.astype(np.float32))
        )
        return LabelBatch(found, moved(targets, device))

    def vary(self, model: nn.Module, batch: LabelBatch) -> Shown:
        given = self.train.seen(batch.input)
        targets_BC = one_hot(batch.targets.labels_B, self.n_labels)
        if model.training:
            given, targets_BC = self.changed(model, given, targets_BC)
        return Shown(Input(given, batch.input.layout), targets_BC, batch.targets.weights_B)

    def read(self, model: nn.Module, given: Shown) -> Read:
        return self.readout.read(model, given.stream).weighed(given.weights_B)

    def loss(self, read: Read, given: Shown) -> TaskLoss:
        """A distillation token, where there is one, has half of it."""
        own = self.priced(read, given.targets_BC)
        if not read.more:
            return own
        total = read.share * own.sum
        for other in read.more.values():
            total = total + other.share * self.priced(other, self.taught(given)).sum
        return TaskLoss(total, own.nll)

    def priced(self, read: Read, targets_BC: Tensor) -> TaskLoss:
        """Cross-entropy with targets that may be shared out among classes."""
        return shared_loss(read, targets_BC, self.smoothing)

    def taught(self, given: Shown) -> Tensor:
        """What a distillation token is to say (B C): the label, where no teacher says more."""
        return given.targets_BC

    def before(self, part: Chosen) -> Speeds | None:
        """What happens to recordings before they are joined to a batch."""
        return None

    def changed(
        self, model: nn.Module, given: Pictures | Sound, targets_BC: Tensor
    ) -> tuple[Pictures | Sound, Tensor]:
        """Examples changed at random, and what they are then examples of."""
        raise NotImplementedError

    @property
    def n_valid(self) -> int:
        return len(self.valid.lengths)

    @property
    def n_quick(self) -> int:
        return min(self.quick_size, self.n_valid)

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool],
        full: bool,
        on_progress: OnProgress = unheard,
        *,
        most: int | None = None,
    ) -> Scores:
        most = n_examples(self, full, most)
        labels_N = labels_of(self.prepared.valid)[:most]
        logs_NC = log_probs(model, self.valid, device, self.settings, stopped, most, on_progress)
        figures: dict[str, Any] = {}
        if full or self.n_labels <= FEW_CLASSES:
            figures = class_figures(logs_NC, labels_N, self.prepared.labels)
        if full and self.prepared.what != "sounds":
            figures["pictures"] = thumbnails(
                self.prepared.valid.pictures, logs_NC, labels_N, self.prepared.labels
            )
        return Scores(
            values=label_values(logs_NC, labels_N),
            samples=self._samples(logs_NC, labels_N),
            figures=figures,
            find_baselines=lambda: self.baselines,
            find_answers=lambda: named_answers(logs_NC, labels_N, self.prepared.labels),
        )

    @cached_property
    def baselines(self) -> Baselines:
        labels_N = labels_of(self.prepared.valid)
        counts_C = np.bincount(self.labels, minlength=self.n_labels)
        logs_NC = frequency_log_probs(counts_C, len(labels_N))
        return {"majority class": label_values(logs_NC, labels_N)}

    def frequencies(self) -> Frequencies | None:
        labels = (self.labels, labels_of(self.prepared.valid))
        return class_frequencies(*labels, self.n_labels, self.weights)

    def _samples(self, logs_NC: Numbers, labels_N: Labels) -> list[dict[str, str]]:
        names = self.prepared.labels
        return [
            {
                "source": str(example["place"]),
                "target": names[label],
                "output": f"{names[logs_C.argmax()]} ({np.exp(logs_C.max()):.2f})",
            }
            for example, label, logs_C in zip(
                self.prepared.valid_examples[:SAMPLES], labels_N, logs_NC, strict=False
            )
        ]

    def show(self, part: Part) -> list[dict[str, Any]]:
        return [
            {"item": int(row), "label": self.prepared.labels[self.labels[row]]}
            for row in part.rows.rows
        ]


@torch.no_grad()
def log_probs(
    model: nn.Module,
    reader: MediaReader,
    device: torch.device,
    settings: RunSettings,
    stopped: Callable[[], bool] = lambda: False,
    most: int | None = None,
    on_progress: OnProgress = unheard,
) -> Numbers:
    """Of each class for each of the first `most` items."""
    logs_NC = np.zeros((len(reader.lengths[:most]), len(settings.labels)))
    readout = readout_of(settings)
    for rows, read in readings(readout, model, reader, device, stopped, most, on_progress):
        logs_NC[rows] = read.answers().double().log_softmax(-1).cpu().numpy()
    return logs_NC


def one_hot(labels_B: Tensor, n_labels: int) -> Tensor:
    """1 for the label and 0 for all others; without a look at the numbers, for recorded steps."""
    return (labels_B[:, None] == torch.arange(n_labels, device=labels_B.device)).float()


def front_of(settings: RunSettings) -> PictureSettings | SoundSettings:
    front = media_front(settings)
    assert front is not None
    return front


def labels_of(items: Columns) -> Labels:
    return items["label"]


def label_metrics(spec: Spec, n_labels: int) -> tuple[str, ...]:
    """The scores of so many classes, the usual one first."""
    return tuple(name for name in spec.scores if name != "top5" or n_labels > TOP)


def label_values(logs_NC: Numbers, labels_N: Labels) -> dict[str, float]:
    """The scores that training goes by; shares in percent."""
    values = class_values(logs_NC, labels_N)
    if logs_NC.shape[1] > TOP:
        values["top5"] = 100.0 * top_share(logs_NC, labels_N, TOP)
    return values


def top_share(logs_NC: Numbers, labels_N: Labels, n: int) -> float:
    """How often the right class is among the `n` likeliest; of equal ones the first is likelier."""
    own_N1 = logs_NC[np.arange(len(labels_N)), labels_N][:, None]
    earlier_NC = np.arange(logs_NC.shape[1]) < labels_N[:, None]
    before_NC = (logs_NC > own_N1) | ((logs_NC == own_N1) & earlier_NC)
    return float((before_NC.sum(1) < n).mean())
