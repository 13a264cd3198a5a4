"""Tags of words: named entities, parts of speech."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal
from headway.config.run import Resolved, RunSettings
from headway.data.batches import Fixed, FlatTokens, Rows, StepPlan, fixed_shapes
from headway.data.readings import WordReader
from headway.data.store import Columns, Prepared, load_prepared
from headway.data.texts import prepare_text
from headway.errors import DataError
from headway.nn.crf import is_scheme, log_likelihood
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with, tokenizer_of
from headway.tasks.classes import class_frequencies
from headway.tasks.kind import Predictor, Use
from headway.tasks.losses import label_loss
from headway.tasks.proposals import text_proposal
from headway.tasks.read import Read
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS, spec_of
from headway.tasks.tag_scores import BASELINE, baseline, word_keys
from headway.tasks.tags import (
    TagBatch,
    as_bio,
    best_tags,
    learned_transitions,
    read_tags,
    tag_batch,
    tag_figures,
    tag_values,
    total_nll,
    transitions,
    word_scores,
)
from headway.tasks.task import CLASSES, Frequencies, Part, TaskLoss, n_examples
from headway.text.tokenizer import Tokenizer

LONGEST = 512
"""Tokens that a model chosen here reads at once; longer sentences are read in windows."""

SMALL_TOKENS = 1_000_000
"""Less text than that is soon learned by heart: more dropout, more epochs."""

SAMPLES = 8


@dataclass
class TagTask:
    prepared: Prepared
    settings: Resolved
    quick_size: int = 3000
    """Validation sentences that are read during training; all of them at the end."""

    def __post_init__(self) -> None:
        train, model = self.settings.train, self.settings.model
        self.names = tuple(self.prepared.labels)
        self.spans = is_scheme(self.names)
        self.metric = METRICS[train.metric or tag_metrics(self.spans)[0]]
        tokenizer = self.prepared.tokenizer
        self.train = reader(self.prepared.train, tokenizer, model.max_len)
        self.valid = reader(self.prepared.valid, tokenizer, model.max_len)
        self.labels = labels_of(self.prepared.train)
        self.longest = int(self.train.lengths.max())
        step_tokens = max(train.batch_tokens, self.longest)
        self.plan = StepPlan.of_lengths(self.train.lengths, step_tokens, train.seed, train.pool)
        self.smoothing = Smoothing.of(train.smoothing, len(self.names), train.smoothing_kind)

    def epoch(self, number: int) -> list[Rows]:
        return self.plan.epoch(number)

    def parts(self, step: Rows, micro_tokens: int) -> list[Part]:
        tokens = self._tokens(micro_tokens)
        cut = self.plan.cut(step, tokens, tokens)
        return [
            Part(rows, max(1, int(self.train.n_words[rows].sum())), self.plan.n_targets(rows))
            for rows in cut
        ]

    def _tokens(self, micro_tokens: int) -> int:
        return self.plan.part_limit(micro_tokens)

    def fixed(self, micro_tokens: int) -> Fixed:
        tokens = self._tokens(micro_tokens)
        return fixed_shapes(self.plan, tokens, tokens, self.longest)

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> TagBatch:
        return tag_batch(self.train, part.rows, device=device, fixed=fixed, labels=self.labels)

    def vary(self, model: nn.Module, batch: TagBatch) -> TagBatch:
        return batch

    def read(self, model: nn.Module, given: TagBatch) -> Read:
        return read_tags(model, given).weighed(given.weights_W)

    def loss(self, read: Read, given: TagBatch) -> TaskLoss:
        learned_PC = transitions(read.scores)
        if learned_PC is None:
            return label_loss(read, given.labels_W, self.smoothing)
        logs_B = log_likelihood(read.said_RC, given.labels_W, learned_PC, given.words)
        loss = -(logs_B * given.weights_B).sum()
        return TaskLoss(loss, loss.detach())

    @property
    def n_valid(self) -> int:
        return len(lengths_of(self.prepared.valid))

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
        learned_PC = learned_transitions(model)
        most = n_examples(self, full, most)
        scores_WC = word_scores(model, self.valid, device, stopped, most, on_progress)
        lengths = lengths_of(self.prepared.valid)[:most]
        labels_W = torch.from_numpy(labels_of(self.prepared.valid)[: len(scores_WC)])
        nll = total_nll(scores_WC, labels_W, lengths, learned_PC)
        guesses = [
            self._named(tags) for tags in best_tags(scores_WC, lengths, self.names, learned_PC)
        ]
        truths = self._truths[:most]
        figures = tag_figures(truths, guesses, self.spans)
        values = {"loss": nll / max(1, len(labels_W)), **tag_values(truths, guesses, self.spans)}
        return Scores(
            values=values,
            samples=self._samples(guesses),
            figures=figures,
            find_baselines=lambda: self.baselines,
            find_answers=lambda: (guesses, truths),
        )

    @cached_property
    def _truths(self) -> list[list[str]]:
        ends = np.cumsum(lengths_of(self.prepared.valid))[:-1]
        parts = np.split(labels_of(self.prepared.valid), ends)
        return [self._named(part.tolist()) for part in parts]

    def _named(self, tags: Sequence[int]) -> list[str]:
        return as_bio([self.names[tag] for tag in tags])

    @cached_property
    def baselines(self) -> Baselines:
        found = baseline(self.prepared)
        guesses = [self._named(found.guess(keys)) for keys in word_keys(self.prepared.valid)]
        frequent = {"loss": self.frequencies().scores["loss"]}
        return {
            BASELINE: tag_values(self._truths, guesses, self.spans),
            CLASSES: frequent,
        }

    def frequencies(self) -> Frequencies:
        labels = (self.labels, labels_of(self.prepared.valid))
        return class_frequencies(*labels, len(self.names), np.ones(len(self.names)))

    def _samples(self, guesses: Sequence[list[str]]) -> list[dict[str, str]]:
        decode = self.prepared.tokenizer.decode
        keys = word_keys(self.prepared.valid)
        shown = []
        for words, truth, guess in zip(keys, self._truths, guesses, strict=False):
            text = [decode(list(pieces)).strip() for pieces in words]
            both = [" ".join(f"{w}/{t}" if t != "O" else w for w, t in zip(text, tags, strict=True))
                    for tags in (truth, guess)]  # fmt: skip
            shown.append({"source": " ".join(text), "target": both[0], "output": both[1]})
            if len(shown) == SAMPLES:
                break
        return shown

    def show(self, part: Part) -> list[dict[str, Any]]:
        shown = []
        for row in part.rows:
            flat, _, _ = self.train.read(np.array([row]))
            numbers, _ = self.train.words.gather(np.array([row]))
            tags = [self.names[tag] for tag in self.labels[numbers]]
            text = self.prepared.tokenizer.decode(flat.tokens.tolist())
            shown.append({"text": text, "tags": tags})
        return shown


class Tag:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        return prepare_text("tagged", settings, folder, progress, tokenizer=tokenizer_of(settings))

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        n_words = len(labels_of(prepared.train))
        return f"{prepared.train.n:,} sentences of {n_words:,} words"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        lengths = prepared.train["text"].lengths
        return Facts(
            n=prepared.train.n,
            n_tokens=int(lengths.sum()) + 2 * prepared.train.n,
            longest=int(_needed(prepared).max()),
            vocab_size=prepared.tokenizer.vocab_size,
            labels=tuple(prepared.labels),
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        windows = settings.data.long == "windows"
        needs: dict[str, object] = {"heads": ("tags",), "n_labels": len(facts.labels)}
        needs |= {"tag_transitions": settings.tag.crf}
        if settings.model is None and not settings.start.run and facts.n_tokens < SMALL_TOKENS:
            needs |= {"dropout": 0.3}
        return text_proposal(
            settings,
            facts,
            device,
            f"{facts.n:,} sentences of {facts.n_tokens:,} tokens",
            longest=min(facts.longest, LONGEST) if windows else facts.longest,
            epochs=10 if facts.n_tokens < SMALL_TOKENS else 5,
            needs=needs,
            least_dropout=0.2,
            training={"lr": 4e-3},
            metrics=tag_metrics(is_scheme(facts.labels)),
        )

    def check(self, settings: Resolved, prepared: Prepared) -> None:
        needed, limit = _needed(prepared), settings.model.max_len
        if settings.data.long != "windows" and int(needed.max()) > limit:
            raise DataError(
                f"{int((needed > limit).sum()):,} sentences are longer than the {limit:,} tokens "
                f"that the model reads at once, the longest has {int(needed.max()):,}. Read them "
                "in windows (data.long=windows) or set model.max_len to more."
            )

    def task(self, settings: Resolved, prepared: Prepared) -> TagTask:
        return TagTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.tag_answers import Tagger

        return Tagger.of(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.tag_scores import evaluate_files

        return evaluate_files(use, files)


def _needed(prepared: Prepared) -> NDArray[np.int64]:
    """Tokens of each sentence, read whole."""
    parts = prepared.train, prepared.valid
    return np.concatenate([np.asarray(part["text"].lengths) + 2 for part in parts])


def tag_metrics(spans: bool) -> tuple[str, ...]:
    """Tags that are no borders of spans have no spans to be scored."""
    return spec_of("tag").scores if spans else ("accuracy", "loss")


def reader(texts: Columns, tokenizer: Tokenizer, max_len: int) -> WordReader:
    return WordReader(
        text=FlatTokens(texts["text"].tokens, texts["text"].offsets),
        pieces=FlatTokens(texts["pieces"].tokens, texts["pieces"].offsets),
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        max_len=max_len,
        ends=tokenizer.text_ends,
    )


def labels_of(texts: Columns) -> NDArray[np.int64]:
    """The numbers of the tags of all words of all sentences."""
    return np.asarray(texts["tags"].tokens, dtype=np.int64)


def lengths_of(texts: Columns) -> list[int]:
    """Words of each sentence."""
    return texts["pieces"].lengths.tolist()
