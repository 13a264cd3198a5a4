"""Kinds of classification targets: one class, several labels, or a number.

Each kind defines its loss, predictions and scores, whatever the kind of input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.store import Columns
from headway.data.token_store import TokenStore
from headway.metrics import classification as metrics
from headway.metrics import multilabel as several
from headway.metrics import regression
from headway.metrics.baselines import majority
from headway.metrics.interval import Interval
from headway.models.parts.output_heads import CosineHead
from headway.nn.logistic import LinkFunction
from headway.nn.loss import LabelSmoothing
from headway.settings.run import Resolved
from headway.settings.task_rows import spec_of
from headway.tasks.answers import (
    Answer,
    JsonDict,
    LabelAnswer,
    LabelsAnswer,
    NumberAnswer,
)
from headway.tasks.dataset import FloatArray
from headway.tasks.losses import number_loss, sets_loss, shared_loss
from headway.tasks.objective import TargetFrequencies, TaskLoss
from headway.tasks.readout import Read
from headway.tasks.scores import PredictionsAndTargets, Range, ScoreRow

TargetArray = NDArray[Any]
"""Targets of some examples: label indices (N), multi-hot vectors (N C), or numbers (N)."""


class MultiHot:
    """Multi-label targets: stored as label indices, and returned as multi-hot vectors (N C) on
    access."""

    def __init__(self, store: TokenStore, width: int) -> None:
        self.store, self.width = store, width

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, rows: NDArray[np.int64] | slice | int) -> TargetArray:
        if isinstance(rows, slice):
            rows = np.arange(len(self))[rows]
        several = np.atleast_1d(np.asarray(rows))
        found = np.zeros((len(several), self.width), np.float32)
        for place, row in enumerate(several.tolist()):
            found[place, self.store[row]] = 1.0
        return found if np.ndim(rows) else found[0]

    def frequencies(self) -> NDArray[np.int64]:
        """Return the number of examples with each label."""
        return np.bincount(np.asarray(self.store.tokens, np.int64), minlength=self.width)


StoredTargets = TargetArray | MultiHot
"""Targets of all examples of a split. Multi-label targets are a `MultiHot`, because all multi-hot
vectors may not fit into memory."""


def set_counts(targets: StoredTargets) -> Counter[tuple[int, ...]]:
    """Return the number of examples with each set of labels."""
    if isinstance(targets, MultiHot):
        rows = (targets.store[row] for row in range(len(targets)))
        return Counter(tuple(sorted(row.tolist())) for row in rows)
    return Counter(tuple(np.flatnonzero(row > 0.5).tolist()) for row in targets)


IntArray = NDArray[np.int64]

FEW_CLASSES = 50
"""Maximum number of classes for which evaluations during training compute figures per class. The
final evaluation always does."""

TOP = 5
"""The n of top-n accuracy. Top-5 accuracy is usual for ImageNet (Russakovsky et al. 2015)."""


class LabelType(ABC):
    """Interface of the kinds of targets: single label, several labels, or a number.

    Predictions (`shares_NC`) are probabilities or numbers. They are averaged over the windows of an
    example, and over the models of an ensemble.
    """

    has_classes: ClassVar[bool]
    """Whether each example has exactly one class."""

    link: ClassVar[LinkFunction]
    """Link function of a linear model for these targets: `one` (softmax), `several` (sigmoid) or
    `number` (identity)."""

    names: tuple[str, ...]
    """Names of the labels; empty for regression."""

    @abstractmethod
    def stored_targets(self, columns: Columns) -> StoredTargets: ...

    def weights(self, truth_N: StoredTargets) -> NDArray[np.float32]:
        """Return the weight of each example, chosen so that all classes have the same total
        weight."""
        raise NotImplementedError  # `ClassifySettings` allows `balance` only for single labels

    @abstractmethod
    def prior(self, train_N: StoredTargets, weights_N: NDArray[np.float32] | None) -> FloatArray:
        """Return the output of a model that knows only the target frequencies of the training data:
        logits, or a number (C)."""

    @abstractmethod
    def targets(self, given: Tensor) -> Tensor:
        """Return the targets of a batch as a matrix with the shape of the logits (B C)."""

    @abstractmethod
    def loss(self, read: Read, aims_BC: Tensor) -> TaskLoss: ...

    @abstractmethod
    def predictions(self, scores_BC: Tensor) -> Tensor: ...

    @abstractmethod
    def values(self, shares_NC: FloatArray, truth_N: TargetArray) -> dict[str, float]:
        """Return metric values by name, such as loss and accuracy."""

    def temperature(
        self, shares_at: Callable[[float], FloatArray], truth_N: TargetArray
    ) -> float | None:
        """Return the temperature that calibrates the probabilities; None for regression.
        `shares_at`: function that returns the predictions at a temperature."""
        return None

    def fitted(self, shares_NC: FloatArray, truth_N: TargetArray) -> LabelType:
        """Return a copy whose decision threshold, if there is one, is fitted to these examples."""
        return self

    def intervals(self, shares_NC: FloatArray, truth_N: TargetArray) -> dict[str, Range]:
        """Return the 95 % confidence intervals by metric, in the units of the metrics."""
        return {}

    def figures(self, shares_NC: FloatArray, truth_N: TargetArray, full: bool) -> JsonDict:
        """Return data for the figures of the report. `full`: include figures that are too large for
        every evaluation."""
        return {}

    def details(self, figures: JsonDict, unit: str) -> tuple[list[ScoreRow], JsonDict]:
        """Return results other than metrics, as table rows and as a JSON-compatible dictionary."""
        return [], {}

    def remarks(self) -> dict[str, str]:
        """Return explanations of metrics by name, which tables show as remarks."""
        return {}

    @abstractmethod
    def baseline_predictions(self, train_N: StoredTargets, n: int) -> dict[str, FloatArray]:
        """Return the predictions of simple baselines for `n` examples, by name. The baselines know
        only the target frequencies of the training data."""

    @abstractmethod
    def remark(self, train_N: StoredTargets) -> str:
        """Return the description of the baseline in `baseline_predictions`, such as `always
        'cat'`."""

    def frequencies(
        self, train_N: StoredTargets, valid_N: TargetArray, weights_N: NDArray[np.float32] | None
    ) -> TargetFrequencies | None:
        """Return the frequencies of the targets in training and validation data; None if they
        cannot be counted."""
        return None

    def supports(self, truth_N: TargetArray) -> dict[str, int]:
        """Return the number of examples with each label; empty for regression."""
        return {}

    @abstractmethod
    def sample(self, shares_C: FloatArray, truth: TargetArray) -> dict[str, str]:
        """Return the target and the prediction of an example, as text."""

    @abstractmethod
    def title(self, truth: TargetArray) -> str: ...

    @abstractmethod
    def named_outputs(
        self, shares_NC: FloatArray, truth_N: TargetArray
    ) -> PredictionsAndTargets: ...

    @abstractmethod
    def answer(self, shares_C: FloatArray, place: str, top: int | None) -> Answer: ...


@dataclass(frozen=True)
class SingleLabel(LabelType):
    has_classes: ClassVar[bool] = True
    link: ClassVar[LinkFunction] = "one"
    names: tuple[str, ...]
    smoothing: LabelSmoothing
    margin: float = 0.0
    """Additive angular margin in radians (ArcFace, Deng et al. 2019); 0: ordinary softmax
    classification."""

    def stored_targets(self, columns: Columns) -> IntArray:
        return np.asarray(columns["label"], dtype=np.int64)

    def weights(self, truth_N: StoredTargets) -> NDArray[np.float32]:
        """Return weights inversely proportional to the class frequencies."""
        truth_N = truth_N[:]
        n = len(self.names)
        counts_C = np.bincount(truth_N, minlength=n)
        even_C = len(truth_N) / (n * np.maximum(counts_C, 1))
        return even_C.astype(np.float32)[truth_N]

    def prior(self, train_N: StoredTargets, weights_N: NDArray[np.float32] | None) -> FloatArray:
        """Return the logarithms of the class frequencies, with add-one smoothing, minus their mean.
        With `classify.balance`, all classes have the same weight, so the result is zero."""
        labels_N = np.asarray(train_N[:], np.int64)
        counts_C = np.bincount(labels_N, weights=weights_N, minlength=len(self.names))
        logs_C = np.log(counts_C + 1.0)
        return np.asarray(logs_C - logs_C.mean(), np.float64)

    def targets(self, given: Tensor) -> Tensor:
        """Return one-hot targets. They are computed by comparison, which a CUDA graph can
        record."""
        return (given[:, None] == torch.arange(len(self.names), device=given.device)).float()

    def loss(self, read: Read, aims_BC: Tensor) -> TaskLoss:
        if self.margin and isinstance(read.scores, CosineHead):
            scores_BC = with_margin(read.x_RD, read.scores, aims_BC, self.margin)
            read = replace(read, cached_log_probs_RC=scores_BC.log_softmax(-1))
        return shared_loss(read, aims_BC, self.smoothing)

    def predictions(self, scores_BC: Tensor) -> Tensor:
        return scores_BC.double().softmax(-1)

    def values(self, shares_NC: FloatArray, truth_N: IntArray) -> dict[str, float]:
        """Return metric values by name: the loss in nats, all others in percent."""
        logs_NC = logs_of(shares_NC)
        counts = metrics.confusion(truth_N, logs_NC.argmax(1), logs_NC.shape[1])
        values = {
            "accuracy": 100.0 * metrics.accuracy(counts),
            "f1": 100.0 * metrics.macro_f1(counts),
        }
        if logs_NC.shape[1] > TOP:
            values["top5"] = 100.0 * top_n_accuracy(logs_NC, truth_N, TOP)
        return {**values, "loss": metrics.nll(logs_NC, truth_N)}

    def temperature(
        self, shares_at: Callable[[float], FloatArray], truth_N: IntArray
    ) -> float | None:
        if self.margin:  # logits are cosines times `identify.scale`
            return None
        true_NC = np.eye(len(self.names))[truth_N]
        return metrics.safe_temperature(shares_at, true_NC, metrics.soft_cross_entropy)

    def intervals(self, shares_NC: FloatArray, truth_N: IntArray) -> dict[str, Range]:
        counts = metrics.confusion(truth_N, shares_NC.argmax(1), len(self.names))
        return {
            "accuracy": percent(metrics.accuracy_interval(counts)),
            "f1": percent(metrics.macro_f1_interval(counts)),
        }

    def figures(self, shares_NC: FloatArray, truth_N: IntArray, full: bool) -> JsonDict:
        """Return the confusion matrix, the scores of each class and a reliability diagram."""
        if not full and len(self.names) > FEW_CLASSES:
            return {}
        logs_NC = logs_of(shares_NC)
        counts = metrics.confusion(truth_N, logs_NC.argmax(1), len(self.names))
        return {
            "confusion": {"labels": list(self.names), "counts": counts.tolist()},
            "classes": [
                {"label": label, **vars(score)}
                for label, score in zip(self.names, metrics.class_scores(counts), strict=True)
            ],
            "calibration": class_calibration(logs_NC, truth_N),
        }

    def details(self, figures: JsonDict, unit: str) -> tuple[list[ScoreRow], JsonDict]:
        calibration = figures["calibration"]
        return [calibration_row(calibration, unit)], {
            "ece": calibration["ece"],
            "temperature": calibration["temperature"],
            "confusion": figures["confusion"],
            "classes": figures["classes"],
        }

    def remarks(self) -> dict[str, str]:
        return {"f1": "mean over classes", "loss": "nats"}

    def baseline_predictions(self, train_N: StoredTargets, n: int) -> dict[str, FloatArray]:
        counts_C = np.bincount(train_N[:], minlength=len(self.names)).astype(np.float64) + 1.0
        return {"majority class": np.tile(counts_C / counts_C.sum(), (n, 1))}

    def remark(self, train_N: StoredTargets) -> str:
        return f"always {self.names[majority(train_N[:], len(self.names))]!r}"

    def frequencies(
        self, train_N: StoredTargets, valid_N: TargetArray, weights_N: NDArray[np.float32] | None
    ) -> TargetFrequencies | None:
        """Return the class frequencies, weighted as in the loss. With a margin, return None: the
        loss is then larger than cross-entropy, so a comparison with the frequencies would be
        misleading."""
        if self.margin:
            return None
        weights_C, labels_N = np.ones(len(self.names), np.float32), train_N[:]
        if weights_N is not None:
            weights_C[labels_N] = weights_N
        return class_frequencies(labels_N, valid_N, len(self.names), weights_C)

    def supports(self, truth_N: TargetArray) -> dict[str, int]:
        counts_C = np.bincount(truth_N, minlength=len(self.names)).tolist()
        return dict(zip(self.names, counts_C, strict=True))

    def named_outputs(self, shares_NC: FloatArray, truth_N: IntArray) -> PredictionsAndTargets:
        """Return the names of the predicted and of the true classes."""
        best_N = shares_NC.argmax(1)
        return [self.names[label] for label in best_N], [self.names[label] for label in truth_N]

    def sample(self, shares_C: FloatArray, truth: TargetArray) -> dict[str, str]:
        best = int(shares_C.argmax())
        said = f"{self.names[best]} ({shares_C[best]:.2f})"
        return {"target": self.title(truth), "output": said}

    def title(self, truth: TargetArray) -> str:
        return self.names[int(truth)]

    def answer(self, shares_C: FloatArray, place: str, top: int | None) -> LabelAnswer:
        return LabelAnswer.of(self.names, shares_C.tolist(), place=place, top=top)


@dataclass(frozen=True)
class MultiLabel(LabelType):
    """Multi-label classification: any number of labels per example, each predicted
    independently."""

    has_classes: ClassVar[bool] = False
    link: ClassVar[LinkFunction] = "several"
    names: tuple[str, ...]
    smoothing: float = 0.0
    threshold: float = several.THRESHOLD
    """Minimum probability at which a label is predicted."""

    def predicted(self, shares_NC: FloatArray) -> NDArray[np.bool_]:
        return several.predicted_labels(shares_NC, self.threshold)

    def stored_targets(self, columns: Columns) -> MultiHot:
        return MultiHot(columns["labels"], len(self.names))

    def prior(self, train_N: StoredTargets, weights_N: NDArray[np.float32] | None) -> FloatArray:
        """Return the log-odds of each label in the training data, with add-one smoothing."""
        assert isinstance(train_N, MultiHot)
        shares_C = (train_N.frequencies() + 1.0) / (len(train_N) + 2.0)
        return np.asarray(np.log(shares_C / (1.0 - shares_C)), np.float64)

    def targets(self, given: Tensor) -> Tensor:
        return given

    def loss(self, read: Read, aims_BC: Tensor) -> TaskLoss:
        return sets_loss(read, aims_BC, self.smoothing)

    def predictions(self, scores_BC: Tensor) -> Tensor:
        return scores_BC.double().sigmoid()

    def values(self, shares_NC: FloatArray, truth_N: TargetArray) -> dict[str, float]:
        """Return metric values by name: the loss in nats, all others in percent."""
        true_NC = truth_N > 0.5
        said_NC = self.predicted(shares_NC)
        return {
            "micro_f1": 100.0 * several.micro_f1(said_NC, true_NC),
            "f1": 100.0 * several.macro_f1(said_NC, true_NC),
            "exact_match": 100.0 * several.exact_match(said_NC, true_NC),
            "map": 100.0 * several.mean_average_precision(shares_NC, true_NC),
            "loss": several.nll(shares_NC, true_NC.astype(np.float64)),
        }

    def temperature(self, shares_at: Callable[[float], FloatArray], truth_N: TargetArray) -> float:
        """Return the temperature that calibrates the probabilities of all labels."""
        return metrics.safe_temperature(shares_at, truth_N.astype(np.float64), several.nll)

    def fitted(self, shares_NC: FloatArray, truth_N: TargetArray) -> MultiLabel:
        """Return a copy with the decision threshold that gives the highest micro F1. To save time,
        it is fitted to the first `ENOUGH` probabilities."""
        n = max(1, metrics.ENOUGH // max(1, len(self.names)))
        return replace(self, threshold=several.best_threshold(shares_NC[:n], truth_N[:n] > 0.5))

    def intervals(self, shares_NC: FloatArray, truth_N: TargetArray) -> dict[str, Range]:
        found = several.micro_f1_interval(self.predicted(shares_NC), truth_N > 0.5)
        return {"micro_f1": percent(found)}

    def figures(self, shares_NC: FloatArray, truth_N: TargetArray, full: bool) -> JsonDict:
        """Return the scores of each label, and the calibration of all probabilities."""
        if not full and len(self.names) > FEW_CLASSES:
            return {}
        found = several.label_scores(self.predicted(shares_NC), truth_N > 0.5)
        pairs = zip(self.names, found, strict=True)
        return {
            "classes": [{"label": label, **vars(score)} for label, score in pairs],
            "calibration": several.calibration(shares_NC, truth_N > 0.5).facts,
        }

    def details(self, figures: JsonDict, unit: str) -> tuple[list[ScoreRow], JsonDict]:
        ece = figures["calibration"]["ece"]
        what = "labels with at least this probability are predicted"
        rows = [
            ("threshold", f"{self.threshold:.3g}", what),
            ("calibration error", f"{100 * ece:.2f} %", "over all labels, predicted or not"),
        ]
        return rows, {"threshold": self.threshold, "ece": ece, "classes": figures["classes"]}

    def remarks(self) -> dict[str, str]:
        return {"f1": "mean over labels", "loss": "nats per label"}

    def baseline_predictions(self, train_N: StoredTargets, n: int) -> dict[str, FloatArray]:
        """Return predictions of the most frequent set of labels for every example.

        The probabilities are label frequencies, clipped so that exactly the labels of the set reach
        the threshold.
        """
        counts = set_counts(train_N)
        often_C = np.zeros(len(self.names))
        for labels, count in counts.items():
            often_C[list(labels)] += count
        often_C = np.clip(often_C / max(1, len(train_N)), 1e-3, 0.998 * self.threshold)
        chosen = list(self._most_common(train_N))
        often_C[chosen] = np.maximum(often_C[chosen], self.threshold)
        return {"most frequent set": np.tile(often_C, (n, 1))}

    def _most_common(self, train_N: StoredTargets) -> tuple[int, ...]:
        counts = set_counts(train_N)
        return min(counts, key=lambda labels: (-counts[labels], labels)) if counts else ()

    def remark(self, train_N: StoredTargets) -> str:
        shown = ", ".join(self.names[label] for label in self._most_common(train_N))
        return f"always {shown!r}" if shown else "always no labels"

    def supports(self, truth_N: TargetArray) -> dict[str, int]:
        counts_C = (truth_N > 0.5).sum(0).tolist()
        return dict(zip(self.names, counts_C, strict=True))

    def named_outputs(self, shares_NC: FloatArray, truth_N: TargetArray) -> PredictionsAndTargets:
        said, true = (
            [self._names(row) for row in sets]
            for sets in (self.predicted(shares_NC), truth_N > 0.5)
        )
        return said, true

    def _names(self, there_C: NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(self.names[label] for label in np.flatnonzero(there_C).tolist())

    def sample(self, shares_C: FloatArray, truth: TargetArray) -> dict[str, str]:
        said = self._names(self.predicted(shares_C))
        return {"target": self.title(truth), "output": ", ".join(said)}

    def title(self, truth: TargetArray) -> str:
        return ", ".join(self._names(truth > 0.5))

    def answer(self, shares_C: FloatArray, place: str, top: int | None) -> LabelsAnswer:
        order = sorted(range(len(shares_C)), key=lambda i: -shares_C[i])
        said = tuple(self.names[i] for i in order if shares_C[i] >= self.threshold)
        return LabelsAnswer(
            text=", ".join(said), place=place, labels=said, classes=self.names,
            probs=tuple(shares_C.tolist()), top=top,
        )  # fmt: skip


@dataclass(frozen=True)
class Regression(LabelType):
    """Regression: prediction of a number.

    The model learns the number minus the mean of the training data, divided by the standard
    deviation.
    """

    has_classes: ClassVar[bool] = False
    link: ClassVar[LinkFunction] = "number"
    mean: float
    std: float
    names: tuple[str, ...] = ()

    def stored_targets(self, columns: Columns) -> NDArray[np.float32]:
        return np.asarray(columns["number"], np.float32)

    def prior(self, train_N: StoredTargets, weights_N: NDArray[np.float32] | None) -> FloatArray:
        """Return the standardized mean of the training data. It is zero unless `classify.mean` is
        set."""
        mean = float(np.mean(train_N[:], dtype=np.float64))
        return np.array([(mean - self.mean) / self.std])

    def targets(self, given: Tensor) -> Tensor:
        return ((given.float() - self.mean) / self.std)[:, None]

    def loss(self, read: Read, aims_BC: Tensor) -> TaskLoss:
        return number_loss(read, aims_BC)

    def predictions(self, scores_BC: Tensor) -> Tensor:
        return scores_BC.double() * self.std + self.mean

    def values(self, shares_NC: FloatArray, truth_N: TargetArray) -> dict[str, float]:
        said, true = shares_NC[:, 0], truth_N.astype(np.float64)
        return {
            "mae": regression.mae(said, true),
            "rmse": regression.rmse(said, true),
            "r2": regression.r2(said, true),
            "pearson": regression.pearson(said, true),
            "spearman": regression.spearman(said, true),
            "loss": float((((said - true) / self.std) ** 2).mean()),
        }

    def intervals(self, shares_NC: FloatArray, truth_N: TargetArray) -> dict[str, Range]:
        found = regression.mae_interval(shares_NC[:, 0], truth_N.astype(np.float64))
        return {"mae": (found.low, found.high)}

    def figures(self, shares_NC: FloatArray, truth_N: TargetArray, full: bool) -> JsonDict:
        """Return up to 400 pairs of target and prediction, for a scatter plot."""
        rows = np.unique(np.linspace(0, len(shares_NC) - 1, min(400, len(shares_NC))).astype(int))
        points = zip(truth_N[rows].tolist(), shares_NC[rows, 0].tolist(), strict=True)
        return {"numbers": [[_short(true), _short(said)] for true, said in points]}

    def remarks(self) -> dict[str, str]:
        return {"loss": "mean squared error of the standardised numbers"}

    def baseline_predictions(self, train_N: StoredTargets, n: int) -> dict[str, FloatArray]:
        return {"mean": np.full((n, 1), float(np.mean(train_N[:], dtype=np.float64)))}

    def remark(self, train_N: StoredTargets) -> str:
        return f"always {float(np.mean(train_N[:], dtype=np.float64)):.4g}"

    def named_outputs(self, shares_NC: FloatArray, truth_N: TargetArray) -> PredictionsAndTargets:
        return shares_NC[:, 0].tolist(), truth_N.tolist()

    def sample(self, shares_C: FloatArray, truth: TargetArray) -> dict[str, str]:
        return {"target": self.title(truth), "output": f"{float(shares_C[0]):.4g}"}

    def title(self, truth: TargetArray) -> str:
        return f"{float(truth):.4g}"

    def answer(self, shares_C: FloatArray, place: str, top: int | None) -> NumberAnswer:
        value = float(shares_C[0])
        return NumberAnswer(text=f"{value:.6g}", place=place, value=value)


def label_type_of(settings: Resolved, labels: Sequence[str]) -> LabelType:
    train, row = settings.train, spec_of(settings)
    if row.is_regression:
        own = settings.classify
        return Regression(own.mean or 0.0, own.std or 1.0)
    if row.is_multi_label:
        threshold = settings.classify.threshold or several.THRESHOLD
        return MultiLabel(tuple(labels), train.label_smoothing, threshold)
    smoothing = LabelSmoothing.of(train.label_smoothing, len(labels), train.label_smoothing_kind)
    return SingleLabel(tuple(labels), smoothing, settings.identify.margin)


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def logs_of(shares_NC: FloatArray) -> FloatArray:
    return np.log(np.maximum(shares_NC, 1e-300))


def with_margin(x_BD: Tensor, angles: CosineHead, aims_BC: Tensor, margin: float) -> Tensor:
    """Return the training logits with an additive angular margin (ArcFace, Deng et al. 2019). The
    margin increases the angle to the true class, so an example must be closer to its own class than
    without a margin."""
    cos_BC = angles.cosines(x_BD).clamp(-1 + 1e-6, 1 - 1e-6)
    turned_BC = (cos_BC.acos() + margin).clamp(max=np.pi).cos()
    return angles.scale * torch.where(aims_BC > 0.5, turned_BC, cos_BC)


def top_n_accuracy(logs_NC: FloatArray, labels_N: IntArray, n: int) -> float:
    """Return the top-`n` accuracy: the fraction of examples whose true class is among the `n` most
    likely. The class with the lower index wins ties."""
    own_N1 = logs_NC[np.arange(len(labels_N)), labels_N][:, None]
    earlier_NC = np.arange(logs_NC.shape[1]) < labels_N[:, None]
    before_NC = (logs_NC > own_N1) | ((logs_NC == own_N1) & earlier_NC)
    return float((before_NC.sum(1) < n).mean())


def percent(interval: Interval) -> Range:
    return 100 * interval.low, 100 * interval.high


def class_calibration(logs_NC: FloatArray, truth_N: IntArray) -> JsonDict:
    """Return the reliability diagram of the predicted classes, and the calibration error before and
    after the best temperature."""
    temperature = metrics.fit_temperature(logs_NC, truth_N)
    after = metrics.calibration(metrics.apply_temperature(logs_NC, temperature), truth_N)
    found = metrics.calibration(logs_NC, truth_N)
    return {**found.facts, "temperature": temperature, "ece_after": after.ece}


def calibration_row(found: Mapping[str, Any], unit: str) -> ScoreRow:
    by_chance = metrics.Calibration([metrics.Bin(**one) for one in found["bins"]], 0.0).by_chance
    remark = (
        f"about {100 * by_chance:.2f} expected by chance; "
        f"best temperature for these {unit}: {found['temperature']:.2f}"
    )
    return "calibration error", f"{100 * found['ece']:.2f} %", remark


def class_frequencies(
    train: IntArray, valid: IntArray, n_labels: int, weights_C: NDArray[np.floating]
) -> TargetFrequencies:
    """Return the class frequencies in the training and validation data, weighted as in the loss."""
    counts = (np.bincount(one, minlength=n_labels) * weights_C for one in (train, valid))
    return TargetFrequencies(*(np.rint(one).astype(np.int64) for one in counts))
