"""Captions: pictures or videos to text, by an encoder of patches and a decoder of words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal, Survey, because
from headway.config.model import PictureSettings
from headway.config.run import Resolved, RunSettings
from headway.data.batches import Rows
from headway.data.media.prepared import prepare_media
from headway.data.store import Prepared, load_prepared
from headway.decode.captioner import Captioner
from headway.errors import ConfigError, DataError, Stopped
from headway.metrics.captions import Frequencies as NGramFrequencies
from headway.models.parts.pictures import Pictures
from headway.models.seq2seq import Seq2Seq
from headway.nn.augment import Augment
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with, tokenizer_of
from headway.tasks.caption_batches import (
    CaptionBatch,
    Captions,
    CaptionShapes,
    by_picture,
    rounded,
)
from headway.tasks.caption_scores import caption_values, commonest, described_pictures
from headway.tasks.fronts import picture_shape, pixel_statistics, stored_form
from headway.tasks.intake import front_of
from headway.tasks.kind import Predictor, Use
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.proposals import media_proposal, stored_front
from headway.tasks.read import Read
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import TOKENS, Frequencies, Part, TaskLoss, n_examples, text_frequencies
from headway.text.tokenizer import Tokenizer

SAMPLES = 12
COUNTED = 100_000
"""Training captions among which the most frequent one is looked for."""

AT_ONCE = 512
"""Pictures between two looks at whether to stop."""

EPOCHS = ((2_000, 60), (10_000, 30), (50_000, 15), (1_000_000, 8))
"""Captions up to so many, and epochs for them; 4 beyond."""

MODEL: dict[str, dict[str, Any]] = {
    "cpu": {"d_model": 128, "n_layers": 3, "n_decoder_layers": 2, "n_heads": 4, "d_ff": 512},
    "cuda": {"d_model": 256, "n_layers": 6, "n_decoder_layers": 3, "n_heads": 4, "d_ff": 1024},
}
"""Of a model that nobody named."""


@dataclass
class CaptionTask:
    """How pictures with captions become steps, what they cost, and how good the captions are."""

    prepared: Prepared
    settings: Resolved
    quick_size: int = 500
    """Validation pictures that are captioned during training; all of them at the end."""

    def __post_init__(self) -> None:
        train = self.settings.train
        self.metric = METRICS[train.metric or "exact"]
        shape = front_of(self.settings)
        assert isinstance(shape, PictureSettings)
        self.train = Captions(self.prepared.train, shape, self.tokenizer)
        self.valid = Captions(self.prepared.valid, shape, self.tokenizer)
        self.rows = max(train.batch_tokens, self.train.pictures.longest)
        self.plan = self.train.plan(self.rows, train.seed, train.pool)
        self.smoothing = Smoothing.of(
            train.smoothing, self.tokenizer.vocab_size, train.smoothing_kind
        )
        self.augment = Augment(self.settings.augment)

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.prepared.tokenizer is not None
        return self.prepared.tokenizer

    def epoch(self, number: int) -> list[Rows]:
        return self.plan.epoch(number)

    def _limits(self, micro_tokens: int) -> tuple[int, int]:
        """Rows of pictures and tokens of captions in one part: never less than one needs."""
        longest = self.train.pictures.longest
        if not self.plan.is_mixed:
            rows = min(max(micro_tokens, longest), self.rows)
            return rows, min(self.train.room(rows), self.plan.target_tokens)
        rows = self.plan.part_limit(micro_tokens)
        if self.train.pictures.fixed(rows) is not None:
            # Pictures of one size are dealt out to parts that differ by one of them at most.
            most = self.plan.step_limit // longest
            n_parts = -(-most // max(1, micro_tokens // longest))
            rows = -(-most // n_parts) * longest
        # A step that is one part may have had a little more room, for less than a picture.
        return rows, rounded(self.plan.source_limit(rows + longest))

    def parts(self, step: Rows, micro_tokens: int) -> list[Part]:
        rows, words = self._limits(micro_tokens)
        limits = (words, rows) if self.plan.is_mixed else (rows, words)
        return [
            Part(
                part,
                int(self.train.lengths[part].sum()),
                int(self.train.pictures.lengths[part].sum()),
            )
            for part in self.plan.cut(step, *limits)
        ]

    def fixed(self, micro_tokens: int) -> CaptionShapes | None:
        return self.train.shapes(*self._limits(micro_tokens))

    def batch(self, part: Part, device: torch.device, fixed: CaptionShapes | None) -> CaptionBatch:
        return self.train.batch(part.rows, device, fixed)

    def vary(self, model: nn.Module, batch: CaptionBatch) -> CaptionBatch:
        """Pictures that stand a little elsewhere and the like, and words that the decoder does not
        get to read."""
        seen = self.train.pictures.seen(batch.seen)
        assert isinstance(seen, Pictures)
        words = batch.words
        if model.training:
            seen = replace(seen, groups=tuple(self.augment(group) for group in seen.groups))
            words = replace(words, read_N=self._hidden(words.read_N))
        return CaptionBatch(replace(batch.seen, given=seen, rows_B=None), words)

    def read(self, model: nn.Module, given: CaptionBatch) -> Read:
        return self.train.read(model, given).weighed(given.words.weights_N)

    def loss(self, read: Read, given: CaptionBatch) -> TaskLoss:
        return word_loss(read, given.words.said_N, self.smoothing)

    def _hidden(self, read_N: Tensor) -> Tensor:
        """The words that the decoder reads, some of them unknown; the start token never is."""
        share = self.settings.caption.hide
        if not share:
            return read_N
        hidden_N = torch.rand(read_N.shape, device=read_N.device) < share
        return read_N.masked_fill(hidden_N & (read_N != self.tokenizer.bos), self.tokenizer.unk)

    @property
    def n_valid(self) -> int:
        return len(self.described[0])

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
        assert isinstance(model, Seq2Seq)
        loss = self._valid_loss(model, device, stopped, on_progress, most)
        n = n_examples(self, full, most)
        rows, references = self.described[0][:n], self.described[1][:n]
        decode = self.settings.decode
        if not full:
            longest = int(self.valid.lengths.max()) + 2
            longest = min(decode.max_len or longest, longest)
            decode = replace(decode, beam=1, n_best=1, groups=1, max_len=longest)
        captioner = Captioner([model], self.tokenizer, decode)
        outputs: list[str] = []
        for first in range(0, len(rows), AT_ONCE):
            items = [self.prepared.valid.pictures[row] for row in rows[first : first + AT_ONCE]]
            outputs += [found[0].text for found in captioner.captions(items, first)]
            on_progress(len(outputs), len(rows))
            if stopped():
                raise Stopped
        values = {"loss": loss, "ppl": float(np.exp(min(loss, 50.0)))}
        values |= caption_values(outputs, references, self.frequencies_of_words)
        figures: dict[str, Any] = {}
        if full:
            figures["described"] = described_pictures(
                self.prepared.valid.pictures, rows, references, outputs
            )
        return Scores(
            values=values,
            samples=self._samples(references, outputs),
            figures=figures,
            find_baselines=lambda: self.baselines,
            find_answers=lambda: (outputs, references),
        )

    @cached_property
    def baselines(self) -> Baselines:
        references = self.described[1]
        usual = commonest(
            self.train.text(row) for row in range(min(COUNTED, self.prepared.train.n))
        )
        same = caption_values([usual] * len(references), references, self.frequencies_of_words)
        return {"one caption for all": same, TOKENS: self.frequencies().scores}

    def frequencies(self) -> Frequencies:
        train, valid = self.prepared.train["text"], self.prepared.valid["text"]
        assert train is not None
        assert valid is not None
        return text_frequencies(train, valid, self.tokenizer)

    @cached_property
    def described(self) -> tuple[list[int], list[list[str]]]:
        """The validation pictures, each once, and all that is written about each."""
        return by_picture(self.prepared.valid, self.valid.texts())

    @cached_property
    def frequencies_of_words(self) -> NGramFrequencies:
        """Of the validation captions, as CIDEr weighs them."""
        return NGramFrequencies.of(self.described[1])

    def _valid_loss(
        self,
        model: Seq2Seq,
        device: torch.device,
        stopped: Callable[[], bool],
        on_progress: OnProgress = unheard,
        most: int | None = None,
    ) -> float:
        """Likelihood per token, without smoothing."""
        plan = self.valid.plan(self.rows, 0)
        total, count, seen_rows = 0.0, 0, 0
        order = np.arange(self.prepared.valid.n)[:most]
        for rows in plan.cut(order, plan.source_tokens, plan.target_tokens):
            batch = self.valid.batch(rows, device)
            read = self.valid.read(model, batch)
            total += float(word_loss(read, batch.words.said_N, PLAIN).nll)
            count += plan.n_targets(rows)
            seen_rows += len(rows)
            on_progress(seen_rows, len(order))
            if stopped():
                raise Stopped
        return total / max(1, count)

    def _samples(self, references: list[list[str]], outputs: list[str]) -> list[dict[str, str]]:
        places = [str(example["place"]) for example in self.prepared.valid_examples]
        rows = self.described[0][:SAMPLES]
        return [
            {
                "source": places[row] if row < len(places) else f"picture {row:,}",
                "target": " │ ".join(texts),
                "output": output,
            }
            for row, texts, output in zip(rows, references, outputs, strict=False)
        ]

    def show(self, part: Part) -> list[dict[str, Any]]:
        return [{"picture": int(row), "caption": self.train.text(row)} for row in part.rows]


class Caption:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        if not settings.data.media:
            raise DataError(
                "no pictures with captions. Give --media FILE: TSV, CSV or JSONL with the columns "
                "`path` and `text`."
            )
        return prepare_media(
            settings.caption.what,
            settings,
            folder,
            progress,
            target="text",
            shape=self._shape(settings),
            tokenizer=tokenizer_of(settings),
        )

    @staticmethod
    def _shape(settings: RunSettings, stored: Survey | None = None) -> PictureSettings:
        return picture_shape(settings, settings.caption.what, {"class_token": False}, stored)

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        return f"{prepared.train.n:,} captions of {prepared.what}"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        assert prepared.tokenizer is not None
        stored = stored_form(prepared)
        shape = self._shape(settings, stored)
        captions = Captions(prepared.train, shape, prepared.tokenizer)
        return Facts(
            n=prepared.train.n,
            longest_text=int(captions.lengths.max()),
            vocab_size=prepared.tokenizer.vocab_size,
            front=shape,
            stored=stored,
            colours=pixel_statistics(prepared.train.pictures),
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        for name in ("mixup", "cutmix"):
            if getattr(settings.augment, name):
                raise ConfigError(
                    f"augment.{name} mixes two pictures and their classes; two captions cannot be "
                    "mixed. Leave it out."
                )
        rows, limit = facts.rows(facts.picture), 2 * facts.longest_text + 8
        found = media_proposal(
            settings,
            facts,
            device,
            f"{facts.n:,} captions",
            n_rows=rows * facts.n,
            longest=max(rows, limit),
            epochs=next((epochs for most, epochs in EPOCHS if facts.n <= most), 4),
            shape={**MODEL.get(device.type, MODEL["cuda"]), "dropout": 0.1},
            front=stored_front(facts),
            training={"lr": 4e-3, "smoothing": 0.0},
        )
        why = f"twice the longest caption, which has {facts.longest_text} tokens"
        return found.also(
            because(why, "decode", {"max_len": limit}),
            because(device.shown, "decode", {"batch_tokens": 4096 if device.is_cpu else 65_536}),
        )

    def check(self, settings: Resolved, prepared: Prepared) -> None: ...

    def task(self, settings: Resolved, prepared: Prepared) -> CaptionTask:
        return CaptionTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.caption_answers import CaptionPredictor

        return CaptionPredictor.of(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.caption_scores import evaluate_captions

        return evaluate_captions(use, files)
