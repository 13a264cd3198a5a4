"""Classification and regression for texts, text pairs, documents with fields, images, videos and
audio.

Training, evaluation and prediction use the same datasets. Code that depends on the kind of input is
in `tasks/preprocess/`, code that depends on the kind of target in `label_kinds.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, to_device
from headway.data.check_report import rare_label_note
from headway.data.store import Columns, PreparedData
from headway.decode.batching import windows
from headway.errors import DataError, Option, UserError
from headway.metrics.baselines import BagOfWords, TextPair, thinning
from headway.metrics.classification import ENOUGH
from headway.models.parts.ngrams import NgramScores
from headway.models.parts.output_heads import at_least_fp32, set_class_prior
from headway.nn.logistic import LinkFunction
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats
from headway.settings.run import Resolved, RunSettings, check_effect
from headway.settings.task_rows import spec_of
from headway.specs.metrics import METRICS
from headway.tasks.answers import Answer
from headway.tasks.dataset import (
    Batch,
    EpochSeed,
    EvalPass,
    FloatArray,
    mean_by_example,
    n_examples,
)
from headway.tasks.evaluate import Evaluator, TrainingData
from headway.tasks.hard_distil import HardTeacher, check_teacher
from headway.tasks.label_data import labelled_columns, prepare_labelled, unit_of
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
    Preprocessor,
    preprocessor_of,
)
from headway.tasks.readout import Read, readout_of
from headway.tasks.scores import (
    NEURAL,
    NGRAMS,
    Methods,
    MethodScores,
    Scores,
    Temperature,
    fit_temperature,
    member_remark,
)
from headway.tasks.task import InferenceRequest, Note, Predictor, Task
from headway.tokens.tokenizer import Tokenizer

SAMPLES = 8
"""Number of examples that are listed with their predictions in the report of an evaluation: a short
list."""

BAG = "bag of words"


@dataclass(frozen=True)
class ClassificationDataset(InputDatasetMixin):
    """Examples as model inputs, with their targets if these are known."""

    inputs: InputDataset
    truth_N: StoredTargets | None = None
    """Target of each example; None if the targets are unknown."""

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
        # Fill a batch of fixed size with its first items instead of zeros, because mixup may mix
        # any of its images.
        targets = torch.from_numpy(known[np.resize(np.arange(len(rows)), n)])
        return to_device(Batch((stream,), targets, torch.from_numpy(weights_B)), device)


@dataclass
class ClassifyObjective(Objective[Tensor]):
    """Training objective of classification, which defines targets, augmentation, losses and
    validation."""

    evaluator: ClassifyEvaluator = field(init=False)
    train_dataset: ClassificationDataset = field(init=False)
    valid_dataset: ClassificationDataset = field(init=False)

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
        self.train_dataset = ClassificationDataset(train, self.truth_N, self.weights_N)
        self.evaluator = self.make_evaluator()
        self.valid_truth_N = self.label_type.stored_targets(prepared.valid)[:]
        self.valid_dataset = ClassificationDataset(valid, self.valid_truth_N)
        places = [str(one.get("place", "")) for one in prepared.valid_examples]
        self.valid_set = LabelledSet(
            prepared.valid, self.valid_truth_N, (self.valid_dataset,), places=places
        )
        self.teacher = HardTeacher(settings) if settings.classify.teacher else None

    def make_evaluator(self) -> ClassifyEvaluator:
        return ClassifyEvaluator.of((self.settings,), self.prepared.input_tokenizer)

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
        """Return the augmented batch, with its targets as a matrix of the shape of the logits (B
        C)."""
        stream = self.train_dataset.inputs.to_model_input(batch.streams[0])
        aims_BC = self.label_type.targets(batch.targets)
        if model.training:
            stream, aims_BC = self.preprocessor.apply_augmentation(model, stream, aims_BC)
        return replace(batch, streams=(stream,), targets=aims_BC)

    def read(self, model: nn.Module, given: Batch[Tensor]) -> Read:
        assert given.weights_R is not None
        return self.readout.read(model, *given.streams).with_weights(given.weights_R)

    def loss(self, read: Read, given: Batch[Tensor]) -> TaskLoss:
        """Return the loss over all heads.

        The head of a distillation token has half of the weight. Its target is the class that the
        teacher predicts. Without a teacher it is the true label, as in further training of an
        imported DeiT.
        """
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
        """Return a line about the metric that selects the checkpoint; empty if it is the task's
        default."""
        why = self.settings.why.get("train.metric", "")
        usual = spec_of(self.settings).scores[0]
        if not why or self.metric.name == usual:
            return []
        return [
            f"{why}: the checkpoint with the best validation {self.metric.label} is kept (to use "
            f"{METRICS[usual].label} instead: train.metric={usual})"
        ]

    def evaluate(self, asked: EvalPass) -> Scores:
        """Return the scores of the classifier, with a warning if some labels are rare. The learning
        curve of cheap classifiers is computed only at the end of training."""
        text = rare_label_note(self.label_type.supports(self.valid_truth_N))
        caution = f"caution: {text} Their scores and macro F1 are unreliable."
        return super().evaluate(asked).updated(
            cautions=[caution] if text else [],
            find_late_facts=lambda: {"few": self._few_labels(asked.device)},
        )  # fmt: skip

    def _few_labels(self, device: torch.device) -> list[dict[str, Any]]:
        """Return the learning curve of cheap classifiers on few labelled examples. It is empty
        unless the run fine-tunes a text encoder on a small dataset with one label per example."""
        from headway.tasks import few_labels as few

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

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        shown, items = [], self.train_dataset
        for row in part.rows.rows:
            example = int(items.example_index[row])
            texts = self.preprocessor.texts(self.prepared.train, 1, example)
            what = {"item": example} if texts is None else {"text": "\t".join(texts[0]).rstrip()}
            shown.append({**what, "label": self.label_type.title(self.truth_N[example])})
        return shown


@dataclass(frozen=True)
class ItemLogits:
    """Logits for all windows of the first `n` examples, kept separately for a model's neural layers
    and its n-gram table."""

    label_type: LabelType
    dataset: ClassificationDataset
    n: int
    """Number of examples whose windows have logits."""

    rows: Sequence[IntArray]
    neural: Sequence[Tensor]
    """Logits of the neural layers (R C), batch by batch."""

    ngrams: Sequence[Tensor] | None = None
    """Logits of the n-gram table for the same windows; None if the model has no n-grams."""

    ngram_weight: float = 0.0
    """Weight of the n-grams in the prediction, from 0 to 1."""

    @classmethod
    @torch.no_grad()
    def compute(
        cls, asked: EvalPass, target: LabelType, settings: Resolved, items: ClassificationDataset
    ) -> ItemLogits:
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

    def with_ngram_weight(self, share: float | None) -> ItemLogits:
        """Return a copy with this weight of the n-grams; None: unchanged."""
        return self if share is None else replace(self, ngram_weight=share)

    @property
    def single_members(self) -> dict[str, ItemLogits]:
        """Copies that predict with only the neural layers and with only the n-grams; empty for a
        model without n-grams."""
        if self.ngrams is None:
            return {}
        return {NEURAL: replace(self, ngram_weight=0.0), NGRAMS: replace(self, ngram_weight=1.0)}

    def per_example(self, temperature: float = 1.0) -> FloatArray:
        """Return the prediction for each example, averaged over its windows: probabilities, or a
        number in regression."""
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
        """Return the calibration temperature with the lowest loss on these examples. It is fitted
        to at most `ENOUGH` probabilities, to save time."""
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

    def first(self, n: int) -> ItemLogits:
        """Return a copy with only the first `n` examples."""
        if n >= self.n:
            return self
        kept = [self.dataset.example_index[rows] < n for rows in self.rows]

        def cut(scores: Sequence[Tensor]) -> list[Tensor]:
            return [x_RC[torch.from_numpy(some)] for some, x_RC in zip(kept, scores, strict=True)]

        rows = [rows[some] for some, rows in zip(kept, self.rows, strict=True)]
        ngrams = None if self.ngrams is None else cut(self.ngrams)
        return replace(self, n=n, rows=rows, neural=cut(self.neural), ngrams=ngrams)


@dataclass(frozen=True)
class LabelPredictions:
    """Predictions of each ensemble member for the first examples of an evaluation set."""

    label_type: LabelType
    models: Sequence[ItemLogits]
    temperature: Temperature | None = None
    fitted: Mapping[str, float] = field(default_factory=dict)
    """Run settings that were fitted to these examples, such as a threshold, by dotted name."""

    scored_N: NDArray[np.bool_] | None = None
    """Mask of the examples that are scored; None: all of them."""

    @property
    def divisor(self) -> float:
        return self.temperature.value if self.temperature else 1.0

    @cached_property
    def probs_NC(self) -> FloatArray:
        """Probabilities (or numbers) for each example, averaged over the models of an ensemble."""
        return np.mean([self._per_example(one) for one in self.models], axis=0)

    def _per_example(self, logits: ItemLogits) -> FloatArray:
        probs_NC = logits.per_example(self.divisor)
        return probs_NC if self.scored_N is None else probs_NC[self.scored_N]

    @property
    def members(self) -> dict[str, FloatArray]:
        """Predictions of a single model with only its neural layers and with only its n-grams, by
        name; empty without n-grams."""
        if len(self.models) > 1:
            return {}
        found = self.models[0].single_members
        return {name: self._per_example(one) for name, one in found.items()}


@dataclass(frozen=True)
class LabelledSet:
    """Examples with their targets, on which a classifier is evaluated."""

    columns: Columns
    truth_N: TargetArray
    datasets: Sequence[ClassificationDataset]
    """Model inputs of the examples, for each model of an ensemble."""

    originals: Sequence[TextPair] | None = None
    """Texts as written in the files of a test set. None: decode the texts from their tokens."""

    places: Sequence[str] = ()
    """Names of the first media examples, such as file names; empty for texts."""


@dataclass(frozen=True)
class ClassifyEvaluator(Evaluator[LabelledSet, LabelPredictions]):
    """Evaluation of a classifier, or of an ensemble of classifiers."""

    runs: Sequence[Resolved]
    tokenizer: Tokenizer | None
    label_type: LabelType

    @classmethod
    def of(cls, runs: Sequence[Resolved], tokenizer: Tokenizer | None) -> Self:
        return cls(runs, tokenizer, label_type_of(runs[0], runs[0].labels))

    @property
    def settings(self) -> Resolved:
        return self.runs[0]

    @cached_property
    def preprocessors(self) -> list[Preprocessor]:
        return [preprocessor_of(run, self.tokenizer) for run in self.runs]

    def datasets(self, columns: Columns, before: int = 0) -> list[ClassificationDataset]:
        """Return the examples as inputs of each model. `before`: number of inputs answered earlier,
        to number the inputs in error messages."""
        found = []
        for preprocessor in self.preprocessors:
            inputs = preprocessor.input_dataset(columns)
            preprocessor.check_lengths(inputs.full_lengths, before)
            found.append(ClassificationDataset(inputs))
        return found

    def predict_datasets(
        self, asked: EvalPass, datasets: Sequence[ClassificationDataset]
    ) -> LabelPredictions:
        models = [
            ItemLogits.compute(replace(asked, model=model), self.label_type, run, items)
            for model, run, items in zip(asked.models, self.runs, datasets, strict=True)
        ]
        return LabelPredictions(self.label_type, models)

    def predict(self, asked: EvalPass, examples: LabelledSet) -> LabelPredictions:
        return self.predict_datasets(asked, examples.datasets)

    def fitted(
        self, predictions: LabelPredictions, examples: LabelledSet, calibrate: bool
    ) -> LabelPredictions:
        """Return the predictions with a fitted temperature and decision threshold. A threshold that
        the user set is kept."""
        said, truth_N = predictions, examples.truth_N[: len(predictions.probs_NC)]
        temperature = said.models[0].temperature(truth_N) if calibrate else None
        if temperature is not None:
            weighted = said.models[0].with_ngram_weight(temperature.ngram_weight)
            said = replace(said, models=[weighted], temperature=temperature)
        if "classify.threshold" in self.settings.asked:
            return said
        target = self.label_type.fitted(said.probs_NC, truth_N)
        return replace(said, label_type=target, fitted=fitted_settings(target, self.label_type))

    def score(self, predictions: LabelPredictions, examples: LabelledSet, full: bool) -> Scores:
        said, target, unit = predictions, predictions.label_type, unit_of(self.settings)
        probs_NC, truth_N = said.probs_NC, examples.truth_N[: len(said.probs_NC)]
        figures = target.figures(probs_NC, truth_N, full)
        details, facts = target.details(figures, unit) if full else ([], {})
        if full and target.has_classes and said.scored_N is None:
            figures |= self.preprocessors[0].figures(
                examples.columns, probs_NC, truth_N, target.names
            )
        if full and examples.originals is not None:
            empty = sum(not any(map(str.strip, text)) for text in examples.originals)
            details += [("empty texts", f"{empty:,}", "included in the scores")] * bool(empty)
            windows_N = np.bincount(examples.datasets[0].example_index)
            facts |= {"windowed": int((windows_N > 1).sum())}
        share = said.models[0].ngram_weight
        return Scores(
            target.values(probs_NC, truth_N), n=len(truth_N), unit=unit,
            remarks=target.remarks(),
            find_intervals=lambda: target.intervals(probs_NC, truth_N),
            details=details, facts=facts, figures=figures,
            samples=self._samples(target, probs_NC, examples),
            find_answers=lambda: target.named_outputs(probs_NC, truth_N),
            find_members=lambda: {
                name: method_scores(target, one_NC, truth_N, member_remark(name, share))
                for name, one_NC in said.members.items()
            },
            temperature=said.temperature, fitted=said.fitted,
        )  # fmt: skip

    def baselines(
        self, data: TrainingData, examples: LabelledSet, predictions: LabelPredictions
    ) -> Methods:
        target, truth_N = self.label_type, examples.truth_N
        if data is None:
            where = f"{target.remark(truth_N)}, estimated from the test set"
            found = target.baseline_predictions(truth_N, len(truth_N)).items()
            methods = {name: method_scores(target, one, truth_N, where) for name, one in found}
            gone = MethodScores({}, "not available: the run has no training data")
            return methods if examples.originals is None else {**methods, BAG: gone}
        known_N, remark = target.stored_targets(data.train), ""
        found = target.baseline_predictions(known_N, len(truth_N)).items()
        remark = target.remark(known_N)
        methods = {name: method_scores(target, one, truth_N, remark) for name, one in found}
        texts, asked = self.texts(data.train), self.texts(examples.columns, examples.originals)
        if texts is None or asked is None:
            return methods
        bag = BagOfWordsBaseline.fit(target, texts, known_N)
        valid_N = target.stored_targets(data.valid)[:]
        judge = target.fitted(bag.predict(self.texts(data.valid) or ()), valid_N)
        return {
            **methods,
            BAG: method_scores(judge, bag.predict(asked), truth_N, HOW_BAG[bag.link]),
        }

    def texts(
        self, columns: Columns, originals: Sequence[TextPair] | None = None
    ) -> Sequence[TextPair] | None:
        return self.preprocessors[0].texts(columns) if originals is None else originals

    def _samples(
        self, target: LabelType, probs_NC: FloatArray, examples: LabelledSet
    ) -> list[dict[str, str]]:
        texts = self.preprocessors[0].texts(examples.columns, SAMPLES)
        names = examples.places[:SAMPLES]
        if texts is not None:
            names = [" │ ".join(filter(None, text)) for text in texts]
        return [
            {"source": name, **target.sample(probs_C, true)}
            for name, probs_C, true in zip(names, probs_NC, examples.truth_N, strict=False)
        ]

    def test_set(self, files: DataSettings, progress: Progress) -> LabelledSet:
        columns, truth_N, originals, places = labelled_columns(
            self.settings, files, self.settings.labels, self.tokenizer, progress
        )
        return LabelledSet(columns, truth_N, self.datasets(columns), originals, places)


def method_scores(
    target: LabelType, probs_NC: FloatArray, truth_N: TargetArray, remark: str
) -> MethodScores:
    return MethodScores(
        target.values(probs_NC, truth_N), remark, lambda: target.intervals(probs_NC, truth_N)
    )


@dataclass(frozen=True)
class BagOfWordsBaseline:
    """Baseline: linear classifier on single words and pairs of adjacent words."""

    label_type: LabelType
    model: BagOfWords

    @classmethod
    def fit(cls, target: LabelType, texts: Sequence[TextPair], truth_N: StoredTargets) -> Self:
        every = thinning(texts)
        right_NC = target.targets(torch.from_numpy(np.asarray(truth_N[::every])))
        return cls(target, BagOfWords.fit_to(texts[::every], right_NC, target.link))

    @property
    def link(self) -> LinkFunction:
        return self.label_type.link

    def predict(self, texts: Sequence[TextPair]) -> FloatArray:
        return self.label_type.predictions(self.model.scores(texts)).numpy()


def fitted_settings(fitted: LabelType, before: LabelType) -> dict[str, float]:
    """Return the run settings that were fitted on the validation data, by dotted name."""
    if fitted is before or not isinstance(fitted, MultiLabel):
        return {}
    return {"classify.threshold": fitted.threshold}


@dataclass
class ClassifyPredictor:
    """Predictor of labels or numbers. An ensemble predicts the mean of its models' outputs."""

    use: InferenceRequest
    n_given: int = field(default=0, init=False)
    n_failed: int = field(default=0, init=False)
    n_windowed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        opened = self.use.opened
        self.top = self.use.options.get("top")
        if self.top is not None and self.top < 1:
            raise UserError(f"{Option('top', self.top)} must be at least 1.")
        self.evaluator = ClassifyEvaluator.of(self.use.runs, opened.output_tokenizer)

    def answers(self, lines: Iterable[InputLine], live: bool = False) -> Iterator[Answer]:
        first, opened = self.evaluator.preprocessors[0], self.use.opened
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
                answer = self.evaluator.label_type.answer(next(said), one.name, self.top)
                yield note_silence(answer, one)

    def _predicted(self, values: Sequence[object]) -> Iterable[FloatArray]:
        """Return the predictions for each input, in input order."""
        if not values:
            return ()
        columns = self.evaluator.preprocessors[0].columns(values)
        datasets = self.evaluator.datasets(columns, self.n_given)
        self.n_windowed += int((np.bincount(datasets[0].example_index) > 1).sum())
        asked = EvalPass.of_run(self.use.opened, self.use.between)
        with torch.no_grad():
            return self.evaluator.predict_datasets(asked, datasets).probs_NC

    def summary(self) -> str:
        unit = spec_of(self.use.settings).counts
        text = f"{self.n_given:,} {unit}{'s' * (self.n_given != 1)}"
        if self.n_failed:
            text += f", {self.n_failed:,} of them could not be read"
        if self.n_windowed:
            text += f", {self.n_windowed:,} of them too long to read at once and read in windows"
        return text


HOW_BAG = {
    "one": "logistic regression on words and word pairs",
    "several": "one logistic regression per label on words and word pairs",
    "number": "ridge regression on words and word pairs",
}


class ClassifyTask(Task):
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        return prepare_labelled(self.row.media, settings, folder, progress)

    def describe(self, prepared: PreparedData) -> str:
        amount, names = f"{prepared.train.n:,} {self.row.counts}s", len(prepared.labels)
        if "number" in prepared.train:
            return f"{amount}, each with a number"
        if "labels" in prepared.train:
            return f"{amount} with any number of {names} labels"
        return f"{amount} of {names} {'speakers' if self.row.compares else 'classes'}"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        from headway.tasks.data_stats import STATS_OF, label_stats  # only training needs it

        return label_stats(STATS_OF[self.row.modality](settings, prepared), prepared)

    def check(self, settings: Resolved, prepared: PreparedData) -> None:
        """Raise an error for settings without effect on this kind of target. Raise an error for
        examples that are too long, unless they may be split into windows."""
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

    def evaluator(self, use: InferenceRequest) -> ClassifyEvaluator:
        return ClassifyEvaluator.of(use.runs, use.opened.output_tokenizer)
