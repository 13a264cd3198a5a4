"""Base classes of the tasks translate, caption and transcribe, which generate text from a source.

The model has an encoder and a decoder, or an encoder with CTC. Code for one kind of source is in
`translate.py`, `caption.py` and `transcribe.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import StepPlan
from headway.data.media.store import AudioStore, ImageStore
from headway.data.store import Columns, PreparedData
from headway.decode.writer import Writer
from headway.errors import Stopped
from headway.metrics.translation import as_list
from headway.models.parts.output_heads import ModelInput
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import ctc_loss
from headway.nn.eval_mode import evaluating
from headway.nn.loss import LabelSmoothing
from headway.progress import OnProgress, Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.run import Resolved
from headway.specs.metrics import METRICS
from headway.tasks.dataset import Batch, EvalPass, TaskDataset
from headway.tasks.evaluate import TrainingData, evaluate
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.objective import (
    TOKENS,
    MicroBatch,
    Objective,
    TargetFrequencies,
    TaskLoss,
    text_frequencies,
)
from headway.tasks.preprocess.preprocessor import preprocessor_of
from headway.tasks.readout import EachRow, Read, Readout, readout_of
from headway.tasks.scores import Methods, MethodScores, Range, ScoreRow, Scores
from headway.tasks.seq2seq_dataset import Seq2SeqDataset, TextTargets
from headway.tasks.seq2seq_scores import (
    EvalSet,
    GeneratedTexts,
    TextEvaluator,
    TextPredictions,
    most_common,
)
from headway.tasks.task import InferenceRequest, Task
from headway.tasks.thumbnails import Thumbnail, sample_thumbnails
from headway.tokens.tokenizer import Vocabularies

AT_ONCE = 8192
"""Maximum number of tokens in a validation batch. Logits are computed in chunks, so only
activations grow with it."""

COUNTED = 100_000
"""Number of training texts, counted from the first, among which the baseline looks for the most
frequent text. More texts would hardly change it."""


MediaArray = NDArray[np.uint8] | NDArray[np.int16]
"""Pixels (bytes) or audio samples (16 bits)."""


@dataclass(frozen=True)
class StoreSubset(Sequence[MediaArray]):
    """Subset of stored media, which are read on access."""

    store: ImageStore | AudioStore
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> MediaArray: ...
    @overload
    def __getitem__(self, place: slice) -> StoreSubset: ...
    def __getitem__(self, place: int | slice) -> MediaArray | StoreSubset:
        if isinstance(place, slice):
            return StoreSubset(self.store, self.rows[place])
        return self.store[self.rows[place]]


SourceAugmenter = Callable[[nn.Module, ModelInput], ModelInput]


def no_labels(stream: ModelInput) -> Tensor:
    return stream.layout.starts_B.new_zeros(0)


class Seq2SeqTask(Task):
    """Base class of the tasks that generate text from a source."""

    samples: ClassVar[int]
    """Number of examples that the report of an evaluation shows."""

    unit: ClassVar[str]
    """Plural noun for the examples, such as `images`, for messages."""

    texts: ClassVar[str] = "text"
    """Name of the data column that holds the target texts."""

    def objective(self, settings: Resolved, prepared: PreparedData) -> Seq2SeqObjective:
        return Seq2SeqObjective(settings, prepared, self)

    def dataset(self, data: Columns, words: Vocabularies, settings: Resolved) -> Seq2SeqDataset:
        """Return the dataset of sources and target texts, for a split of the data or for other
        examples."""
        return Seq2SeqDataset.of(
            preprocessor_of(settings).input_dataset(data), data["text"], words.target
        )

    def plan(
        self, items: Seq2SeqDataset, tokens: int, seed: int, pool: int | None = None
    ) -> StepPlan:
        """Return a plan of steps with at most this number of source positions and of target
        tokens."""
        source, target = items.lengths.T
        return StepPlan.of_pairs(source, target, tokens, seed, pool)

    def source_augmenter(self, settings: Resolved) -> SourceAugmenter:
        """Return the function that augments a source at random, as the `[augment]` settings
        define."""
        intake = preprocessor_of(settings)
        return lambda model, stream: intake.apply_augmentation(model, stream, no_labels(stream))[0]

    def token_mask_rate(self, settings: Resolved) -> float:
        """Return the fraction of the decoder's input tokens that are masked in training."""
        return 0.0

    @abstractmethod
    def eval_set(self, prepared: PreparedData, items: Seq2SeqDataset) -> EvalSet:
        """Return the sources and references of the validation set."""

    @abstractmethod
    def fast_settings(self, decode: DecodeSettings, items: Seq2SeqDataset) -> DecodeSettings:
        """Return decoding settings for evaluations during training: greedy search, limited to about
        the length of the longest reference."""

    def generate(
        self,
        model: nn.Module,
        settings: Resolved,
        decode: DecodeSettings,
        prepared: PreparedData,
        exam: EvalSet,
        on_progress: OnProgress,
    ) -> Iterator[str]:
        """Yield the generated text for each source, in order."""
        assert isinstance(model, Seq2Seq)
        # Pass no maximum length: no source is longer than in training, so none has to be split.
        writer = Writer([model], prepared.vocabularies, decode, max_len=None)
        for found in writer.write(exam.sources, on_progress=on_progress):
            yield found.text

    def baseline(self, exam: EvalSet, usual: Callable[[], str]) -> TextBaseline:
        """Return the texts of a baseline that ignores the source. `usual`: function that returns
        the most frequent training text."""
        text = usual()
        return TextBaseline("most frequent text", [text] * len(exam.references), f"{text!r}")

    @abstractmethod
    def test_set(self, use: InferenceRequest, files: DataSettings) -> EvalSet:
        """Return the sources and references of a test set."""

    @abstractmethod
    def test_outputs(self, use: InferenceRequest, examples: EvalSet) -> TextPredictions:
        """Return the texts that loaded runs generate for a test set."""

    def test_interval(self, judged: GeneratedTexts) -> dict[str, Range]:
        """Return the 95 % confidence intervals of the metrics on a test set."""
        return {}

    def test_details(
        self, use: InferenceRequest, judged: GeneratedTexts, examples: EvalSet
    ) -> tuple[list[ScoreRow], dict[str, Any]]:
        """Return results on a test set other than metrics, as table rows and as a JSON-compatible
        dictionary."""
        return [], {}

    def evaluator(self, use: InferenceRequest) -> Seq2SeqEvaluator:
        lowercase = use.settings.tokenizer.lowercase
        if "lowercase" in self.row.scoring:
            lowercase = bool(use.options.get("lowercase"))
        return Seq2SeqEvaluator(
            self.row.scores, self.unit, self.samples, lowercase=lowercase,
            tokenize=use.options.get("tokenize") or "13a", task=self, settings=use.settings,
            use=use,
        )  # fmt: skip

    def notes(self, train: Seq2SeqDataset, valid: Seq2SeqDataset) -> list[str]:
        """Return notes to print before training."""
        return []

    @abstractmethod
    def describe_source(self, example: int, prepared: PreparedData) -> dict[str, object]:
        """Return a description of the source of a training example, for error reports about failed
        steps."""


class TextBaseline(NamedTuple):
    name: str
    outputs: Sequence[str]
    remark: str = ""


@dataclass(frozen=True)
class TargetLoss:
    """Training and validation loss of target texts: of the decoder, of CTC, or of the two
    combined."""

    task: Seq2SeqTask
    settings: Resolved

    @cached_property
    def readout(self) -> Readout:
        return readout_of(self.settings)

    @property
    def writes(self) -> bool:
        """Whether the model has a decoder. Without a decoder it has only CTC."""
        return self.readout != EachRow("ctc")

    def read(self, model: nn.Module, given: Batch[TextTargets]) -> Read:
        """Run the model and return its outputs.

        CTC reads the encoder positions. Their weights are scaled to the number of decoder
        positions, so that the two losses have the same unit.
        """
        source, target = given.streams
        n_rows, n_words = source.layout.n_rows, target.layout.n_rows
        even_M = target.values.new_full((n_rows,), n_words / max(1, n_rows), dtype=torch.float32)
        if not self.writes:
            return self.readout.read(model, source).with_weights(even_M)
        read = self.readout.read(model, source, target)
        if given.weights_R is not None:
            read = read.with_weights(given.weights_R)
        more = {name: heard.with_weights(even_M) for name, heard in read.extra_heads.items()}
        return replace(read, extra_heads=more)

    def of_batch(
        self, read: Read, given: Batch[TextTargets], smoothing: LabelSmoothing
    ) -> TaskLoss:
        if not self.writes:
            loss = self._ctc(read, given)
            return TaskLoss(loss, loss.detach())
        written = word_loss(read, given.targets.targets_N, smoothing)
        heard = read.extra_heads.get("ctc")
        if heard is None:
            return written
        ctc = heard.loss_weight * self._ctc(heard, given)
        return TaskLoss(read.loss_weight * written.sum + ctc, written.nll)

    def _ctc(self, read: Read, batch: Batch[TextTargets]) -> Tensor:
        """Return the CTC loss, summed over the texts. Texts with more tokens than the encoder has
        positions are ignored."""
        scores_MV, words = read.scores(read.x_RD), batch.targets
        assert words.ctc_targets_K is not None
        assert words.ctc_layout is not None
        blank = scores_MV.shape[1] - 1
        layout = batch.streams[0].layout
        return ctc_loss(scores_MV, layout, words.ctc_targets_K, words.ctc_layout, blank).nll_B.sum()

    @torch.no_grad()
    def mean(self, asked: EvalPass, items: Seq2SeqDataset) -> float:
        """Return the loss of the decoder in nats per target token, without label smoothing. Without
        a decoder, return the loss of CTC."""
        train, most = self.settings.train, asked.max_examples
        plan = self.task.plan(items, min(train.batch_tokens, AT_ONCE), train.seed)
        rows = np.arange(len(items)) if most is None else np.flatnonzero(items.example_index < most)
        order = rows[np.argsort(items.lengths[rows].max(1), kind="stable")]
        total, count, seen = 0.0, 0, 0
        with evaluating([asked.model]):
            for part in plan.cut(order, plan.source_tokens, plan.target_tokens):
                batch = items.batch(part, asked.device)
                source, target = batch.streams
                batch = replace(batch, streams=(items.source.to_model_input(source), target))
                total += float(self.of_batch(self.read(asked.model, batch), batch, PLAIN).nll)
                count += items.n_targets(part)
                seen += len(part)
                asked.report_progress(seen, len(order))
        return total / max(1, count)


@dataclass(frozen=True)
class Seq2SeqEvaluator(TextEvaluator):
    """Evaluator of tasks that generate text. It evaluates the validation set, or a test set with
    the options of a command."""

    task: Seq2SeqTask = field(kw_only=True)
    settings: Resolved = field(kw_only=True)
    use: InferenceRequest | None = field(default=None, kw_only=True)
    """Request whose options apply to the test set; None for the validation set."""

    valid: PreparedData | None = field(default=None, kw_only=True)
    """Prepared data with the validation set; None for a test set."""

    quick_size: int = field(default=500, kw_only=True)
    """Number of texts to generate in an evaluation during training: a few hundred, because
    generation takes much longer than the loss."""

    @cached_property
    def target_loss(self) -> TargetLoss:
        return TargetLoss(self.task, self.settings)

    def _has_loss(self, asked: EvalPass, examples: EvalSet, items: Seq2SeqDataset) -> bool:
        """Return whether one forward pass of one model gives the loss of all examples.

        An engine only decodes, and the loss of an ensemble is that of its mixed probabilities. A
        test set may have recordings of more than `AT_ONCE` positions: they are transcribed in
        windows, and a single pass would need too much memory.
        """
        if asked.run is not None and (asked.run.engine is not None or len(asked.run.folders) > 1):
            return False
        if self.use is None or not len(items):
            return bool(len(items))
        whole = len(items) >= len(examples.sources)  # an image may have several captions
        return whole and int(items.lengths.max()) <= AT_ONCE

    def predict(self, asked: EvalPass, examples: EvalSet) -> TextPredictions:
        """Generate texts for the sources, and compute the loss.

        During training, texts are limited to about the length of the references, because an
        untrained model does not know when to stop.
        """
        loss, items = None, examples.dataset
        if items is not None and self._has_loss(asked, examples, items):
            loss = self.target_loss.mean(asked, items)
        if self.use is not None:
            found = self.task.test_outputs(self.use, examples)
            return found if loss is None else replace(found, loss=loss)
        assert self.valid is not None
        decode, n = self.settings.decode, asked.max_examples
        if not asked.full:
            assert items is not None
            decode = self.task.fast_settings(decode, items)
            n = self.quick_size if n is None else min(n, self.quick_size)
        exam = examples if n is None else examples.first(n)
        outputs: list[str] = []
        for text in self.task.generate(
            asked.model, self.settings, decode, self.valid, exam, asked.report_progress
        ):
            outputs.append(text)
            if asked.should_stop():
                raise Stopped
        return TextPredictions(outputs, loss)

    def baselines(
        self, data: TrainingData, examples: EvalSet, predictions: TextPredictions
    ) -> Methods:
        exam = examples.first(len(predictions.outputs))

        def usual() -> str:
            if data is None:
                return most_common(text for one in exam.references for text in as_list(one))
            store, decode = data.train[self.task.texts], data.vocabularies.target.decode
            rows = range(min(COUNTED, len(store)))
            return most_common(decode(store[row].tolist()).strip() for row in rows)

        found = self.task.baseline(exam, usual)
        methods: Methods = {}
        if found.outputs:
            values = self.values(found.outputs, examples)
            methods[found.name] = MethodScores(values, found.remark)
        # A model with only CTC is not compared with token frequencies: CTC also outputs blanks, so
        # its loss is not comparable.
        if data is not None and examples.dataset is not None and self.target_loss.writes:
            tokenizer, texts = data.vocabularies.target, examples.dataset.texts
            store = data.train.tokens(self.task.texts)
            known = text_frequencies(store, texts, tokenizer).scores
            values = {name: value for name, value in known.items() if name in self.names}
            remark = "each token as frequent as in the training data"
            methods[TOKENS] = MethodScores(values, remark)
        return methods

    def intervals(self, judged: GeneratedTexts) -> dict[str, Range]:
        return {} if self.use is None else self.task.test_interval(judged)

    def details(
        self, judged: GeneratedTexts, examples: EvalSet
    ) -> tuple[list[ScoreRow], dict[str, Any]]:
        return ([], {}) if self.use is None else self.task.test_details(self.use, judged, examples)

    def thumbnails(self, examples: EvalSet, outputs: Sequence[str]) -> dict[str, list[Thumbnail]]:
        """Return thumbnails of images and audio with generated texts and references, for the
        report."""
        sources = examples.sources
        if not isinstance(sources, StoreSubset):
            return {}
        intake = preprocessor_of(self.settings)
        references = examples.references[: len(outputs)]
        right = [[one] if isinstance(one, str) else one for one in references]
        return {
            "described": sample_thumbnails(
                lambda row: intake.thumbnail(sources[row]), right, outputs
            )
        }

    def test_set(self, files: DataSettings, progress: Progress) -> EvalSet:
        assert self.use is not None
        return self.task.test_set(self.use, files)


@dataclass
class Seq2SeqObjective(Objective[TextTargets]):
    """Training objective of the tasks that generate text, which defines steps, losses and
    scores."""

    task: Seq2SeqTask
    quick_size: int = field(default=500, kw_only=True)
    evaluator: Seq2SeqEvaluator = field(init=False)
    train_dataset: Seq2SeqDataset = field(init=False)
    valid_dataset: Seq2SeqDataset = field(init=False)

    def __post_init__(self) -> None:
        train, prepared = self.settings.train, self.prepared
        names = self.task.row.scores
        self.metric = METRICS[train.metric or names[0]]
        self.tokenizer = prepared.vocabularies.target
        self.train_dataset = self.task.dataset(prepared.train, prepared.vocabularies, self.settings)
        self.valid_dataset = self.task.dataset(prepared.valid, prepared.vocabularies, self.settings)
        size = self.tokenizer.vocab_size
        self.smoothing = LabelSmoothing.of(train.label_smoothing, size, train.label_smoothing_kind)
        self.vary_source = self.task.source_augmenter(self.settings)
        self.evaluator = Seq2SeqEvaluator(
            names, self.task.unit, self.task.samples, lowercase=self.settings.tokenizer.lowercase,
            task=self.task, settings=self.settings, valid=prepared, quick_size=self.quick_size,
        )  # fmt: skip
        found = self.task.eval_set(prepared, self.valid_dataset)
        self.valid_set = replace(found, dataset=self.valid_dataset)

    def notes(self) -> list[str]:
        return self.task.notes(self.train_dataset, self.valid_dataset)

    def plan(self, items: TaskDataset[TextTargets]) -> StepPlan:
        assert isinstance(items, Seq2SeqDataset)
        train = self.settings.train
        return self.task.plan(items, train.batch_tokens, train.seed, train.bucket_steps)

    def augment(self, model: nn.Module, batch: Batch[TextTargets]) -> Batch[TextTargets]:
        """Return the batch with an augmented source and, if the settings require it, a masked
        decoder input."""
        source, target = batch.streams
        source = self.train_dataset.source.to_model_input(source)
        if model.training:
            source = self.vary_source(model, source)
            target = replace(target, values=self._hidden(target.values))
        return replace(batch, streams=(source, target))

    def _hidden(self, read_N: Tensor) -> Tensor:
        """Return the decoder input with random tokens replaced by the unknown token (word dropout).
        The start token is never replaced."""
        share = self.task.token_mask_rate(self.settings)
        if not share:
            return read_N
        hidden_N = torch.rand(read_N.shape, device=read_N.device) < share
        return read_N.masked_fill(hidden_N & (read_N != self.tokenizer.bos), self.tokenizer.unk)

    def read(self, model: nn.Module, given: Batch[TextTargets]) -> Read:
        return self.evaluator.target_loss.read(model, given)

    def loss(self, read: Read, given: Batch[TextTargets]) -> TaskLoss:
        return self.evaluator.target_loss.of_batch(read, given, self.smoothing)

    @property
    def n_valid(self) -> int:
        return len(self.valid_set.references)

    def evaluate(self, asked: EvalPass) -> Scores:
        """Return the loss on all validation examples, and metrics of the texts generated for the
        first ones."""
        return evaluate(
            self.evaluator, self.valid_set, asked, lambda: self.prepared, is_validation=True
        )

    def frequencies(self) -> TargetFrequencies | None:
        if not self.evaluator.target_loss.writes:  # CTC also outputs blanks
            return None
        train, valid = self.train_dataset.texts, self.valid_dataset.texts
        return text_frequencies(train, valid, self.tokenizer)

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        return [
            {
                **self.task.describe_source(example, self.prepared),
                "target": self.train_dataset.text(example),
            }
            for example in self.train_dataset.example_index[part.rows.rows].tolist()
        ]
