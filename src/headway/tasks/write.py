"""Tasks that write: translate, caption, transcribe. A source of any kind and the text about it, an
encoder and a decoder, or CTC alone. What a kind of source has of its own is in `translate.py`,
`caption.py` and `transcribe.py`."""

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
from headway.data.media.store import PictureStore, SoundStore
from headway.data.store import Columns, Prepared
from headway.decode.writer import Writer
from headway.errors import Stopped
from headway.metrics.language import perplexity
from headway.models.parts.output_heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import ctc_loss
from headway.nn.eval_mode import evaluating
from headway.nn.loss import Smoothing
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
"""Rows of a validation batch at most."""

COUNTED = 100_000
"""Training texts among which the most frequent one is looked for."""


Stored = NDArray[np.uint8] | NDArray[np.int16]
"""Pixels or samples."""


@dataclass(frozen=True)
class Some(Sequence[Stored]):
    """Stored examples by their numbers, each read when it is its turn."""

    store: PictureStore | SoundStore
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


Vary = Callable[[nn.Module, Input], Input]


def no_labels(stream: Input) -> Tensor:
    return stream.layout.starts_B.new_zeros(0)


@dataclass(frozen=True)
class Exam:
    """What is to be written about, and what would be right."""

    sources: Sequence[Any]
    references: Sequence[str] | Sequence[Sequence[str]]
    """One for each source, or several of which each is right."""

    names: Sequence[str]
    """Of the sources, for people."""

    def first(self, n: int) -> Exam:
        return Exam(self.sources[:n], self.references[:n], self.names[:n])


class Write(Task):
    """What is abstract here, each kind of source has of its own."""

    samples: ClassVar[int]
    """Examples of an evaluation that are shown."""

    @property
    def scores(self) -> tuple[str, ...]:
        return self.row.scores

    def objective(self, settings: Resolved, prepared: Prepared) -> Writing:
        return Writing(settings, self, prepared)

    def items(self, data: Columns, words: Vocabularies, settings: Resolved) -> WriteItems:
        """Of one split, or of any other examples."""
        return WriteItems.of(intake_of(settings).cut(data), data["text"], words.target)

    def plan(self, items: WriteItems, tokens: int, seed: int, pool: int | None = None) -> StepPlan:
        """Steps of so many tokens or rows."""
        source, target = items.lengths.T
        return StepPlan.of_pairs(source, target, tokens, seed, pool)

    def varies(self, settings: Resolved) -> Vary:
        """How a source is changed by chance, as `[augment]` says."""
        intake = intake_of(settings)
        return lambda model, stream: intake.vary(model, stream, no_labels(stream))[0]

    def hide(self, settings: Resolved) -> float:
        """The share of its own words that the decoder does not get to read while it learns."""
        return 0.0

    @abstractmethod
    def exam(self, prepared: Prepared, items: WriteItems) -> Exam:
        """Of the validation set."""

    @abstractmethod
    def quick(self, decode: DecodeSettings, items: WriteItems) -> DecodeSettings:
        """For looks on the way: greedy, and hardly longer than what is right for any of these."""

    def written(
        self,
        model: nn.Module,
        settings: Resolved,
        decode: DecodeSettings,
        prepared: Prepared,
        exam: Exam,
        on_progress: OnProgress,
    ) -> Iterator[str]:
        """What the model writes about each, in order."""
        assert isinstance(model, Seq2Seq)
        # No pair is longer than what the run was trained on: none is to be split.
        writer = Writer([model], prepared.words, decode, max_len=None)
        for found in writer.write(exam.sources, on_progress=on_progress):
            yield found.text

    def trivial(self, exam: Exam, usual: Callable[[], str]) -> tuple[str, list[str]]:
        """What one can write who knows nothing, and its name. `usual`: what is written most often
        in training."""
        return "most frequent text", [usual()] * len(exam.references)

    def notes(self, train: WriteItems, valid: WriteItems) -> list[str]:
        """What whoever trains should know before it begins."""
        return []

    @abstractmethod
    def shown(self, example: int, prepared: Prepared) -> dict[str, object]:
        """A source of training that something went wrong with."""


@dataclass
class Writing(Objective[Words]):
    """How examples become steps, what they cost, and how good the texts are."""

    kind: Write
    prepared: Prepared
    quick_size: int = field(default=500, kw_only=True)
    train_items: WriteItems = field(init=False)
    valid_items: WriteItems = field(init=False)

    def __post_init__(self) -> None:
        train, prepared = self.settings.train, self.prepared
        self.metric = METRICS[train.metric or self.kind.scores[0]]
        self.tokenizer = prepared.words.target
        self.train_items = self.kind.items(prepared.train, prepared.words, self.settings)
        self.valid_items = self.kind.items(prepared.valid, prepared.words, self.settings)
        size = self.tokenizer.vocab_size
        self.smoothing = Smoothing.of(train.smoothing, size, train.smoothing_kind)
        self.readout = readout_of(self.settings)
        self.vary_source = self.kind.varies(self.settings)
        self.writes = self.readout != EachRow("ctc")
        """Whether there is a decoder; else CTC is all."""

    def notes(self) -> list[str]:
        return self.kind.notes(self.train_items, self.valid_items)

    def plan(self, items: Items[Words]) -> StepPlan:
        assert isinstance(items, WriteItems)
        train = self.settings.train
        return self.kind.plan(items, train.batch_tokens, train.seed, train.pool)

    def vary(self, model: nn.Module, batch: Batch[Words]) -> Batch[Words]:
        """The source changed a little, and words that the decoder does not get to read."""
        source, target = batch.streams
        source = self.train_items.source.shown(source)
        if model.training:
            source = self.vary_source(model, source)
            target = replace(target, values=self._hidden(target.values))
        return replace(batch, streams=(source, target))

    def _hidden(self, read_N: Tensor) -> Tensor:
        """The words that the decoder reads, some of them unknown; the start token never is."""
        share = self.kind.hide(self.settings)
        if not share:
            return read_N
        hidden_N = torch.rand(read_N.shape, device=read_N.device) < share
        return read_N.masked_fill(hidden_N & (read_N != self.tokenizer.bos), self.tokenizer.unk)

    def read(self, model: nn.Module, given: Batch[Words]) -> Read:
        """Rows of the source, where they speak, count as much in all as the words do."""
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

    def _loss(self, read: Read, given: Batch[Words], smoothing: Smoothing) -> TaskLoss:
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
        """Of the texts that the rows have room for, summed; the others say nothing."""
        scores_MV, words = read.scores(read.x_RD), batch.targets
        assert words.heard_K is not None
        assert words.heard is not None
        blank = scores_MV.shape[1] - 1
        layout = batch.streams[0].layout
        return ctc_loss(scores_MV, layout, words.heard_K, words.heard, blank).nll_B.sum()

    def _described(self, exam: Exam, outputs: Sequence[str]) -> dict[str, list[Small]]:
        """Pictures and recordings with what was written about them, for the report."""
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
        if not self.writes:  # CTC says blanks too
            return None
        train, valid = self.train_items.texts, self.valid_items.texts
        return text_frequencies(train, valid, self.tokenizer)

    @torch.no_grad()
    def _valid_loss(self, asked: Pass) -> float:
        """Nats a target token, without smoothing: of the decoder, or of CTC where that is all."""
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
