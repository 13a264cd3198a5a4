"""Speech to text: a decoder, CTC, or both, that learn from recordings with their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal
from headway.config.model import SoundSettings
from headway.config.run import Resolved, RunSettings
from headway.data.batches import FlatTokens, Rows, StepPlan, fed, moved
from headway.data.media.prepared import prepare_media
from headway.data.store import Columns, Prepared, load_prepared
from headway.data.tokens import TokenStore
from headway.decode.search import evaluating
from headway.decode.spelling import speller
from headway.decode.transcriber import Transcriber
from headway.errors import Stopped
from headway.metrics.speech import character_errors, word_errors
from headway.models.parts.heads import Input
from headway.models.parts.sounds import Sound, SoundFront, collate_sounds
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import ctc_loss
from headway.nn.layout import Layout
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with, tokenizer_of
from headway.tasks.caption_scores import commonest
from headway.tasks.fronts import item_rows, sound_shape, stored_form
from headway.tasks.intake_sounds import SoundChanges
from headway.tasks.kind import Predictor, Use
from headway.tasks.losses import word_loss
from headway.tasks.media_reader import MediaReader
from headway.tasks.read import EachRow, Read, readout_of
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import TOKENS, Frequencies, Part, TaskLoss, n_examples, text_frequencies
from headway.tasks.transcribe_choices import (
    check_rows,
    check_weight,
    propose,
    with_characters,
)
from headway.text.tokenizer import Tokenizer

SAMPLES = 8
COUNTED = 100_000
"""Training texts among which the most frequent one is looked for."""

LISTENED_AT_ONCE = 64
"""Recordings between two looks at whether to stop."""


class Chosen(NamedTuple):
    """Recordings of a step, or a part of one, and the epoch it is of."""

    epoch: int
    rows: Rows


@dataclass(frozen=True)
class SpeechBatch:
    sound: Sound
    source: Layout
    target_N: Tensor
    """What the decoder reads: the start token, then the text."""

    target: Layout
    labels_N: Tensor
    """What it should say: the text, then the end token."""

    said_K: Tensor
    """The tokens of the texts alone, side by side: what CTC should say."""

    said: Layout


@dataclass
class TranscribeTask:
    prepared: Prepared
    settings: Resolved
    quick_size: int = 500
    """Validation recordings that are transcribed during training; all of them at the end."""

    def __post_init__(self) -> None:
        train = self.settings.train
        self.metric = METRICS[train.metric or "wer"]
        self.weight = self.settings.transcribe.ctc
        self.train = MediaReader(self.prepared.train.media, self.shape)
        self.valid = MediaReader(self.prepared.valid.media, self.shape)
        self.targets = Targets.of(self.prepared.train, self.tokenizer)
        self.valid_targets = Targets.of(self.prepared.valid, self.tokenizer)
        self.longest = int(self.train.lengths[self.short(self.train)].max(initial=1))
        tokens = max(train.batch_tokens, self.longest)
        self.plan = StepPlan.of_lengths(self.train.lengths, tokens, train.seed, train.pool)
        self.smoothing = Smoothing.of(
            train.smoothing, self.tokenizer.vocab_size, train.smoothing_kind
        )
        self.changes = SoundChanges(self.settings.augment)
        self.readout = readout_of(self.settings)
        self.writes = self.readout != EachRow("ctc")
        """Whether there is a decoder; else CTC is all."""

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.prepared.tokenizer is not None
        return self.prepared.tokenizer

    @property
    def shape(self) -> SoundSettings:
        shape: SoundSettings = self.settings.model.sound  # type: ignore[union-attr]
        return shape

    def short(self, items: MediaReader) -> NDArray[np.bool_]:
        """Recordings that the model can hear at once; others are no examples for training."""
        most = self.shape.most_rows
        return items.lengths <= (np.inf if most is None else most)

    def notes(self) -> list[str]:
        """What whoever trains should know before it begins."""
        train, valid = (int((~self.short(items)).sum()) for items in (self.train, self.valid))
        if not train and not valid:
            return []
        limit = (self.shape.most_rows or 0) * self.shape.row_seconds
        return [
            f"left out, being longer than the {limit:g} s that the model hears at once: {train:,} "
            f"of {len(self.train):,} recordings for training and {valid:,} of "
            f"{len(self.valid):,} for validation"
        ]

    def epoch(self, number: int) -> list[Chosen]:
        short = self.short(self.train)
        steps = (rows[short[rows]] for rows in self.plan.epoch(number))
        return [Chosen(number, rows) for rows in steps if len(rows)]

    def parts(self, step: Chosen, micro_tokens: int) -> list[Part]:
        tokens = min(max(micro_tokens, self.longest), self.plan.target_tokens)
        return [
            Part(Chosen(step.epoch, rows), self.targets.count(rows), self.plan.n_targets(rows))
            for rows in self.plan.cut(step.rows, tokens, tokens)
        ]

    def fixed(self, micro_tokens: int) -> None:
        return None

    def batch(self, part: Part, device: torch.device, fixed: Any) -> SpeechBatch:
        epoch, rows = part.rows
        sounds, seed = self.prepared.train.sounds, self.settings.train.seed
        waves = [sounds[row] for row in rows.tolist()]
        speeds = self.changes.speeds(rows.tolist(), seed, epoch)
        return self.targets.batch(rows, waves, self.shape, device, speeds)

    def vary(self, model: nn.Module, batch: SpeechBatch) -> SpeechBatch:
        if not model.training:
            return batch
        return replace(batch, sound=self.changes(front_of(model), batch.sound))

    def read(self, model: nn.Module, given: SpeechBatch) -> Read:
        """Rows of sound count as much in all as the words that are said in them."""
        streams = [Input(given.sound, given.source), Input(given.target_N, given.target)]
        n_rows, n_words = given.source.n_rows, given.target.n_rows
        even_M = given.target_N.new_full((n_rows,), n_words / max(1, n_rows), dtype=torch.float32)
        if not self.writes:
            return self.readout.read(model, streams[0]).weighed(even_M)
        read = self.readout.read(model, *streams)
        more = {name: heard.weighed(even_M) for name, heard in read.more.items()}
        return replace(read, more=more)

    def loss(self, read: Read, given: SpeechBatch) -> TaskLoss:
        if not self.writes:
            loss = self._ctc(read, given)
            return TaskLoss(loss, loss.detach())
        written = word_loss(read, given.labels_N, self.smoothing)
        heard = read.more.get("ctc")
        if heard is None:
            return written
        ctc = heard.share * self._ctc(heard, given)
        return TaskLoss(read.share * written.sum + ctc, written.nll)

    def _ctc(self, read: Read, batch: SpeechBatch) -> Tensor:
        """Of the texts that the rows have room for, summed; the others say nothing."""
        scores_MV = read.scores(read.x_RD)
        blank = scores_MV.shape[1] - 1
        return ctc_loss(scores_MV, batch.source, batch.said_K, batch.said, blank).nll_B.sum()

    @property
    def n_valid(self) -> int:
        return len(self.valid)

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
        loss = self._valid_loss(model, device, stopped, on_progress, most)
        n = n_examples(self, full, most)
        decode = self.settings.decode
        if not full:
            longest = int(texts_of(self.prepared.valid).lengths.max()) + 2
            longest = min(decode.max_len or longest, longest)
            decode = replace(decode, beam=1, n_best=1, groups=1, sample=False, max_len=longest)
        spells = speller(model, self.tokenizer, decode, self.weight)
        ear = Transcriber(spells, self.tokenizer, decode, self.shape, guard=False)
        outputs: list[str] = []
        heard_at = np.flatnonzero(self.short(self.valid)[:n])
        order = heard_at[np.argsort(self.valid.lengths[heard_at], kind="stable")]
        for first in range(0, len(order), LISTENED_AT_ONCE):
            places = order[first : first + LISTENED_AT_ONCE]
            heard = ear.hear([self.prepared.valid.sounds[place] for place in places.tolist()])
            outputs += [found.text for found in heard]
            on_progress(len(outputs), len(order))
            if stopped():
                raise Stopped
        answers = dict(zip(order.tolist(), outputs, strict=True))
        found = [answers[place] for place in heard_at.tolist()]
        right = [self.references[place] for place in heard_at.tolist()]
        values = {
            "loss": loss,
            "wer": 100.0 * word_errors(right, found).rate,
            "cer": 100.0 * character_errors(right, found).rate,
        }
        return Scores(
            values=values,
            samples=self._samples(answers),
            find_baselines=lambda: self._baselines(right),
            find_answers=lambda: (found, right),
        )

    def _baselines(self, right: list[str]) -> Baselines:
        """The text that is said most often in training, whatever is heard."""
        texts = texts_of(self.prepared.train)
        usual = commonest(
            self.tokenizer.decode(texts[row].tolist()).strip()
            for row in range(min(COUNTED, len(texts)))
        )
        same = [usual] * len(right)
        baselines = {
            "the commonest text": {
                "wer": 100.0 * word_errors(right, same).rate,
                "cer": 100.0 * character_errors(right, same).rate,
            }
        }
        frequencies = self.frequencies()
        if frequencies is not None:
            baselines[TOKENS] = {"loss": frequencies.scores["loss"]}
        return baselines

    def frequencies(self) -> Frequencies | None:
        if self.weight == 1.0:  # CTC says blanks too
            return None
        texts = (texts_of(self.prepared.train), texts_of(self.prepared.valid))
        return text_frequencies(*texts, self.tokenizer)

    @cached_property
    def references(self) -> list[str]:
        """The validation texts as the tokenizer knows them."""
        texts = texts_of(self.prepared.valid)
        return [self.tokenizer.decode(texts[i].tolist()).strip() for i in range(len(texts))]

    @torch.no_grad()
    def _valid_loss(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool],
        on_progress: OnProgress = unheard,
        most: int | None = None,
    ) -> float:
        """Nats a target token, without smoothing: of the decoder, or of CTC where that is all."""
        tokens = max(min(self.plan.target_tokens, 8192), self.valid.longest)
        plan = StepPlan.of_lengths(self.valid.lengths, tokens, 0)
        order = np.argsort(self.valid.lengths[:most], kind="stable")
        order = order[self.short(self.valid)[order]]
        total, count, seen = 0.0, 0, 0
        with evaluating([model]):
            for rows in plan.cut(order, tokens, tokens):
                waves = [self.prepared.valid.sounds[row] for row in rows.tolist()]
                batch = self.valid_targets.batch(rows, waves, self.shape, device)
                total += float(self.loss(self.read(model, batch), batch).nll)
                count += self.valid_targets.count(rows)
                seen += len(rows)
                on_progress(seen, len(order))
                if stopped():
                    raise Stopped
        return total / max(1, count)

    def _samples(self, answers: Mapping[int, str]) -> list[dict[str, str]]:
        places = [place for place in range(len(self.prepared.valid_examples)) if place in answers]
        return [
            {
                "source": str(self.prepared.valid_examples[place]["place"]),
                "target": self.references[place],
                "output": answers[place],
            }
            for place in places[:SAMPLES]
        ]

    def show(self, part: Part) -> list[dict[str, Any]]:
        texts = texts_of(self.prepared.train)
        return [
            {"recording": int(row), "text": self.tokenizer.decode(texts[row].tolist())}
            for row in part.rows.rows
        ]


@dataclass(frozen=True)
class Targets:
    """The texts of a set, as batches need them."""

    tokens: FlatTokens
    bos: int
    eos: int
    begin: int | None

    @classmethod
    def of(cls, items: Columns, tokenizer: Tokenizer) -> Targets:
        texts = texts_of(items)
        flat = FlatTokens(texts.tokens, texts.offsets)
        return cls(flat, tokenizer.bos, tokenizer.eos, tokenizer.target_begin)

    def count(self, rows: Rows) -> int:
        """Tokens of these texts, with their ends."""
        return int((self.tokens.offsets[rows + 1] - self.tokens.offsets[rows]).sum()) + len(rows)

    def batch(
        self,
        rows: Rows,
        waves: list[Any],
        shape: SoundSettings,
        device: torch.device,
        speeds: list[float] | None = None,
    ) -> SpeechBatch:
        sound, rows_of = collate_sounds(waves, shape, speeds)
        said, said_lengths = self.tokens.gather(rows)
        inputs, labels, lengths = fed(said, said_lengths, self.bos, self.eos, self.begin)
        batch = SpeechBatch(
            sound=sound,
            source=Layout.of(rows_of),
            target_N=torch.from_numpy(inputs),
            target=Layout.of(lengths.tolist()),
            labels_N=torch.from_numpy(labels),
            said_K=torch.from_numpy(said),
            said=Layout.of(said_lengths.tolist()),
        )
        return moved(batch, device)


def texts_of(items: Columns) -> TokenStore:
    return items["text"]


def front_of(model: nn.Module) -> SoundFront:
    front = model.source_front if isinstance(model, Seq2Seq) else model.front
    assert isinstance(front, SoundFront)
    return front


class Transcribe:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        check_weight(settings)
        return prepare_media(
            "sounds", with_characters(settings), folder, progress,
            target="text", shape=sound_shape(settings), tokenizer=tokenizer_of(settings),
        )  # fmt: skip

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        minutes = prepared.train.sounds.seconds / 60
        return f"{prepared.train.n:,} recordings of {minutes:,.1f} minutes"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        texts, stored = prepared.train["text"], stored_form(prepared)
        assert texts is not None
        assert prepared.tokenizer is not None
        front = sound_shape(settings, stored=stored)
        rows_N = item_rows(prepared.train.media, front)
        return Facts(
            n=prepared.train.n,
            n_tokens=int(rows_N.sum()),
            longest=int(rows_N.max()),
            longest_text=int(texts.lengths.max()),
            vocab_size=prepared.tokenizer.vocab_size,
            front=front,
            stored=stored,
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        return propose(settings, facts, device)

    def check(self, settings: Resolved, prepared: Prepared) -> None:
        check_rows(settings, prepared)

    def task(self, settings: Resolved, prepared: Prepared) -> TranscribeTask:
        return TranscribeTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.transcribe_answers import TranscriptPredictor

        return TranscriptPredictor.of(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.transcribe_scores import evaluate_transcripts

        return evaluate_transcripts(use, files)
