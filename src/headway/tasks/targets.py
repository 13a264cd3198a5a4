"""What is answered about an example: a class. How it is learned, said and scored, on any front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.config.run import Resolved
from headway.data.store import Columns
from headway.metrics import classification as metrics
from headway.metrics.baselines import majority
from headway.metrics.translation import Interval
from headway.models.parts.heads import Angles
from headway.nn.loss import Smoothing
from headway.tasks.answers import Answer, Facts, LabelAnswer, Show
from headway.tasks.items import Numbers
from headway.tasks.losses import shared_loss
from headway.tasks.read import Read
from headway.tasks.scores import Answered, Row
from headway.tasks.task import Frequencies, TaskLoss

Truth = NDArray[Any]
"""What is right of each example, in its first axis."""

Labels = NDArray[np.int64]

FEW_CLASSES = 50
"""Up to so many, every evaluation keeps its confusion matrix; beyond, the last one does."""

FEW = 50
"""Up to so many classes, programs get the probability of each."""

TOP = 5


class Target(Protocol):
    """Answers are shares (N C): numbers whose mean over windows, and over models, is the answer."""

    headline: ClassVar[str]
    """The score that baselines are shown by."""

    has_classes: ClassVar[bool]
    """Whether it is one of several classes."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def truth(self, columns: Columns) -> Truth: ...

    def weights(self, truth_N: Truth) -> NDArray[np.float32]:
        """How much each example counts where all of them are to count the same by kind."""
        ...

    def aims(self, given: Tensor) -> Tensor:
        """What a batch has of the truth, as scores have it (B C)."""
        ...

    def loss(self, read: Read, aims_BC: Tensor) -> TaskLoss: ...

    def shares(self, scores_BC: Tensor) -> Tensor: ...

    def values(self, shares_NC: Numbers, truth_N: Truth) -> dict[str, float]:
        """The scores that training goes by."""
        ...

    def figures(self, shares_NC: Numbers, truth_N: Truth, full: bool) -> Facts:
        """What the report draws."""
        ...

    def rows(
        self, shares_NC: Numbers, truth_N: Truth, figures: Facts, unit: str
    ) -> tuple[list[Row], Facts]:
        """Of a test set, for people and for programs."""
        ...

    def guesses(self, train_N: Truth, n: int) -> dict[str, Numbers]:
        """What one can answer to `n` examples who knows how frequent each answer is, by name."""
        ...

    def remark(self, train_N: Truth) -> str:
        """How to say that."""
        ...

    def frequencies(
        self, train_N: Truth, valid_N: Truth, weights_N: NDArray[np.float32] | None
    ) -> Frequencies | None: ...

    def sample(self, shares_C: Numbers, truth: Truth) -> dict[str, str]:
        """What is right and what was answered, for people."""
        ...

    def title(self, truth: Truth) -> str: ...

    def named(self, shares_NC: Numbers, truth_N: Truth) -> Answered: ...

    def answer(self, shares_C: Numbers, place: str, top: int | None) -> Answer: ...


@dataclass(frozen=True)
class OneLabel:
    headline: ClassVar[str] = "accuracy"
    has_classes: ClassVar[bool] = True
    names: tuple[str, ...]
    smoothing: Smoothing
    margin: float = 0.0
    """Radians that an example must be nearer to its own class than to others."""

    def truth(self, columns: Columns) -> Labels:
        return np.asarray(columns["label"], dtype=np.int64)

    def weights(self, truth_N: Labels) -> NDArray[np.float32]:
        """Every class together counts the same."""
        n = len(self.names)
        counts_C = np.bincount(truth_N, minlength=n)
        even_C = len(truth_N) / (n * np.maximum(counts_C, 1))
        return even_C.astype(np.float32)[truth_N]

    def aims(self, given: Tensor) -> Tensor:
        """Without a look at the numbers, for recorded steps."""
        return (given[:, None] == torch.arange(len(self.names), device=given.device)).float()

    def loss(self, read: Read, aims_BC: Tensor) -> TaskLoss:
        if self.margin and isinstance(read.scores, Angles):
            scores_BC = turned(read.x_RD, read.scores, aims_BC, self.margin)
            read = replace(read, held_RC=scores_BC.log_softmax(-1))
        return shared_loss(read, aims_BC, self.smoothing)

    def shares(self, scores_BC: Tensor) -> Tensor:
        return scores_BC.double().softmax(-1)

    def values(self, shares_NC: Numbers, truth_N: Labels) -> dict[str, float]:
        """Shares in percent."""
        logs_NC = logs_of(shares_NC)
        counts = metrics.confusion(truth_N, logs_NC.argmax(1), logs_NC.shape[1])
        values = {
            "loss": metrics.nll(logs_NC, truth_N),
            "accuracy": 100.0 * metrics.accuracy(counts),
            "f1": 100.0 * metrics.macro_f1(counts),
        }
        if logs_NC.shape[1] > TOP:
            values["top5"] = 100.0 * top_share(logs_NC, truth_N, TOP)
        return values

    def figures(self, shares_NC: Numbers, truth_N: Labels, full: bool) -> Facts:
        """The confusion matrix, scores of classes, the reliability diagram."""
        if not full and len(self.names) > FEW_CLASSES:
            return {}
        logs_NC = logs_of(shares_NC)
        counts = metrics.confusion(truth_N, logs_NC.argmax(1), len(self.names))
        found = metrics.calibration(logs_NC, truth_N)
        temperature = metrics.fit_temperature(logs_NC, truth_N)
        after = metrics.calibration(metrics.tempered(logs_NC, temperature), truth_N)
        return {
            "confusion": {"labels": list(self.names), "counts": counts.tolist()},
            "classes": [
                {"label": label, **vars(score)}
                for label, score in zip(self.names, metrics.class_scores(counts), strict=True)
            ],
            "calibration": {
                "bins": [vars(one) for one in found.bins if one.count],
                "ece": found.ece,
                "temperature": temperature,
                "ece_after": after.ece,
            },
        }

    def rows(
        self, shares_NC: Numbers, truth_N: Labels, figures: Facts, unit: str
    ) -> tuple[list[Row], Facts]:
        values = self.values(shares_NC, truth_N)
        counts = metrics.confusion(truth_N, shares_NC.argmax(1), len(self.names))
        accuracy, f1 = metrics.accuracy_interval(counts), metrics.macro_f1_interval(counts)
        calibration = figures["calibration"]
        rows: list[Row] = [
            ("accuracy", f"{values['accuracy']:.2f}", shown_interval(accuracy)),
            ("macro F1", f"{values['f1']:.2f}", shown_interval(f1)),
            ("loss", f"{values['loss']:.4f}", f"nats, over {len(truth_N):,} {unit}"),
            (
                "calibration error",
                f"{100 * calibration['ece']:.2f}",
                f"a temperature of {calibration['temperature']:.2f} would fit these {unit} best",
            ),
        ]
        if "top5" in values:
            remark = f"the right class among the {TOP} likeliest"
            rows.insert(1, (f"top {TOP}", f"{values['top5']:.2f}", remark))
        intervals = {"accuracy": accuracy, "f1": f1}
        return rows, {
            **values,
            "n": len(truth_N),
            "intervals": {name: [100 * one.low, 100 * one.high] for name, one in intervals.items()},
            "ece": calibration["ece"],
            "temperature": calibration["temperature"],
            "confusion": figures["confusion"],
            "classes": figures["classes"],
        }

    def guesses(self, train_N: Labels, n: int) -> dict[str, Numbers]:
        counts_C = np.bincount(train_N, minlength=len(self.names)).astype(np.float64) + 1.0
        return {"majority class": np.tile(counts_C / counts_C.sum(), (n, 1))}

    def remark(self, train_N: Labels) -> str:
        return f"always {self.names[majority(train_N, len(self.names))]!r}"

    def frequencies(
        self, train_N: Labels, valid_N: Labels, weights_N: NDArray[np.float32] | None
    ) -> Frequencies | None:
        """Counted as the loss counts them: by the weight of their class. A margin makes the loss
        larger than that of classes."""
        if self.margin:
            return None
        weights_C = np.ones(len(self.names), np.float32)
        if weights_N is not None:
            weights_C[train_N] = weights_N
        return class_frequencies(train_N, valid_N, len(self.names), weights_C)

    def named(self, shares_NC: Numbers, truth_N: Labels) -> Answered:
        """The likeliest classes and the right ones."""
        best_N = shares_NC.argmax(1)
        return [self.names[label] for label in best_N], [self.names[label] for label in truth_N]

    def sample(self, shares_C: Numbers, truth: Truth) -> dict[str, str]:
        best = int(shares_C.argmax())
        said = f"{self.names[best]} ({shares_C[best]:.2f})"
        return {"target": self.title(truth), "output": said}

    def title(self, truth: Truth) -> str:
        return self.names[int(truth)]

    def answer(self, shares_C: Numbers, place: str, top: int | None) -> LabelAnswer:
        p_C = tuple(shares_C.tolist())
        printed = PrintedLabel(place, self.names, p_C, top)
        return LabelAnswer.of(self.names, p_C, place=place, printed=printed)


@dataclass(frozen=True)
class PrintedLabel:
    name: str
    """Of the file; empty for a text."""

    labels: Sequence[str]
    p_C: Sequence[float]
    top: int | None
    """Classes that were asked for; None: nobody said how many."""

    @property
    def best(self) -> list[tuple[str, float]]:
        order = sorted(range(len(self.p_C)), key=lambda i: -self.p_C[i])
        return [(self.labels[i], self.p_C[i]) for i in order[: self.top or TOP]]

    def lines(self, show: Show, number: int) -> str:
        if show.top is None and not show.scores:
            return self.best[0][0]
        return "\t".join(f"{label}\t{p:.4f}" for label, p in self.best[: show.top or 1])

    def facts(self) -> Facts:
        best = [{"label": label, "probability": round(p, 6)} for label, p in self.best]
        facts: Facts = {"file": self.name} if self.name else {}
        facts |= best[0]
        if self.name or self.top:
            facts["top"] = best
        if len(self.labels) <= FEW or not self.name:
            pairs = zip(self.labels, self.p_C, strict=True)
            facts["probabilities"] = {label: round(p, 6) for label, p in pairs}
        return facts


def target_of(settings: Resolved, labels: Sequence[str]) -> Target:
    train = settings.train
    smoothing = Smoothing.of(train.smoothing, len(labels), train.smoothing_kind)
    return OneLabel(tuple(labels), smoothing, settings.identify.margin)


def logs_of(shares_NC: Numbers) -> Numbers:
    return np.log(np.maximum(shares_NC, 1e-300))


def turned(x_BD: Tensor, angles: Angles, aims_BC: Tensor, margin: float) -> Tensor:
    """Scores as if the angle to the right class were larger by the margin: an example must be
    nearer to its own class by so much (ArcFace, Deng et al. 2019)."""
    cos_BC = angles.cosines(x_BD).clamp(-1 + 1e-6, 1 - 1e-6)
    turned_BC = (cos_BC.acos() + margin).clamp(max=np.pi).cos()
    return angles.scale * torch.where(aims_BC > 0.5, turned_BC, cos_BC)


def top_share(logs_NC: Numbers, labels_N: Labels, n: int) -> float:
    """How often the right class is among the `n` likeliest; of equal ones the first is likelier."""
    own_N1 = logs_NC[np.arange(len(labels_N)), labels_N][:, None]
    earlier_NC = np.arange(logs_NC.shape[1]) < labels_N[:, None]
    before_NC = (logs_NC > own_N1) | ((logs_NC == own_N1) & earlier_NC)
    return float((before_NC.sum(1) < n).mean())


def shown_interval(interval: Interval) -> str:
    return f"95 %: {100 * interval.low:.2f} – {100 * interval.high:.2f}"


def class_frequencies(
    train: Labels, valid: Labels, n_labels: int, weights_C: NDArray[np.floating]
) -> Frequencies:
    """Counted as the loss counts them: by the weight of their class."""
    counts = (np.bincount(one, minlength=n_labels) * weights_C for one in (train, valid))
    return Frequencies(*(np.rint(one).astype(np.int64) for one in counts))
