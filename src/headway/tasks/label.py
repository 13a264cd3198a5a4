"""Classification of texts, text pairs, texts with fields, images, videos and audio.

Training, evaluation and prediction read the same items. Code that depends on the kind of input is
in `tasks/preprocess/`, code that depends on the kind of target in `label_kinds.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, to_device
from headway.data.check import rare_label_note
from headway.data.store import Columns, PreparedData, load_prepared
from headway.decode.batching import windows
from headway.errors import DataError, UserError
from headway.metrics.baselines import BagOfWords, TextPair, thinning
from headway.metrics.classification import ENOUGH
from headway.models.parts.ngrams import NgramScores
from headway.models.parts.output_heads import at_least_fp32, set_class_prior
from headway.progress import OnProgress, Progress, no_progress
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats, DeviceInfo, Proposal, because
from headway.settings.run import Resolved, RunSettings, check_effect
from headway.settings.task_rows import spec_of
from headway.specs.metrics import METRICS
from headway.specs.tasks import SPECS
from headway.tasks import few_labels as few
from headway.tasks.answers import Answer
from headway.tasks.dataset import (
    Batch,
    EpochSeed,
    EvalPass,
    FloatArray,
    mean_by_example,
    n_examples,
)
from headway.tasks.hard_distil import HardTeacher, check_teacher
from headway.tasks.label_data import ScoredSet, prepare_labelled, scored_set, unit_of
from headway.tasks.label_defaults import IMBALANCED, MODALITY_DEFAULTS, LabelDefaults, label_stats
from headway.tasks.label_kinds import (
    LabelType,
    MultiLabel,
    StoredTargets,
    TargetArray,
    label_type_of,
)
from headway.tasks.media_answers import note_silence, unreadable_answer
from headway.tasks.media_inputs import LoadedInput
from headway.tasks.ngram_fit import fit_ngrams, ngrams_of
from headway.tasks.objective import MicroBatch, Objective, TargetFrequencies, TaskLoss
from headway.tasks.preprocess.preprocessor import (
    InputDataset,
    InputDatasetMixin,
    InputLine,
    preprocessor_of,
)
from headway.tasks.readout import Read, readout_of
from headway.tasks.scores import (
    MODEL,
    NEURAL,
    NGRAMS,
    Baselines,
    Range,
    Scores,
    Temperature,
    fit_temperature,
    member_remark,
)
from headway.tasks.task import InferenceRequest, Note, Predictor, Task

SAMPLES = 8

BAG = "bag of words"


@dataclass(frozen=True)
class ClassificationDataset(InputDatasetMixin):
    """Inputs with their targets, if the targets are known."""

    inputs: InputDataset
    truth_N: StoredTargets | None = None
    """Target of each example."""

    weights_N: NDArray[np.float32] | None = None
    """Weight of each example; None: all have the same weight."""

    epoch_seed: EpochSeed | None = None

    def n_targets(self, rows: IntArray) -> int:
        return len(rows)

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[Tensor]:
        stream = self.inputs.collate(rows, device, fixed, self.epoch_seed)
        n, owner = stream.layout.n_sequences, self.example_index[rows]
        weights_B = (np.arange(n) < len(rows)).astype(np.float32)
        if self.weights_N is not None:
            weights_B *= np.resize(self.weights_N[owner], n)
        known = np.zeros(len(rows), np.int64) if self.truth_N is None else self.truth_N[owner]
        # Padding of a fixed form repeats the first items: mixup may mix any image with them.
        targets = torch.from_numpy(known[np.resize(np.arange(len(rows)), n)])
        return to_device(Batch((stream,), targets, torch.from_numpy(weights_B)), device)


@dataclass
class ClassifyObjective(Objective[Tensor]):
    """Training and validation of a classification task."""

    prepared: PreparedData

    def __post_init__(self) -> None:
        settings, prepared = self.settings, self.prepared
        self.metric = METRICS[settings.train.metric or spec_of(settings).scores[0]]
        self.preprocessor = preprocessor_of(settings, prepared.input_tokenizer)
        self.label_type = label_type_of(settings, prepared.labels)
        self.readout = readout_of(settings)
        self.truth_N = self.label_type.stored_targets(prepared.train)
        self.weights_N = None
        if self.label_type.has_classes and getattr(settings, settings.task).balance:
            self.weights_N = self.label_type.weights(self.truth_N)
        train, valid = (
            self.preprocessor.input_dataset(prepared.train),
            self.preprocessor.input_dataset(prepared.valid),
        )
        self.train_dataset: ClassificationDataset = ClassificationDataset(
            train, self.truth_N, self.weights_N
        )
        self.valid_truth_N = self.label_type.stored_targets(prepared.valid)[:]
        self.valid_dataset: ClassificationDataset = ClassificationDataset(valid, self.valid_truth_N)
        self.teacher = HardTeacher(settings) if settings.classify.teacher else None

    def begin(self, model: nn.Module, note: Note) -> None:
        set_class_prior(model, self.label_type.prior(self.truth_N, self.weights_N))
        tokenizer = self.prepared.input_tokenizer
        if ngrams_of(model) is None or tokenizer is None:
            return
        link, target = self.label_type.link, self.label_type

        def right(batch: Batch[Tensor]) -> Tensor:
            return batch.targets if link == "one" else target.targets(batch.targets)

        fit_ngrams(model, self.train_dataset, right, tokenizer, note, link)

    def augment(self, model: nn.Module, batch: Batch[Tensor]) -> Batch[Tensor]:
        """The augmented batch, with its targets as a matrix like the logits (B C)."""
        stream = self.train_dataset.inputs.to_model_input(batch.streams[0])
        aims_BC = self.label_type.targets(batch.targets)
        if model.training:
            stream, aims_BC = self.preprocessor.apply_augmentation(model, stream, aims_BC)
        return replace(batch, streams=(stream,), targets=aims_BC)

    def read(self, model: nn.Module, given: Batch[Tensor]) -> Read:
        assert given.weights_R is not None
        return self.readout.read(model, *given.streams).with_weights(given.weights_R)

    def loss(self, read: Read, given: Batch[Tensor]) -> TaskLoss:
        """The loss of all heads. A distillation token has half of the weight: its target is the
        teacher's prediction for the same example, or the true label if there is no teacher, as in
        further training of an imported DeiT."""
        own = self.label_type.loss(read, given.targets)
        if not read.extra_heads:
            return own
        taught_BC = given.targets
        if self.teacher is not None:
            taught_BC = self.label_type.targets(self.teacher.predict(given.streams[0]))
        total = read.loss_weight * own.sum
        for other in read.extra_heads.values():
            total = total + other.loss_weight * self.label_type.loss(other, taught_BC).sum
        return TaskLoss(total, own.nll)

    def evaluate(self, asked: EvalPass) -> Scores:
        target, asked = self.label_type, replace(asked, max_examples=self.n_evaluated(asked))
        truth_N = self.valid_truth_N[: asked.max_examples]
        said = Predictions.compute(asked, target, self.settings, self.valid_dataset)
        temperature = said.temperature(truth_N) if asked.calibrate else None
        if temperature is not None:
            said = said.with_ngram_weight(temperature.ngram_weight)
        divisor = temperature.value if temperature else 1.0
        said_NC = said.per_example(divisor)
        if self.fits_threshold:
            target = target.fitted(said_NC, truth_N)
        alone = {
            who: PredictedValues(target, one.per_example(divisor))
            for who, one in said.single_members.items()
        }
        figures = target.figures(said_NC, truth_N, asked.full)
        if asked.full and target.has_classes:
            figures |= self.preprocessor.figures(
                self.prepared.valid, said_NC, truth_N, target.names
            )
        return Scores(
            values=target.values(said_NC, truth_N),
            samples=self._samples(target, said_NC, truth_N),
            figures=figures,
            find_baselines=lambda: self.baselines,
            find_members=lambda: {who: one.values(truth_N) for who, one in alone.items()},
            find_answers=lambda: target.named_outputs(said_NC, truth_N),
            find_ranges=lambda: self._ranges(
                {MODEL: PredictedValues(target, said_NC), **alone}, truth_N
            ),
            temperature=temperature,
            fitted=fitted_settings(target, self.label_type),
        )

    @property
    def fits_threshold(self) -> bool:
        """Whether the threshold of multi-label predictions is fitted: only if not set by hand."""
        return "classify.threshold" not in self.settings.asked

    @cached_property
    def _baseline_predictions(self) -> dict[str, PredictedValues]:
        """Predictions of the baselines for the validation examples."""
        prepared, intake = self.prepared, self.preprocessor
        train = TrainSet(self.truth_N, intake.texts(prepared.train))
        valid = ScoredSet(prepared.valid, self.valid_truth_N, intake.texts(prepared.valid))
        return baseline_predictions(self.label_type, train, valid, valid)

    @cached_property
    def baselines(self) -> Baselines:
        truth_N = self.valid_truth_N
        return {name: one.values(truth_N) for name, one in self._baseline_predictions.items()}

    def _ranges(
        self, models: Mapping[str, PredictedValues], truth_N: TargetArray
    ) -> dict[str, Range]:
        score, all_N = self.metric.name, self.valid_truth_N
        found = {
            name: one.interval_of(score, all_N) for name, one in self._baseline_predictions.items()
        }
        found |= {name: one.interval_of(score, truth_N) for name, one in models.items()}
        return {name: one for name, one in found.items() if one}

    def prior_loss(self) -> float | None:
        if self.settings.identify.margin:  # a margin makes the loss larger than cross-entropy
            return None
        if self.weights_N is not None:  # `balance` raises the loss of the frequent classes
            return None
        prior_1C = torch.from_numpy(self.label_type.prior(self.truth_N, None))[None]
        shares_NC = np.tile(
            self.label_type.predictions(prior_1C).numpy(), (len(self.valid_truth_N), 1)
        )
        return self.label_type.values(shares_NC, self.valid_truth_N)["loss"]

    def notes(self) -> list[str]:
        """A line about the metric that chooses the checkpoint, if it is not the task's default."""
        why = self.settings.why.get("train.metric", "")
        if not why.startswith(IMBALANCED):
            return []
        usual = spec_of(self.settings).scores[0]
        return [
            f"{why}: the checkpoint with the best validation {self.metric.label} is kept (to use "
            f"{METRICS[usual].label} instead: train.metric={usual})"
        ]

    def cautions(self) -> list[str]:
        text = rare_label_note(self.label_type.supports(self.valid_truth_N))
        return [f"caution: {text} Their scores and macro F1 are unreliable."] if text else []

    def few_labels(self, device: torch.device) -> list[dict[str, Any]]:
        """Learning curve of cheap classifiers, for texts whose run starts from an encoder."""
        texts, run = self.preprocessor.texts(self.prepared.train), self.settings.start.run
        if texts is None or not run or not self.label_type.has_classes:
            return []
        labels_N = np.asarray(self.truth_N[:], np.int64)
        if self.metric.name != "accuracy" or not few.is_few(labels_N):
            return []
        held = self.preprocessor.texts(self.prepared.valid)
        assert held is not None
        known_ND, asked_ND = few.vectors_by(run, device, (self.train_dataset, self.valid_dataset))
        valid = held, asked_ND, np.asarray(self.valid_truth_N, np.int64)
        return few.curve((texts, known_ND, labels_N), valid)

    def frequencies(self) -> TargetFrequencies | None:
        return self.label_type.frequencies(self.truth_N, self.valid_truth_N, self.weights_N)

    def _samples(
        self, target: LabelType, said_NC: FloatArray, truth_N: TargetArray
    ) -> list[dict[str, str]]:
        texts = self.preprocessor.texts(self.prepared.valid, SAMPLES)
        if texts is None:
            names = [str(one["place"]) for one in self.prepared.valid_examples[:SAMPLES]]
        else:
            names = [" │ ".join(filter(None, text)) for text in texts]
        return [
            {"source": name, **target.sample(said_C, true)}
            for name, said_C, true in zip(names, said_NC, truth_N, strict=False)
        ]

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        shown, items = [], self.train_dataset
        for row in part.rows.rows:
            example = int(items.example_index[row])
            texts = self.preprocessor.texts(self.prepared.train, 1, example)
            what = {"item": example} if texts is None else {"text": "\t".join(texts[0]).rstrip()}
            shown.append({**what, "label": self.label_type.title(self.truth_N[example])})
        return shown


@dataclass(frozen=True)
class Predictions:
    """Logits of a model for the items of the first examples, by member of the model."""

    label_type: LabelType
    dataset: ClassificationDataset
    n: int
    """Number of examples."""

    rows: Sequence[IntArray]
    neural: Sequence[Tensor]
    """Logits of these items (R C) from the model's layers."""

    ngrams: Sequence[Tensor] | None = None
    """Logits of the same items from the n-gram member, if the model has one."""

    ngram_weight: float = 0.0
    """Weight of the n-grams in the prediction."""

    @classmethod
    @torch.no_grad()
    def compute(
        cls, asked: EvalPass, target: LabelType, settings: Resolved, items: ClassificationDataset
    ) -> Predictions:
        readout, found = readout_of(settings), list[tuple[IntArray, Tensor]]()
        ngrams, share = list[Tensor](), 0.0
        for rows, batch in asked.examples(items):
            read = readout.read(asked.model, items.inputs.to_model_input(batch.streams[0]))
            found.append((rows, read.neural.averaged_logits().cpu()))
            if read.ngrams is not None:
                ngrams.append(at_least_fp32(read.ngrams.scores_RC).cpu())
                share = float(read.ngrams.ngram_weight)
        n = n_examples(items) if asked.max_examples is None else asked.max_examples
        every, neural = [rows for rows, _ in found], [scores for _, scores in found]
        return cls(target, items, n, every, neural, ngrams or None, share)

    def with_ngram_weight(self, share: float | None) -> Predictions:
        """A copy in which the n-grams have this weight; None: their present weight."""
        return self if share is None else replace(self, ngram_weight=share)

    @property
    def single_members(self) -> dict[str, Predictions]:
        """The logits of each member alone; empty for a model without n-grams."""
        if self.ngrams is None:
            return {}
        return {NEURAL: replace(self, ngram_weight=0.0), NGRAMS: replace(self, ngram_weight=1.0)}

    def members(self, truth_N: TargetArray) -> Baselines:
        return {
            who: self.label_type.values(one.per_example(), truth_N)
            for who, one in self.single_members.items()
        }

    def per_example(self, temperature: float = 1.0) -> FloatArray:
        """Predictions for each example: the mean over its windows."""
        made = (
            (rows, self.label_type.predictions(scores_RC / temperature).numpy())
            for rows, scores_RC in zip(self.rows, self._scores(), strict=True)
        )
        return mean_by_example(made, self.dataset, self.n)

    def _scores(self) -> Iterable[Tensor]:
        if self.ngrams is None:
            return self.neural
        both = zip(self.neural, self.ngrams, strict=True)
        return (NgramScores(other_RC, torch.tensor(self.ngram_weight)).blend(one_RC)
                for one_RC, other_RC in both)  # fmt: skip

    def temperature(self, truth_N: TargetArray) -> Temperature | None:
        """The temperature with the lowest loss on these examples, fitted to at most `ENOUGH`
        probabilities."""
        some = self.first(ENOUGH // max(1, len(self.label_type.names)))
        truth_N = truth_N[: some.n]
        return fit_temperature(
            lambda share: self.label_type.temperature(
                some.with_ngram_weight(share).per_example, truth_N
            ),
            lambda value, share: self.label_type.values(
                some.with_ngram_weight(share).per_example(value), truth_N
            )["loss"],
            some.n,
            some.ngrams is not None,
        )

    def first(self, n: int) -> Predictions:
        """A copy with only the first `n` examples."""
        if n >= self.n:
            return self
        kept = [self.dataset.example_index[rows] < n for rows in self.rows]

        def cut(scores: Sequence[Tensor]) -> list[Tensor]:
            return [x_RC[torch.from_numpy(some)] for some, x_RC in zip(kept, scores, strict=True)]

        rows = [rows[some] for some, rows in zip(kept, self.rows, strict=True)]
        ngrams = None if self.ngrams is None else cut(self.ngrams)
        return replace(self, n=n, rows=rows, neural=cut(self.neural), ngrams=ngrams)


class PredictedValues(NamedTuple):
    """Predicted probabilities or numbers, with the kind of target that scores them."""

    label_type: LabelType
    predictions_NC: FloatArray

    def values(self, truth_N: TargetArray) -> dict[str, float]:
        return self.label_type.values(self.predictions_NC, truth_N)

    def interval_of(self, score: str, truth_N: TargetArray) -> Range | None:
        return self.label_type.interval_of(score, self.predictions_NC, truth_N)


class TrainSet(NamedTuple):
    """Training data of the baselines."""

    truth_N: StoredTargets
    texts: Sequence[TextPair] | None


def baseline_predictions(
    target: LabelType, train: TrainSet, valid: ScoredSet | None, test: ScoredSet
) -> dict[str, PredictedValues]:
    """Predictions of the baselines for `test`: from label frequencies, and from a bag of words. The
    threshold of the bag of words is fitted on `valid`, like that of a model."""
    found = {
        name: PredictedValues(target, shares_NC)
        for name, shares_NC in target.baseline_predictions(train.truth_N, len(test.truth_N)).items()
    }
    if train.texts is None or test.texts is None:
        return found
    every = thinning(train.texts)
    right_NC = target.targets(torch.from_numpy(np.asarray(train.truth_N[::every])))
    bag = BagOfWords.fit_to(train.texts[::every], right_NC, target.link)

    def by_bag(texts: Sequence[TextPair]) -> FloatArray:
        return target.predictions(bag.scores(texts)).numpy()

    if valid is not None and valid.texts is not None:
        target = target.fitted(by_bag(valid.texts), valid.truth_N)
    return {**found, BAG: PredictedValues(target, by_bag(test.texts))}


def fitted_settings(fitted: LabelType, before: LabelType) -> dict[str, float]:
    """Settings of a run that were fitted on its validation data."""
    if fitted is before or not isinstance(fitted, MultiLabel):
        return {}
    return {"classify.threshold": fitted.threshold}


@dataclass
class ClassifyPredictor:
    """Predictor of labels or numbers. Several models predict the mean of their outputs."""

    use: InferenceRequest
    n_given: int = field(default=0, init=False)
    n_failed: int = field(default=0, init=False)
    n_windowed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        opened = self.use.opened
        self.top = self.use.options.get("top")
        if self.top is not None and self.top < 1:
            raise UserError(f"--top {self.top} must be at least 1.")
        self.label_type = label_type_of(self.use.settings, self.use.settings.labels)
        words = None if opened.words is None else opened.words.target
        runs = (self.use.settings, *opened.runs[1:])
        self.preprocessors = [preprocessor_of(run, words) for run in runs]
        self.runs = runs

    def answers(self, lines: Iterable[InputLine], live: bool = False) -> Iterator[Answer]:
        first, opened = self.preprocessors[0], self.use.opened
        found = first.parse(lines, opened.folder, self.use.settings)
        for window in windows(found, first.at_first, live=live):
            yield from self._window(window)

    def _window(self, window: Sequence[LoadedInput]) -> Iterator[Answer]:
        values = [one.values for one in window if one.values is not None]
        try:
            said = iter(self._predicted(values))
        except DataError as error:  # for example, too long for an exported graph: try one by one
            if not window[0].name:
                raise
            if len(window) > 1:
                for one in window:
                    yield from self._window([one])
                return
            [one] = window
            window, values = [replace(one, values=None, error=f"{one.name}: {error}")], []
            said = iter(())
        self.n_given += len(window)
        self.n_failed += len(window) - len(values)
        for one in window:
            if one.values is None:
                yield unreadable_answer(one.name, one.error)
            else:
                yield note_silence(self.label_type.answer(next(said), one.name, self.top), one)

    def _predicted(self, values: Sequence[object]) -> Iterable[FloatArray]:
        return (
            self.predict(self.preprocessors[0].columns(values), self.use.between) if values else ()
        )

    def predict(self, columns: Columns, on_progress: OnProgress = no_progress) -> FloatArray:
        """Predictions for the examples, in order: the mean over the models."""
        said = self.predictions(columns, on_progress)
        return np.mean([one.per_example() for one in said], axis=0)

    def predictions(
        self, columns: Columns, on_progress: OnProgress = no_progress
    ) -> list[Predictions]:
        """The logits of each model."""
        opened, found = self.use.opened, list[Predictions]()
        for intake, run, model in zip(self.preprocessors, self.runs, opened.models, strict=True):
            items = ClassificationDataset(intake.input_dataset(columns))
            intake.check_lengths(items.inputs.full_lengths, self.n_given)
            if not found:
                self.n_windowed += int((np.bincount(items.example_index) > 1).sum())
            asked = EvalPass(model, opened.device, on_progress=on_progress)
            found.append(Predictions.compute(asked, self.label_type, run, items))
        return found

    def summary(self) -> str:
        unit = spec_of(self.use.settings).counts
        text = f"{self.n_given:,} {unit}{'s' * (self.n_given != 1)}"
        if self.n_failed:
            text += f", {self.n_failed:,} of them could not be read"
        if self.n_windowed:
            text += f", {self.n_windowed:,} of them too long to read at once and read in windows"
        return text


def evaluate_files(use: InferenceRequest, files: DataSettings) -> Scores:
    """Scores on labelled examples, with confidence intervals and baselines."""
    settings, labeller = use.settings, ClassifyPredictor(use)
    words = None if use.opened.words is None else use.opened.words.target
    test = scored_set(settings, files, settings.labels, words, use.progress)
    with use.progress.stage("reading", len(test.truth_N), unit_of(settings)) as stage:
        said = labeller.predictions(test.columns, stage.update)
    said_NC = np.mean([one.per_example() for one in said], axis=0)
    found = scores_of(labeller, said_NC, test, said[0] if len(said) == 1 else None)
    if test.texts is not None:
        found.facts["windowed"] = labeller.n_windowed
    return found


def scores_of(
    labeller: ClassifyPredictor,
    said_NC: FloatArray,
    test: ScoredSet,
    said: Predictions | None = None,
) -> Scores:
    """Scores, table rows and baselines of predictions for a test set. `said`: the logits of a
    single model, from which the scores of its members follow."""
    target, settings, truth_N = labeller.label_type, labeller.use.settings, test.truth_N
    members = {} if said is None else said.members(truth_N)
    share = 0.0 if said is None else said.ngram_weight
    figures = target.figures(said_NC, truth_N, full=True)
    rows, facts = target.rows(said_NC, truth_N, figures, unit_of(settings))
    if empty := sum(not any(map(str.strip, text)) for text in test.texts or ()):
        rows.append(("empty texts", f"{empty:,}", "included in the scores"))
    values = target.values(said_NC, truth_N)
    baselines, remarks = _baselines(labeller, test)
    shown = {name: one[target.headline] for name, one in baselines.items()}
    digits = METRICS[target.headline].digits
    rows += [
        (name, f"{one[target.headline]:.{digits}f}", member_remark(name, share))
        for name, one in members.items()
    ]
    rows += [
        (name, f"{shown[name]:.{digits}f}" if name in shown else "–", remark)
        for name, remark in remarks.items()
    ]
    return Scores(
        values,
        rows=rows,
        facts={**facts, "baselines": shown, **({"members": members} if members else {})},
        figures={**figures, "baselines": shown},
        find_baselines=lambda: baselines,
        find_members=lambda: members,
        find_answers=lambda: target.named_outputs(said_NC, truth_N),
    )


HOW_BAG = {
    "one": "logistic regression on words and word pairs",
    "several": "one logistic regression per label on words and word pairs",
    "number": "ridge regression on words and word pairs",
}


def _baselines(labeller: ClassifyPredictor, test: ScoredSet) -> tuple[Baselines, dict[str, str]]:
    """Scores of the baselines by name, and a remark about each."""
    target, intake = labeller.label_type, labeller.preprocessors[0]
    try:
        prepared = load_prepared(labeller.use.opened.folder)
    except (UserError, OSError):  # the folder may have been copied without its data
        found = baseline_predictions(target, TrainSet(test.truth_N, None), None, test)
        remark = f"{target.remark(test.truth_N)}, estimated from the test set"
        gone = {BAG: "not available: the run's training texts are not in its folder"}
        remarks = dict.fromkeys(found, remark) | (gone if test.texts is not None else {})
    else:
        train = TrainSet(target.stored_targets(prepared.train), intake.texts(prepared.train))
        texts, truth_N = intake.texts(prepared.valid), target.stored_targets(prepared.valid)[:]
        found = baseline_predictions(target, train, ScoredSet(prepared.valid, truth_N, texts), test)
        remarks = dict.fromkeys(found, target.remark(train.truth_N))
        if BAG in found:
            remarks[BAG] = HOW_BAG[target.link]
    return {name: one.values(test.truth_N) for name, one in found.items()}, remarks


class ClassifyTask(Task):
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        return prepare_labelled(self.row.modality, settings, folder, progress)

    def describe(self, prepared: PreparedData) -> str:
        amount, names = f"{prepared.train.n:,} {self.row.counts}s", len(prepared.labels)
        if "number" in prepared.train:
            return f"{amount}, each with a number"
        if "labels" in prepared.train:
            return f"{amount} with any number of {names} labels"
        return f"{amount} of {names} {'speakers' if self.row.compares else 'classes'}"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        return label_stats(MODALITY_DEFAULTS[self.row.modality].facts(settings, prepared), prepared)

    def propose(self, settings: RunSettings, facts: DatasetStats, device: DeviceInfo) -> Proposal:
        choices, head = MODALITY_DEFAULTS[self.row.modality], LabelDefaults.of(self.row, facts)
        found = choices.propose(settings, facts, device, head)
        found = replace(found, metric_reason=head.why_metric)
        if len(SPECS[self.row.name].rows) == 1:
            return found
        held: dict[str, object] = {"modality": self.row.modality, "answer": facts.answer}
        if facts.answer == "number":
            held |= {"mean": facts.mean, "std": facts.std}
        return found.with_others(because("detected in the data", self.row.name, held))

    def check(self, settings: Resolved, prepared: PreparedData) -> None:
        """Raise an error for settings without effect on this kind of target, and for examples that
        are too long if they must not be read in windows."""
        check_effect(settings, [spec_of(settings)])
        if settings.classify.teacher:
            check_teacher(settings)
        intake = preprocessor_of(settings, prepared.input_tokenizer)
        parts = [intake.input_dataset(part) for part in (prepared.train, prepared.valid)]
        intake.check_lengths(np.concatenate([part.full_lengths for part in parts]))

    def objective(self, settings: Resolved, prepared: PreparedData) -> ClassifyObjective:
        return ClassifyObjective(settings, prepared)

    def predictor(self, use: InferenceRequest) -> Predictor:
        return ClassifyPredictor(use)

    def evaluation(self, use: InferenceRequest, files: DataSettings) -> Scores:
        return evaluate_files(use, files)
