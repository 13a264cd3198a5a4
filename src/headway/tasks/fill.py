"""Filling gaps: a masked language model, as BERT. Only hidden words cost anything, and the head,
which is the most expensive layer of a small model, is applied to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal, because
from headway.config.model import EncoderSettings, family_of
from headway.config.run import Resolved, RunSettings
from headway.data.batches import moved
from headway.data.masking import Masker
from headway.data.store import Prepared, load_prepared
from headway.data.texts import prepare_text
from headway.data.windows import WindowRows
from headway.errors import ConfigError, UserError
from headway.models.encoder import Encoder
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, Progress, unheard
from headway.tasks import fill_media
from headway.tasks.begun import begun_with, tokenizer_of
from headway.tasks.gaps import ENDS, FillBatch, FillFixed, FramedWindows, Gaps, Reader, read_gaps
from headway.tasks.kind import Predictor, Use
from headway.tasks.losses import word_loss
from headway.tasks.proposals import text_proposal
from headway.tasks.read import Read
from headway.tasks.rebuild import RebuildTask
from headway.tasks.scores import Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import TOKENS, Frequencies, Part, TaskLoss, n_examples, text_frequencies
from headway.text.tokenizer import MASK

QUICK_TOKENS = 100_000
"""Of the validation text, in all validations but the careful ones."""


@dataclass
class FillTask:
    prepared: Prepared
    settings: Resolved

    def __post_init__(self) -> None:
        train = self.settings.train
        tokenizer, fill = self.prepared.tokenizer, self.settings.fill
        self.metric = METRICS[train.metric or "loss"]
        self.context = context_of(self.settings)
        self.train = Reader(
            self.prepared.train["text"], tokenizer, Masker(tokenizer, fill), train.seed
        )
        self.valid = Gaps(self.prepared.valid["text"], tokenizer, self.context)
        lengths = self.prepared.train["text"].lengths.astype(np.int64)
        step_tokens = max(train.batch_tokens, self.context + ENDS)
        self.windows = FramedWindows(
            lambda _: lengths, self.context, step_tokens, train.seed, train.pool
        )
        self.smoothing = Smoothing.of(train.smoothing, tokenizer.vocab_size, train.smoothing_kind)
        self._fixed: dict[int, FillFixed] = {}

    def epoch(self, number: int) -> list[WindowRows]:
        return self.windows.epoch(number)

    def parts(self, step: WindowRows, micro_tokens: int) -> list[Part]:
        cut, most = self.windows.cut(step.epoch), self.fixed(micro_tokens).hidden_rows
        return [
            Part(
                (part, most),
                min(most, self.train.hidden_in(part.epoch, cut, part.rows)),
                int(cut.length[part.rows].sum()),
            )
            for part in self.windows.parts(step, micro_tokens)
        ]

    def fixed(self, micro_tokens: int) -> FillFixed:
        """No text hides more than its share and one token, so there is a bound; whole words, which
        may go beyond it, get some room more."""
        if micro_tokens not in self._fixed:
            shapes, fill = self.windows.fixed(micro_tokens), self.settings.fill
            each = 2 if fill.whole_words else 1
            hidden = int(fill.mask * shapes.target_rows) + each * shapes.n_sequences
            self._fixed[micro_tokens] = FillFixed(
                **vars(shapes), hidden_rows=min(hidden, shapes.target_rows)
            )
        return self._fixed[micro_tokens]

    def batch(self, part: Part, device: torch.device, fixed: FillFixed | None) -> FillBatch:
        rows, most = part.rows
        cut = self.windows.cut(rows.epoch)
        return moved(self.train.batch(rows.epoch, cut, rows.rows, most, fixed), device)

    def vary(self, model: nn.Module, batch: FillBatch) -> FillBatch:
        return batch

    def read(self, model: nn.Module, given: FillBatch) -> Read:
        return read_gaps(model, given).weighed(given.weights_R, given.real_N)

    def loss(self, read: Read, given: FillBatch) -> TaskLoss:
        return word_loss(read, given.labels_R, self.smoothing)

    @property
    def n_valid(self) -> int:
        return len(self.valid.cut)

    @property
    def n_quick(self) -> int:
        return self.valid.n_windows(QUICK_TOKENS)

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
        assert isinstance(model, Encoder)
        values = self.valid.scores(
            model, device, stopped, n_examples(self, full, most), on_progress
        )
        samples = self.valid.samples(model, device)
        return Scores(
            values=values, samples=samples, find_baselines=lambda: {TOKENS: self.valid.baseline()}
        )

    def frequencies(self) -> Frequencies:
        texts = (self.prepared.train["text"], self.prepared.valid["text"])
        return text_frequencies(*texts, self.prepared.tokenizer)

    def show(self, part: Part) -> list[dict[str, Any]]:
        rows, _ = part.rows
        cut = self.windows.cut(rows.epoch)
        texts = self.train.texts(cut, rows.rows)
        ends = np.cumsum(texts.lengths)[:-1]
        return [
            {"document": int(document), "text": self.prepared.tokenizer.decode(tokens.tolist())}
            for document, tokens in zip(
                cut.document[rows.rows], np.split(texts.tokens, ends), strict=True
            )
        ]


class Fill:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        if settings.data.media:
            return fill_media.prepare(settings, folder, progress)
        tokenizer = tokenizer_of(settings)
        if tokenizer is not None and tokenizer.mask is None:
            raise ConfigError(
                f"the vocabulary of {settings.origin} has no mask token, so its model cannot learn "
                "to fill gaps. Start from a run of the task fill, or from scratch."
            )
        return prepare_text(
            "documents", settings, folder, progress, tokenizer=tokenizer, specials=[MASK]
        )

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        if prepared.is_media:
            return fill_media.describe(prepared)
        n = prepared.train.n
        tokens = int(prepared.train["text"].lengths.sum())
        return f"{n:,} document{'s' * (n != 1)} of {tokens:,} tokens"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        if prepared.is_media:
            return fill_media.facts(settings, prepared)
        lengths = prepared.train["text"].lengths
        return Facts(
            n=prepared.train.n,
            n_tokens=int(lengths.sum()) + ENDS * len(lengths),
            longest=int(lengths.max(initial=1)) + ENDS,
            vocab_size=prepared.tokenizer.vocab_size,
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        if facts.front is not None:
            return fill_media.propose(settings, facts, device)
        if settings.model is not None and not isinstance(settings.model, EncoderSettings):
            raise ConfigError(
                f"to fill gaps of text takes a model of the encoder family, not of the "
                f"{family_of(settings.model)} family. Give --media to learn from pictures or "
                "recordings."
            )
        most = 128 if device.is_cpu else 256
        found = text_proposal(
            settings,
            facts,
            device,
            f"{facts.n_tokens:,} tokens",
            longest=settings.fill.context or min(most, facts.longest),
            epochs=20 if facts.n_tokens > 5_000_000 else 40,
            needs={"heads": ("words",)},
        )
        return found.also(because("as many candidates as anyone asks for", "decode", {"beam": 100}))

    def check(self, settings: Resolved, prepared: Prepared) -> None:
        fill_media.check_shape(getattr(settings.model, "picture", None))

    def task(self, settings: Resolved, prepared: Prepared) -> FillTask | RebuildTask:
        if prepared.is_media:
            return RebuildTask(prepared, settings)
        return FillTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        if use.settings.data.media:
            folder = use.opened.folder
            raise UserError(
                f"{folder} has learned to rebuild hidden parts and answers nothing. Train a run "
                f"that starts from it: headway train classify --from {folder} --media …"
            )
        from headway.tasks.fill_answers import Filler

        return Filler.of(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        if use.settings.data.media:
            from headway.tasks.rebuild import evaluate_rebuilding

            return evaluate_rebuilding(use, files)
        from headway.tasks.fill_answers import evaluation

        return evaluation(use, files)


def context_of(settings: Resolved) -> int:
    """Tokens of text that a window holds."""
    model = settings.model
    wanted = settings.fill.context or model.max_len
    if wanted > model.max_len:
        raise ConfigError(
            f"fill.context={wanted} is more than the model reads (model.max_len={model.max_len})."
        )
    if wanted <= ENDS:
        raise ConfigError(f"{wanted} tokens leave no room for text between two special ones.")
    return wanted - ENDS
