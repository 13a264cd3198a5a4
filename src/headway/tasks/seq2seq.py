"""Shared parts of the tasks translate, caption and transcribe: text generated from a source.

The model has an encoder and a decoder, or an encoder with CTC. Code for one kind of source is in
`translate.py`, `caption.py` and `transcribe.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import StepPlan
from headway.data.media.store import AudioStore, ImageStore
from headway.data.store import Columns, PreparedData
from headway.decode.writer import Writer
from headway.errors import Stopped
from headway.metrics.language import perplexity
from headway.models.parts.output_heads import ModelInput
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import ctc_loss
from headway.nn.eval_mode import evaluating
from headway.nn.loss import LabelSmoothing
from headway.progress import OnProgress
from headway.settings.decode import DecodeSettings
from headway.settings.run import Resolved
from headway.specs.metrics import METRICS
from headway.tasks.dataset import Batch, EvalPass, TaskDataset
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
from headway.tasks.readout import EachRow, Read, readout_of
from headway.tasks.scores import Baselines, Scores
from headway.tasks.seq2seq_dataset import Seq2SeqDataset, TextTargets
from headway.tasks.seq2seq_scores import most_common, text_metrics
from headway.tasks.task import Task
from headway.tasks.thumbnails import Thumbnail, sample_thumbnails
from headway.tokens.tokenizer import Vocabularies

AT_ONCE = 8192
"""Largest number of tokens in a validation batch."""

COUNTED = 100_000
"""Number of first training texts in which the most frequent one is searched."""


MediaArray = NDArray[np.uint8] | NDArray[np.int16]
"""Pixels or audio samples."""


@dataclass(frozen=True)
class StoreSubset(Sequence[MediaArray]):
    """Stored examples by index, read on access."""

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


@dataclass(frozen=True)
class EvalSet:
    """Sources to generate texts from, with their references."""

    sources: Sequence[Any]
    references: Sequence[str] | Sequence[Sequence[str]]
    """One reference per source, or several equally correct ones."""

    names: Sequence[str]
    """Names of the sources, for people."""

    def first(self, n: int) -> EvalSet:
        return EvalSet(self.sources[:n], self.references[:n], self.names[:n])


class Seq2SeqTask(Task):
    """Base class of the tasks that generate text from a source."""

    samples: ClassVar[int]
    """Number of examples to show in an evaluation."""

    @property
    def scores(self) -> tuple[str, ...]:
        return self.row.scores

    def objective(self, settings: Resolved, prepared: PreparedData) -> Seq2SeqObjective:
        return Seq2SeqObjective(settings, prepared, self)

    def dataset(self, data: Columns, words: Vocabularies, settings: Resolved) -> Seq2SeqDataset:
        """Items for a split, or for any other examples."""
        return Seq2SeqDataset.of(
            preprocessor_of(settings).input_dataset(data), data["text"], words.target
        )

    def plan(
        self, items: Seq2SeqDataset, tokens: int, seed: int, pool: int | None = None
    ) -> StepPlan:
        """A plan of steps with at most this many tokens or positions."""
        source, target = items.lengths.T
        return StepPlan.of_pairs(source, target, tokens, seed, pool)

    def source_augmenter(self, settings: Resolved) -> SourceAugmenter:
        """Function that augments a source at random, by the settings `[augment]`."""
        intake = preprocessor_of(settings)
        return lambda model, stream: intake.apply_augmentation(model, stream, no_labels(stream))[0]

    def token_mask_rate(self, settings: Resolved) -> float:
        """Fraction of the decoder's input tokens that are masked in training."""
        return 0.0

    @abstractmethod
    def eval_set(self, prepared: PreparedData, items: Seq2SeqDataset) -> EvalSet:
        """Sources and references of the validation set."""

    @abstractmethod
    def fast_settings(self, decode: DecodeSettings, items: Seq2SeqDataset) -> DecodeSettings:
        """Settings for evaluations during training: greedy search, limited to about the length of
        the longest reference."""

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
        # No source is longer than in training, so none has to be split.
        writer = Writer([model], prepared.vocabularies, decode, max_len=None)
        for found in writer.write(exam.sources, on_progress=on_progress):
            yield found.text

    def baseline(self, exam: EvalSet, usual: Callable[[], str]) -> tuple[str, list[str]]:
        """Name and outputs of the baseline. `usual` returns the most frequent training text."""
        return "most frequent text", [usual()] * len(exam.references)

    def notes(self, train: Seq2SeqDataset, valid: Seq2SeqDataset) -> list[str]:
        """Notes to print before training."""
        return []

    @abstractmethod
    def describe_source(self, example: int, prepared: PreparedData) -> dict[str, object]:
        """Description of a training source, for reports about steps that failed."""


@dataclass
class Seq2SeqObjective(Objective[TextTargets]):
    """Objective of the tasks that generate text: steps, losses and scores."""

    task: Seq2SeqTask
    quick_size: int = field(default=500, kw_only=True)
    train_dataset: Seq2SeqDataset = field(init=False)
    valid_dataset: Seq2SeqDataset = field(init=False)

    def __post_init__(self) -> None:
        train, prepared = self.settings.train, self.prepared
        self.metric = METRICS[train.metric or self.task.scores[0]]
        self.tokenizer = prepared.vocabularies.target
        self.train_dataset = self.task.dataset(prepared.train, prepared.vocabularies, self.settings)
        self.valid_dataset = self.task.dataset(prepared.valid, prepared.vocabularies, self.settings)
        size = self.tokenizer.vocab_size
        self.smoothing = LabelSmoothing.of(train.label_smoothing, size, train.label_smoothing_kind)
        self.readout = readout_of(self.settings)
        self.vary_source = self.task.source_augmenter(self.settings)
        self.writes = self.readout != EachRow("ctc")
        """Whether the model has a decoder; otherwise it has only CTC."""

    def notes(self) -> list[str]:
        return self.task.notes(self.train_dataset, self.valid_dataset)

    def plan(self, items: TaskDataset[TextTargets]) -> StepPlan:
        assert isinstance(items, Seq2SeqDataset)
        train = self.settings.train
        return self.task.plan(items, train.batch_tokens, train.seed, train.bucket_steps)

    def augment(self, model: nn.Module, batch: Batch[TextTargets]) -> Batch[TextTargets]:
        """The batch with an augmented source and masked decoder input."""
        source, target = batch.streams
        source = self.train_dataset.source.to_model_input(source)
        if model.training:
            source = self.vary_source(model, source)
            target = replace(target, values=self._hidden(target.values))
        return replace(batch, streams=(source, target))

    def _hidden(self, read_N: Tensor) -> Tensor:
        """Decoder input in which some tokens are replaced by the unknown token, but never the start
        token."""
        share = self.task.token_mask_rate(self.settings)
        if not share:
            return read_N
        hidden_N = torch.rand(read_N.shape, device=read_N.device) < share
        return read_N.masked_fill(hidden_N & (read_N != self.tokenizer.bos), self.tokenizer.unk)

    def read(self, model: nn.Module, given: Batch[TextTargets]) -> Read:
        """Run the model. The weights of source positions, which CTC reads, add up to the number of
        decoder positions."""
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

    def loss(self, read: Read, given: Batch[TextTargets]) -> TaskLoss:
        return self._loss(read, given, self.smoothing)

    def _loss(self, read: Read, given: Batch[TextTargets], smoothing: LabelSmoothing) -> TaskLoss:
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
        """CTC loss, summed over the texts. Texts that do not fit into the source positions are
        ignored."""
        scores_MV, words = read.scores(read.x_RD), batch.targets
        assert words.ctc_targets_K is not None
        assert words.ctc_layout is not None
        blank = scores_MV.shape[1] - 1
        layout = batch.streams[0].layout
        return ctc_loss(scores_MV, layout, words.ctc_targets_K, words.ctc_layout, blank).nll_B.sum()

    def _described(self, exam: EvalSet, outputs: Sequence[str]) -> dict[str, list[Thumbnail]]:
        """Thumbnails of images and audio with generated texts and references, for the report."""
        sources = exam.sources
        if not isinstance(sources, StoreSubset):
            return {}
        intake = preprocessor_of(self.settings)
        right = [[one] if isinstance(one, str) else one for one in exam.references]
        return {
            "described": sample_thumbnails(
                lambda row: intake.thumbnail(sources[row]), right, outputs
            )
        }

    @cached_property
    def eval_set(self) -> EvalSet:
        return self.task.eval_set(self.prepared, self.valid_dataset)

    @property
    def n_valid(self) -> int:
        return len(self.eval_set.references)

    def evaluate(self, asked: EvalPass) -> Scores:
        loss = self._valid_loss(asked)
        exam = self.eval_set.first(self.n_evaluated(asked))
        decode = self.settings.decode
        if not asked.full:
            decode = self.task.fast_settings(decode, self.valid_dataset)
        outputs: list[str] = []
        for text in self.task.generate(
            asked.model, self.settings, decode, self.prepared, exam, asked.report_progress
        ):
            outputs.append(text)
            if asked.should_stop():
                raise Stopped
        values = {"loss": loss, "ppl": perplexity(loss)}
        return Scores(
            values={
                **{name: value for name, value in values.items() if name in self._names},
                **self._text_metrics(outputs, exam),
            },
            samples=self._samples(exam, outputs),
            figures=self._described(exam, outputs) if asked.full else {},
            find_baselines=lambda: self._baselines(exam),
            find_answers=lambda: (outputs, exam.references),
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return self.task.scores

    def _text_metrics(self, outputs: Sequence[str], exam: EvalSet) -> dict[str, float]:
        lowercase, corpus = self.settings.tokenizer.lowercase, self.eval_set.references
        return text_metrics(self._names, outputs, exam.references, corpus, lowercase=lowercase)

    def _baselines(self, exam: EvalSet) -> Baselines:
        name, outputs = self.task.baseline(exam, self._most_common)
        found = {name: self._text_metrics(outputs, exam)}
        frequencies = self.frequencies()
        if frequencies is not None:
            scores = frequencies.scores.items()
            found[TOKENS] = {name: value for name, value in scores if name in self._names}
        return found

    def _most_common(self) -> str:
        texts = self.train_dataset.texts
        return most_common(
            self.train_dataset.text(row).strip() for row in range(min(COUNTED, len(texts)))
        )

    def frequencies(self) -> TargetFrequencies | None:
        if not self.writes:  # CTC also outputs blanks
            return None
        train, valid = self.train_dataset.texts, self.valid_dataset.texts
        return text_frequencies(train, valid, self.tokenizer)

    @torch.no_grad()
    def _valid_loss(self, asked: EvalPass) -> float:
        """Loss in nats per target token, without label smoothing: of the decoder, or of CTC if
        there is no decoder."""
        items, train, most = self.valid_dataset, self.settings.train, asked.max_examples
        plan = self.task.plan(items, min(train.batch_tokens, AT_ONCE), train.seed)
        rows = np.arange(len(items)) if most is None else np.flatnonzero(items.example_index < most)
        order = rows[np.argsort(items.lengths[rows].max(1), kind="stable")]
        total, count, seen = 0.0, 0, 0
        with evaluating([asked.model]):
            for part in plan.cut(order, plan.source_tokens, plan.target_tokens):
                batch = items.batch(part, asked.device)
                source, target = batch.streams
                batch = replace(batch, streams=(items.source.to_model_input(source), target))
                total += float(self._loss(self.read(asked.model, batch), batch, PLAIN).nll)
                count += items.n_targets(part)
                seen += len(part)
                asked.report_progress(seen, len(order))
        return total / max(1, count)

    def _samples(self, exam: EvalSet, outputs: Sequence[str]) -> list[dict[str, str]]:
        shown = zip(exam.names[: self.task.samples], exam.references, outputs, strict=False)
        return [
            {
                "source": name,
                "target": right if isinstance(right, str) else " │ ".join(right),
                "output": output,
            }
            for name, right, output in shown
        ]

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        return [
            {
                **self.task.describe_source(example, self.prepared),
                "target": self.train_dataset.text(example),
            }
            for example in self.train_dataset.example_index[part.rows.rows].tolist()
        ]
