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
from headway.tasks.intake import intake_of
from headway.tasks.items import Batch, Items, Pass
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.objective import (
    TOKENS,
    Frequencies,
    Objective,
    Part,
    TaskLoss,
    text_frequencies,
)
from headway.tasks.readout import EachRow, Read, readout_of
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import Task
from headway.tasks.thumbnails import Small, described
from headway.tasks.write_items import Words, WriteItems
from headway.tasks.write_scores import commonest, measured
from headway.tokens.tokenizer import Vocabularies

AT_ONCE = 8192
"""Largest number of tokens in a validation batch."""

COUNTED = 100_000
"""Number of first training texts in which the most frequent one is searched."""


Stored = NDArray[np.uint8] | NDArray[np.int16]
"""Pixels or audio samples."""


@dataclass(frozen=True)
class Some(Sequence[Stored]):
    """Stored examples by index, read on access."""

    store: ImageStore | AudioStore
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Stored: ...
    @overload
    def __getitem__(self, place: slice) -> Some: ...
    def __getitem__(self, place: int | slice) -> Stored | Some:
        if isinstance(place, slice):
            return Some(self.store, self.rows[place])
        return self.store[self.rows[place]]


Vary = Callable[[nn.Module, ModelInput], ModelInput]


def no_labels(stream: ModelInput) -> Tensor:
    return stream.layout.starts_B.new_zeros(0)


@dataclass(frozen=True)
class Exam:
    """Sources to generate texts from, with their references."""

    sources: Sequence[Any]
    references: Sequence[str] | Sequence[Sequence[str]]
    """One reference per source, or several equally correct ones."""

    names: Sequence[str]
    """Names of the sources, for people."""

    def first(self, n: int) -> Exam:
        return Exam(self.sources[:n], self.references[:n], self.names[:n])


class Write(Task):
    """Base class of the tasks that generate text from a source."""

    samples: ClassVar[int]
    """Number of examples to show in an evaluation."""

    @property
    def scores(self) -> tuple[str, ...]:
        return self.row.scores

    def objective(self, settings: Resolved, prepared: PreparedData) -> Writing:
        return Writing(settings, self, prepared)

    def items(self, data: Columns, words: Vocabularies, settings: Resolved) -> WriteItems:
        """Items for a split, or for any other examples."""
        return WriteItems.of(intake_of(settings).cut(data), data["text"], words.target)

    def plan(self, items: WriteItems, tokens: int, seed: int, pool: int | None = None) -> StepPlan:
        """A plan of steps with at most this many tokens or positions."""
        source, target = items.lengths.T
        return StepPlan.of_pairs(source, target, tokens, seed, pool)

    def varies(self, settings: Resolved) -> Vary:
        """Function that augments a source at random, by the settings `[augment]`."""
        intake = intake_of(settings)
        return lambda model, stream: intake.vary(model, stream, no_labels(stream))[0]

    def hide(self, settings: Resolved) -> float:
        """Fraction of the decoder's input tokens that are masked in training."""
        return 0.0

    @abstractmethod
    def exam(self, prepared: PreparedData, items: WriteItems) -> Exam:
        """Sources and references of the validation set."""

    @abstractmethod
    def quick(self, decode: DecodeSettings, items: WriteItems) -> DecodeSettings:
        """Settings for evaluations during training: greedy search, limited to about the length of
        the longest reference."""

    def written(
        self,
        model: nn.Module,
        settings: Resolved,
        decode: DecodeSettings,
        prepared: PreparedData,
        exam: Exam,
        on_progress: OnProgress,
    ) -> Iterator[str]:
        """Yield the generated text for each source, in order."""
        assert isinstance(model, Seq2Seq)
        # No source is longer than in training, so none has to be split.
        writer = Writer([model], prepared.vocabularies, decode, max_len=None)
        for found in writer.write(exam.sources, on_progress=on_progress):
            yield found.text

    def trivial(self, exam: Exam, usual: Callable[[], str]) -> tuple[str, list[str]]:
        """Name and outputs of the baseline. `usual` returns the most frequent training text."""
        return "most frequent text", [usual()] * len(exam.references)

    def notes(self, train: WriteItems, valid: WriteItems) -> list[str]:
        """Notes to print before training."""
        return []

    @abstractmethod
    def shown(self, example: int, prepared: PreparedData) -> dict[str, object]:
        """Description of a training source, for reports about steps that failed."""


@dataclass
class Writing(Objective[Words]):
    """Objective of the tasks that generate text: steps, losses and scores."""

    kind: Write
    prepared: PreparedData
    quick_size: int = field(default=500, kw_only=True)
    train_items: WriteItems = field(init=False)
    valid_items: WriteItems = field(init=False)

    def __post_init__(self) -> None:
        train, prepared = self.settings.train, self.prepared
        self.metric = METRICS[train.metric or self.kind.scores[0]]
        self.tokenizer = prepared.vocabularies.target
        self.train_items = self.kind.items(prepared.train, prepared.vocabularies, self.settings)
        self.valid_items = self.kind.items(prepared.valid, prepared.vocabularies, self.settings)
        size = self.tokenizer.vocab_size
        self.smoothing = LabelSmoothing.of(train.smoothing, size, train.smoothing_kind)
        self.readout = readout_of(self.settings)
        self.vary_source = self.kind.varies(self.settings)
        self.writes = self.readout != EachRow("ctc")
        """Whether the model has a decoder; otherwise it has only CTC."""

    def notes(self) -> list[str]:
        return self.kind.notes(self.train_items, self.valid_items)

    def plan(self, items: Items[Words]) -> StepPlan:
        assert isinstance(items, WriteItems)
        train = self.settings.train
        return self.kind.plan(items, train.batch_tokens, train.seed, train.pool)

    def vary(self, model: nn.Module, batch: Batch[Words]) -> Batch[Words]:
        """The batch with an augmented source and masked decoder input."""
        source, target = batch.streams
        source = self.train_items.source.shown(source)
        if model.training:
            source = self.vary_source(model, source)
            target = replace(target, values=self._hidden(target.values))
        return replace(batch, streams=(source, target))

    def _hidden(self, read_N: Tensor) -> Tensor:
        """Decoder input in which some tokens are replaced by the unknown token, but never the start
        token."""
        share = self.kind.hide(self.settings)
        if not share:
            return read_N
        hidden_N = torch.rand(read_N.shape, device=read_N.device) < share
        return read_N.masked_fill(hidden_N & (read_N != self.tokenizer.bos), self.tokenizer.unk)

    def read(self, model: nn.Module, given: Batch[Words]) -> Read:
        """Run the model. The weights of source positions, which CTC reads, add up to the number of
        decoder positions."""
        source, target = given.streams
        n_rows, n_words = source.layout.n_rows, target.layout.n_rows
        even_M = target.values.new_full((n_rows,), n_words / max(1, n_rows), dtype=torch.float32)
        if not self.writes:
            return self.readout.read(model, source).weighed(even_M)
        read = self.readout.read(model, source, target)
        if given.weights_R is not None:
            read = read.weighed(given.weights_R)
        more = {name: heard.weighed(even_M) for name, heard in read.more.items()}
        return replace(read, more=more)

    def loss(self, read: Read, given: Batch[Words]) -> TaskLoss:
        return self._loss(read, given, self.smoothing)

    def _loss(self, read: Read, given: Batch[Words], smoothing: LabelSmoothing) -> TaskLoss:
        if not self.writes:
            loss = self._ctc(read, given)
            return TaskLoss(loss, loss.detach())
        written = word_loss(read, given.targets.said_N, smoothing)
        heard = read.more.get("ctc")
        if heard is None:
            return written
        ctc = heard.share * self._ctc(heard, given)
        return TaskLoss(read.share * written.sum + ctc, written.nll)

    def _ctc(self, read: Read, batch: Batch[Words]) -> Tensor:
        """CTC loss, summed over the texts. Texts that do not fit into the source positions are
        ignored."""
        scores_MV, words = read.scores(read.x_RD), batch.targets
        assert words.heard_K is not None
        assert words.heard is not None
        blank = scores_MV.shape[1] - 1
        layout = batch.streams[0].layout
        return ctc_loss(scores_MV, layout, words.heard_K, words.heard, blank).nll_B.sum()

    def _described(self, exam: Exam, outputs: Sequence[str]) -> dict[str, list[Small]]:
        """Thumbnails of images and audio with generated texts and references, for the report."""
        sources = exam.sources
        if not isinstance(sources, Some):
            return {}
        intake = intake_of(self.settings)
        right = [[one] if isinstance(one, str) else one for one in exam.references]
        return {"described": described(lambda row: intake.small(sources[row]), right, outputs)}

    @cached_property
    def exam(self) -> Exam:
        return self.kind.exam(self.prepared, self.valid_items)

    @property
    def n_valid(self) -> int:
        return len(self.exam.references)

    def evaluate(self, asked: Pass) -> Scores:
        loss = self._valid_loss(asked)
        exam = self.exam.first(self.n_asked(asked))
        decode = self.settings.decode
        if not asked.full:
            decode = self.kind.quick(decode, self.valid_items)
        outputs: list[str] = []
        for text in self.kind.written(
            asked.model, self.settings, decode, self.prepared, exam, asked.tell
        ):
            outputs.append(text)
            if asked.stopped():
                raise Stopped
        values = {"loss": loss, "ppl": perplexity(loss)}
        return Scores(
            values={
                **{name: value for name, value in values.items() if name in self._names},
                **self._measured(outputs, exam),
            },
            samples=self._samples(exam, outputs),
            figures=self._described(exam, outputs) if asked.full else {},
            find_baselines=lambda: self._baselines(exam),
            find_answers=lambda: (outputs, exam.references),
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return self.kind.scores

    def _measured(self, outputs: Sequence[str], exam: Exam) -> dict[str, float]:
        lowercase, corpus = self.settings.tokenizer.lowercase, self.exam.references
        return measured(self._names, outputs, exam.references, corpus, lowercase=lowercase)

    def _baselines(self, exam: Exam) -> Baselines:
        name, outputs = self.kind.trivial(exam, self._usual)
        found = {name: self._measured(outputs, exam)}
        frequencies = self.frequencies()
        if frequencies is not None:
            scores = frequencies.scores.items()
            found[TOKENS] = {name: value for name, value in scores if name in self._names}
        return found

    def _usual(self) -> str:
        texts = self.train_items.texts
        return commonest(
            self.train_items.text(row).strip() for row in range(min(COUNTED, len(texts)))
        )

    def frequencies(self) -> Frequencies | None:
        if not self.writes:  # CTC also outputs blanks
            return None
        train, valid = self.train_items.texts, self.valid_items.texts
        return text_frequencies(train, valid, self.tokenizer)

    @torch.no_grad()
    def _valid_loss(self, asked: Pass) -> float:
        """Loss in nats per target token, without label smoothing: of the decoder, or of CTC if
        there is no decoder."""
        items, train, most = self.valid_items, self.settings.train, asked.most
        plan = self.kind.plan(items, min(train.batch_tokens, AT_ONCE), train.seed)
        rows = np.arange(len(items)) if most is None else np.flatnonzero(items.owner < most)
        order = rows[np.argsort(items.lengths[rows].max(1), kind="stable")]
        total, count, seen = 0.0, 0, 0
        with evaluating([asked.model]):
            for part in plan.cut(order, plan.source_tokens, plan.target_tokens):
                batch = items.batch(part, asked.device)
                source, target = batch.streams
                batch = replace(batch, streams=(items.source.shown(source), target))
                total += float(self._loss(self.read(asked.model, batch), batch, PLAIN).nll)
                count += items.n_targets(part)
                seen += len(part)
                asked.tell(seen, len(order))
        return total / max(1, count)

    def _samples(self, exam: Exam, outputs: Sequence[str]) -> list[dict[str, str]]:
        shown = zip(exam.names[: self.kind.samples], exam.references, outputs, strict=False)
        return [
            {
                "source": name,
                "target": right if isinstance(right, str) else " │ ".join(right),
                "output": output,
            }
            for name, right, output in shown
        ]

    def show(self, part: Part) -> list[dict[str, Any]]:
        return [
            {
                **self.kind.shown(example, self.prepared),
                "target": self.train_items.text(example),
            }
            for example in self.train_items.owner[part.rows.rows].tolist()
        ]
