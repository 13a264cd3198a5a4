"""Classes of texts and of pairs of texts: sentiment, topics, entailment, written or generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal, because
from headway.config.run import Resolved, RunSettings
from headway.data.batches import Fixed, Rows, StepPlan, fixed_shapes
from headway.data.readings import TextReader
from headway.data.store import Columns, Prepared, load_prepared
from headway.data.streams import mark_names
from headway.data.texts import prepare_text
from headway.errors import DataError
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with, tokenizer_of
from headway.tasks.classes import (
    ClassBatch,
    class_batch,
    class_figures,
    class_frequencies,
    class_values,
    joined_fields,
    log_probs,
    named_answers,
    read_classes,
    text_reader,
)
from headway.tasks.classify_scores import ClassBaselines, labels_of, texts_of
from headway.tasks.kind import Predictor, Use
from headway.tasks.losses import label_loss
from headway.tasks.proposals import text_proposal
from headway.tasks.read import Read
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import Frequencies, Part, TaskLoss, n_examples
from headway.text.tokenizer import Tokenizer

LONGEST = 512
"""Tokens that a model chosen here reads at once; longer texts are read in windows."""

SUBWORDS = ("bpe", "unigram", "wordpiece")
VOCAB_SIZE = 8192
"""Of sub-words, where nobody says: whole words tell more about a label than their pieces."""

SMALL_TOKENS = 1_000_000
SMALL: dict[str, Any] = {"n_layers": 2, "dropout": 0.3}
"""Of a model that nobody named, for less text than that: more layers learn it by heart sooner."""

FEW_CLASSES = 50
"""Up to so many, every evaluation keeps its confusion matrix; beyond, the last one does."""

SAMPLES = 8


@dataclass
class ClassifyTask:
    prepared: Prepared
    settings: Resolved
    quick_size: int = 3000
    """Validation texts that are read during training; all of them at the end."""

    def __post_init__(self) -> None:
        train, model = self.settings.train, self.settings.model
        self.metric = METRICS[train.metric or "accuracy"]
        tokenizer = self.prepared.tokenizer
        self.train = reader(self.prepared.train, tokenizer, model.max_len)
        self.valid = reader(self.prepared.valid, tokenizer, model.max_len)
        self.longest = int(self.train.lengths.max())
        step_tokens = max(train.batch_tokens, self.longest)
        self.plan = StepPlan.of_lengths(self.train.lengths, step_tokens, train.seed, train.pool)
        n_labels = len(self.prepared.labels)
        self.smoothing = Smoothing.of(train.smoothing, n_labels, train.smoothing_kind)
        self.labels = labels_of(self.prepared.train)
        self.weights = np.ones(n_labels, np.float32)
        if self.settings.classify.balance:
            counts = np.bincount(self.labels, minlength=n_labels)
            self.weights = (len(self.labels) / (n_labels * np.maximum(counts, 1))).astype(
                np.float32
            )
        segments = getattr(model, "n_segments", 0)
        self.segments = self.train.other is not None and segments > 1

    def epoch(self, number: int) -> list[Rows]:
        return self.plan.epoch(number)

    def parts(self, step: Rows, micro_tokens: int) -> list[Part]:
        tokens = self._tokens(micro_tokens)
        cut = self.plan.cut(step, tokens, tokens)
        return [Part(rows, len(rows), self.plan.n_targets(rows)) for rows in cut]

    def _tokens(self, micro_tokens: int) -> int:
        return self.plan.part_limit(micro_tokens)

    def fixed(self, micro_tokens: int) -> Fixed:
        tokens = self._tokens(micro_tokens)
        return fixed_shapes(self.plan, tokens, tokens, self.longest)

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> ClassBatch:
        labels = self.labels[self.train.example[part.rows]]
        return class_batch(
            self.train,
            part.rows,
            device=device,
            fixed=fixed,
            segments=self.segments,
            labels=labels,
            weights=self.weights[labels],
        )

    def vary(self, model: nn.Module, batch: ClassBatch) -> ClassBatch:
        return batch

    def read(self, model: nn.Module, given: ClassBatch) -> Read:
        return read_classes(model, given).weighed(given.weights_B)

    def loss(self, read: Read, given: ClassBatch) -> TaskLoss:
        return label_loss(read, given.labels_B, self.smoothing)

    @property
    def n_valid(self) -> int:
        return len(self.valid.needed)

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
        most = n_examples(self, full, most)
        labels_N = labels_of(self.prepared.valid)[:most]
        logs_NC = log_probs(model, self.valid, device, stopped, most, on_progress)
        figures: dict[str, Any] = {}
        if full or len(self.prepared.labels) <= FEW_CLASSES:
            figures = class_figures(logs_NC, labels_N, self.prepared.labels)
        return Scores(
            values=class_values(logs_NC, labels_N),
            samples=self._samples(logs_NC),
            figures=figures,
            find_baselines=lambda: self.baselines,
            find_answers=lambda: named_answers(logs_NC, labels_N, self.prepared.labels),
        )

    @cached_property
    def baselines(self) -> Baselines:
        texts = texts_of(self.prepared.valid, self.prepared.tokenizer)
        return ClassBaselines.of(self.prepared).scores(texts, labels_of(self.prepared.valid))

    def frequencies(self) -> Frequencies:
        labels = (self.labels, labels_of(self.prepared.valid))
        return class_frequencies(*labels, len(self.prepared.labels), self.weights)

    def _samples(self, logs_NC: Any) -> list[dict[str, str]]:
        names, labels_N = self.prepared.labels, labels_of(self.prepared.valid)
        texts = texts_of(self.prepared.valid, self.prepared.tokenizer, SAMPLES)
        return [
            {
                "source": " │ ".join(filter(None, text)),
                "target": names[label],
                "output": f"{names[logs_C.argmax()]} ({np.exp(logs_C.max()):.2f})",
            }
            for text, label, logs_C in zip(texts, labels_N, logs_NC, strict=False)
        ]

    def show(self, part: Part) -> list[dict[str, Any]]:
        tokenizer = self.prepared.tokenizer
        shown = []
        for row in part.rows:
            flat = self.train.read(np.array([row]))
            label = self.labels[self.train.example[row]]
            text = tokenizer.decode(flat.tokens.tolist())
            shown.append({"text": text, "label": self.prepared.labels[label]})
        return shown


class Classify:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        fields = settings.data.fields
        if settings.tokenizer.vocab_size is None and settings.tokenizer.kind in SUBWORDS:
            tokenizer = replace(settings.tokenizer, vocab_size=VOCAB_SIZE)
            settings = replace(settings, tokenizer=tokenizer)
        return prepare_text(
            "fields" if fields else "labelled", settings, folder, progress,
            tokenizer=tokenizer_of(settings), specials=mark_names(fields),
        )  # fmt: skip

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        return f"{prepared.train.n:,} texts of {len(prepared.labels)} classes"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        needed = [_needed(part, prepared.tokenizer) for part in (prepared.train, prepared.valid)]
        return Facts(
            n=prepared.train.n,
            n_tokens=int(needed[0].sum()),
            longest=int(np.concatenate(needed).max()),
            vocab_size=prepared.tokenizer.vocab_size,
            labels=tuple(prepared.labels),
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        windows = settings.data.long == "windows"
        needs: dict[str, object] = {"heads": ("classes",), "n_labels": len(facts.labels)}
        if settings.model is None and not settings.start.run:
            needs |= SMALL if facts.n_tokens < SMALL_TOKENS else {}
        return text_proposal(
            settings,
            facts,
            device,
            f"{facts.n:,} texts of {facts.n_tokens:,} tokens",
            longest=min(facts.longest, LONGEST) if windows else facts.longest,
            epochs=3 if facts.n_tokens < 50 * SMALL_TOKENS else 2,
            needs=needs,
            least_dropout=0.2,
            training={"lr": 4e-3, "smoothing": 0.1},
            tuning={"smoothing": 0.1},
        ).also(because("what the files hold", "classify", {"what": "text"}))

    def check(self, settings: Resolved, prepared: Prepared) -> None:
        """Refuse what the model cannot read at once, where windows are not wanted."""
        if settings.data.long == "windows":
            return
        both = [_needed(part, prepared.tokenizer) for part in (prepared.train, prepared.valid)]
        needed, limit = np.concatenate(both), settings.model.max_len
        if int(needed.max()) > limit:
            raise DataError(
                f"{int((needed > limit).sum()):,} texts are longer than the {limit:,} tokens that "
                f"the model reads at once, the longest has {int(needed.max()):,}. Read them in "
                "windows (data.long=windows) or set model.max_len to more."
            )

    def task(self, settings: Resolved, prepared: Prepared) -> ClassifyTask:
        return ClassifyTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.classify_answers import Classifier

        return Classifier.of(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.classify_scores import evaluate_files

        return evaluate_files(use, files)


def reader(texts: Columns, tokenizer: Tokenizer, max_len: int) -> TextReader:
    if texts.fields:
        return text_reader(joined_fields(tokenizer, texts.parts), None, tokenizer, max_len)
    return text_reader(texts["text"], texts.other, tokenizer, max_len)


def _needed(part: Columns, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Tokens of each text, read whole."""
    return reader(part, tokenizer, 1 << 40).needed
