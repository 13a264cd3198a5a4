"""Continuing text: a causal language model of documents, or of documents that consist of fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal, because
from headway.config.run import Resolved, RunSettings
from headway.data.batches import Fixed
from headway.data.example import TextKind
from headway.data.store import Columns, Prepared, load_prepared
from headway.data.streams import USUAL, Stream, mark_names
from headway.data.texts import prepare_text
from headway.data.windows import Cut, WindowRows, Windows
from headway.decode.completer import Completer
from headway.errors import ConfigError, UserError
from headway.models.decoder import Decoder
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with, tokenizer_of
from headway.tasks.kind import Predictor, Use
from headway.tasks.language import (
    TokenBatch,
    language_scores,
    likelihood,
    n_windows,
    read_next,
    stream,
    stream_frequencies,
    token_batch,
)
from headway.tasks.losses import word_loss
from headway.tasks.proposals import text_proposal
from headway.tasks.read import Read
from headway.tasks.scores import Scores
from headway.tasks.specs import METRICS, spec_of
from headway.tasks.task import TOKENS, Frequencies, Part, TaskLoss

SAMPLES = 3
SAMPLE_START, SAMPLE_TOKENS = 17, 64


@dataclass
class CompleteTask:
    prepared: Prepared
    settings: Resolved

    def __post_init__(self) -> None:
        train, model = self.settings.train, self.settings.model
        self.metric = METRICS[train.metric or "loss"]
        self.context = self.settings.complete.context or model.max_len
        if self.context > model.max_len:
            raise ConfigError(
                f"complete.context={self.context} is more than the model reads "
                f"(model.max_len={model.max_len})."
            )
        self.train = stream(self.prepared.train, self.prepared.tokenizer, self.settings)
        self.valid = stream(self.prepared.valid, self.prepared.tokenizer, self.settings)
        step_tokens = max(train.batch_tokens, self.context)
        self.windows = Windows(
            self.train.lengths, self.context, step_tokens, train.seed, train.pool
        )
        self.smoothing = Smoothing.of(
            train.smoothing, self.prepared.tokenizer.vocab_size, train.smoothing_kind
        )

    def epoch(self, number: int) -> list[WindowRows]:
        return self.windows.epoch(number)

    def parts(self, step: WindowRows, micro_tokens: int) -> list[Part]:
        parts = self.windows.parts(step, micro_tokens)
        length = self.windows.cut(step.epoch).length
        return [Part(part, int(length[part.rows].sum())) for part in parts]

    def fixed(self, micro_tokens: int) -> Fixed:
        return self.windows.fixed(micro_tokens)

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> TokenBatch:
        rows: WindowRows = part.rows
        cut = self.windows.cut(rows.epoch)
        return token_batch(self.train, rows.epoch, cut, rows.rows, device, fixed)

    def vary(self, model: nn.Module, batch: TokenBatch) -> TokenBatch:
        return batch

    def read(self, model: nn.Module, given: TokenBatch) -> Read:
        return read_next(model, given).weighed(given.weights_N)

    def loss(self, read: Read, given: TokenBatch) -> TaskLoss:
        return word_loss(read, given.labels_N, self.smoothing)

    @property
    def n_valid(self) -> int:
        return n_windows(self.valid, self.context)

    @property
    def n_quick(self) -> int:
        return self.n_valid

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
        assert isinstance(model, Decoder)
        total, count, share = likelihood(
            model, self.valid, self.context, device, stopped, on_progress, most
        )
        values = language_scores(total, count, share * self.prepared.valid.n_bytes)
        if self.settings.data.fields:  # the bytes are those of the body alone
            del values["bits_per_byte"]
        return Scores(
            values=values,
            samples=self._samples(model, device),
            find_baselines=lambda: {TOKENS: self._unigram(values)},
        )

    def frequencies(self) -> Frequencies:
        return stream_frequencies(self.train, self.valid, self.prepared.tokenizer.vocab_size)

    def _unigram(self, values: dict[str, float]) -> dict[str, float]:
        """With as many bytes a token as the model's own scores."""
        found = self.frequencies().scores
        if "bits_per_byte" in values and values["loss"]:
            found["bits_per_byte"] = values["bits_per_byte"] * found["loss"] / values["loss"]
        return found

    def _samples(self, model: Decoder, device: torch.device) -> list[dict[str, str]]:
        """The beginnings of validation documents, continued."""
        lengths = self.valid.lengths(USUAL)[:SAMPLES]
        # Of a short context half is left to write in.
        first = np.minimum(lengths, min(SAMPLE_START, -(-self.context // 2)))
        starts = [
            self.valid.read(USUAL, np.array([n]), np.array([0]), size[None])[0].tolist()
            for n, size in enumerate(first)
        ]
        decode = replace(self.settings.decode, max_len=SAMPLE_TOKENS, n_best=1)
        completer = Completer(
            [model],
            self.prepared.tokenizer,
            decode,
            context=self.settings.model.max_len,
        )
        return [
            {"source": completion.prompt, "target": "", "output": completion.text}
            for completion in completer.complete(starts)
        ]

    def show(self, part: Part) -> list[dict[str, Any]]:
        rows: WindowRows = part.rows
        cut = self.windows.cut(rows.epoch)
        read = [_labels(self.train, rows, cut, row) for row in rows.rows]
        decode = self.prepared.tokenizer.decode
        return [
            {"document": int(cut.document[row]), "text": decode(tokens)}
            for row, tokens in zip(rows.rows, read, strict=True)
        ]


class Complete:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        kind: TextKind = "fields" if settings.data.fields else "documents"
        return prepare_text(
            kind, settings, folder, progress,
            tokenizer=tokenizer_of(settings), specials=mark_names(settings.data.fields),
        )  # fmt: skip

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        n = prepared.train.n
        tokens = _n_tokens(prepared.train)
        return f"{n:,} document{'s' * (n != 1)} of {tokens:,} tokens"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        usual = stream(prepared.train, prepared.tokenizer, settings).lengths(USUAL)
        return Facts(
            n=prepared.train.n,
            n_tokens=_n_tokens(prepared.train) + prepared.train.n,
            longest=int(usual.max()),
            vocab_size=prepared.tokenizer.vocab_size,
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        most = 256 if device.is_cpu else 1024
        found = text_proposal(
            settings,
            facts,
            device,
            f"{facts.n_tokens:,} tokens",
            longest=settings.complete.context or min(most, facts.longest),
            epochs=10 if facts.n_tokens > 5_000_000 else 20,
            needs={"dropout": 0.2 if facts.n_tokens < 2_000_000 else 0.0},
            metrics=spec_of(settings).scores[: 2 if settings.data.fields else None],
        )
        drawn = {"sample": True, "temperature": 0.8, "top_p": 0.95, "beam": 1}
        return found.also(
            because("text that is drawn repeats itself less", "decode", drawn),
            because("a page or so: such text need not end", "decode", {"max_len": 256}),
        )

    def check(self, settings: Resolved, prepared: Prepared) -> None: ...

    def task(self, settings: Resolved, prepared: Prepared) -> CompleteTask:
        return CompleteTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks import complete_answers as answers

        if use.settings.data.fields:
            answers.refuse(use.options, ("shots", "labels", "draft"), "on a run with fields")
            return answers.FieldWriter(use)
        if use.options.get("field"):
            raise UserError("--field has no effect: this run was trained on plain documents.")
        if answers.chooses_labels(use.options):
            answers.refuse(use.options, ("stream", "draft"), "where a label is chosen")
            return answers.LabelChoices(use)
        return answers.Continuations(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.complete_scores import evaluate_language

        if use.opened.engine is not None:
            raise UserError(
                f"perplexity is not computed by --engine {use.opened.engine.name}. Evaluate the "
                "run that was exported, with --engine torch."
            )
        return evaluate_language(use.opened, use.settings, files, use.progress)


def _labels(source: Stream, rows: WindowRows, cut: Cut, row: int) -> list[int]:
    one = np.array([row])
    _, labels = source.read(rows.epoch, cut.document[one], cut.start[one], cut.length[one])
    return [int(token) for token in labels]


def _n_tokens(texts: Columns) -> int:
    stores = list(texts.parts.values()) or [texts["text"]]
    return sum(int(store.lengths.sum()) for store in stores)
