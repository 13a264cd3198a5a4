"""Sentence vectors: texts that belong together point the same way, all others do not.

Trained on pairs, or on texts alone: a text read twice, with other values dropped each time, is a
pair too (SimCSE, Gao et al. 2021). The other texts of a step are what each must not be near.
"""

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
from headway.data.batches import Fixed, Rows, StepPlan, fixed_shapes, moved
from headway.data.masking import Draws
from headway.data.prepare import prepare
from headway.data.readings import TextReader
from headway.data.store import Prepared, load_prepared
from headway.errors import ConfigError
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with, tokenizer_of
from headway.tasks.contrast import (
    PairedBatch,
    contrastive,
    flat_of,
    paired_batch,
    partners,
    sides,
    valid_loss,
)
from headway.tasks.kind import Predictor, Use
from headway.tasks.proposals import batch_tokens, text_proposal
from headway.tasks.read import Read
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import Part, TaskLoss
from headway.tasks.vectors import (
    bag_retrieval,
    read_vectors,
    retrieval,
    text_keys,
    text_vectors,
)

LONGEST = 256
"""Tokens that a model chosen here reads at once."""

PAIRS = 128
"""In a step, at least, on average: with few others to tell apart there is little to learn."""

DROPPED = 0.3
"""Of the words of a reading, where a model that knows nothing yet has texts alone to learn from: to
tell whole texts apart it would have to learn nothing but to see which words they have."""

WINDOW, DROP = 7, 8
"""Name the draws of windows and of left-out words among those of a seed and an epoch."""


@dataclass(frozen=True)
class EpochRows:
    epoch: int
    rows: Rows


@dataclass
class EmbedTask:
    prepared: Prepared
    settings: Resolved

    def __post_init__(self) -> None:
        train, model = self.settings.train, self.settings.model
        self.metric = METRICS[train.metric or "accuracy"]
        tokenizer = self.prepared.tokenizer
        self.sides = sides(self.prepared.train, tokenizer, model.max_len)
        read = [np.minimum(side.needed, model.max_len) for side in self.sides]
        lengths = read[0] + read[-1]  # a text without a partner is read twice
        self.longest = max(int(side.lengths.max()) for side in self.sides)
        step_tokens = max(train.batch_tokens, int(lengths.max()))
        self.plan = StepPlan.of_lengths(lengths, step_tokens, train.seed, train.pool)
        self._counts = {}
        for side in self.sides:
            counts = np.bincount(side.example, minlength=len(side.needed))
            self._counts[id(side)] = counts, np.cumsum(counts) - counts

    def epoch(self, number: int) -> list[EpochRows]:
        return [EpochRows(number, rows) for rows in self.plan.epoch(number)]

    def parts(self, step: EpochRows, micro_tokens: int) -> list[Part]:
        """One: every text of a step is compared with all others of it."""
        return [Part(step, len(step.rows), self.plan.n_targets(step.rows))]

    def fixed(self, micro_tokens: int) -> Fixed:
        tokens = self.plan.step_limit
        shapes = fixed_shapes(self.plan, tokens, tokens, self.longest)
        dummies = -(-shapes.target_rows // self.longest)
        n_pairs = self.plan.most_pairs(tokens) + -(-dummies // 2)
        return Fixed(
            source_rows=shapes.target_rows,
            target_rows=shapes.target_rows,
            n_sequences=2 * n_pairs,
            longest=self.longest,
        )

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> PairedBatch:
        step: EpochRows = part.rows
        draws = Draws(self.settings.train.seed, step.epoch)
        both = self.sides if len(self.sides) == 2 else self.sides * 2
        texts = [self._read(side, step.rows, draws, n) for n, side in enumerate(both)]
        mixed = [text for pair in zip(*texts, strict=True) for text in pair]
        keys = [text_keys(flat_of(side.text, step.rows)) for side in self.sides]
        return moved(paired_batch(mixed, keys, fixed), device)

    def _read(
        self, side: TextReader, rows: Rows, draws: Draws, number: int
    ) -> list[NDArray[np.int64]]:
        """These texts; of one too long to be read at once any window; without some of the words
        where that is wanted."""
        counts, firsts = self._counts[id(side)]
        chosen = (draws.uniform(WINDOW, rows) * counts[rows]).astype(np.int64)
        readings = firsts[rows] + chosen
        flat = side.read(readings)
        ends = np.cumsum(flat.lengths)
        texts = np.split(flat.tokens, ends[:-1])
        if not self.settings.embed.drop_words or len(self.sides) == 2:
            return texts
        example, start, _ = (part[readings] for part in side.windows)
        places = side.text.offsets[example] + start
        drop, word_starts = self.settings.embed.drop_words, self.prepared.tokenizer.word_starts
        before, behind = map(len, side.around)
        left = []
        for text, place in zip(texts, places, strict=True):
            inside = text[before : len(text) - behind]
            starts = word_starts(inside)
            kept = draws.uniform(DROP + number, place + np.flatnonzero(starts)) >= drop
            kept[:1] |= not kept.any()
            words = inside[kept[np.cumsum(starts) - 1]]
            left.append(np.concatenate([text[:before], words, text[len(text) - behind :]]))
        return left

    def vary(self, model: nn.Module, batch: PairedBatch) -> PairedBatch:
        return batch

    def read(self, model: nn.Module, given: PairedBatch) -> Read:
        normalise = self.settings.embed.normalise
        read = read_vectors(model, given.tokens_N, given.layout, normalise)
        return read.weighed(given.weights_B.repeat_interleave(2) / 2)

    def loss(self, read: Read, given: PairedBatch) -> TaskLoss:
        x_SD = read.said_RC
        like_BB = x_SD[0::2] @ x_SD[1::2].T / self.settings.embed.temperature
        loss = contrastive(like_BB, given.apart_BB, given.weights_B)
        return TaskLoss(loss, loss.detach())

    @property
    def n_valid(self) -> int:
        return len(self.valid[0].needed)

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
        normalise = self.settings.embed.normalise
        a_ND, b_ND = (
            text_vectors(
                model,
                side,
                device,
                normalise=normalise,
                stopped=stopped,
                on_progress=on_progress,
                most=most,
            )
            for side in self.valid
        )
        found = retrieval(a_ND, b_ND, text_keys(self.valid[1].text)[: len(b_ND)])
        return Scores(
            values={
                "loss": valid_loss(a_ND, b_ND, self.settings.embed.temperature),
                "accuracy": 100.0 * found.accuracy,
                "mrr": 100.0 * found.mrr,
            },
            find_baselines=lambda: self._baselines(len(b_ND)),
        )

    @cached_property
    def valid(self) -> tuple[TextReader, TextReader]:
        tokenizer = self.prepared.tokenizer
        return partners(self.prepared.valid, tokenizer, self.settings.model.max_len)

    def _baselines(self, n: int) -> Baselines:
        """Texts that share words, by tf-idf, among the same `n`: among fewer it is easier."""
        a, b = (replace(side.text, offsets=side.text.offsets[: n + 1]) for side in self.valid)
        found = bag_retrieval(a, b, self.prepared.tokenizer.vocab_size)
        return {"bag of words": {"accuracy": 100.0 * found.accuracy, "mrr": 100.0 * found.mrr}}

    def frequencies(self) -> None:
        """What is right hangs on the other texts of a step."""
        return None

    def show(self, part: Part) -> list[dict[str, Any]]:
        names, decode = ("text", "other"), self.prepared.tokenizer.decode
        return [
            {
                name: decode(side.text.gather(np.array([row]))[0].tolist())
                for name, side in zip(names, self.sides, strict=False)
            }
            for row in part.rows.rows
        ]


class Embed:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        return prepare("texts", settings, folder, progress, tokenizer=tokenizer_of(settings))

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        what = "texts" if "other" not in prepared.train else "pairs"
        return f"{prepared.train.n:,} {what}"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        readers = sides(prepared.train, prepared.tokenizer, 1 << 40)
        longest = min(LONGEST, max(int(side.needed.max()) for side in readers))
        twice = 2 if len(readers) == 1 else 1
        return Facts(
            n=prepared.train.n,
            n_tokens=twice * sum(int(np.minimum(side.needed, longest).sum()) for side in readers),
            longest=longest,
            vocab_size=prepared.tokenizer.vocab_size,
            pairs="other" in prepared.train,
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        least = PAIRS * facts.n_tokens // max(1, facts.n)
        usual = max(batch_tokens(facts.n_tokens, device), least)
        tokens = settings.train.batch_tokens or usual
        step = because(
            f"{PAIRS} texts or more are compared with each other at once", "train",
            {"batch_tokens": tokens, "micro_tokens": tokens},
        )  # fmt: skip
        scratch = not settings.origin
        dropped = {"drop_words": DROPPED} if scratch and not facts.pairs else {}
        found = text_proposal(
            settings,
            facts,
            device,
            f"{facts.n:,} {'pairs' if facts.pairs else 'texts'}",
            longest=facts.longest,
            epochs=10 if facts.n < 200_000 else 3,
            needs={"heads": ()},
            training={"lr": 4e-3},
            tuning={"lr": 1e-4},
        )
        why = "two readings of a text must differ for something to be learned"
        return found.also(step, because(why, "embed", dropped))

    def check(self, settings: Resolved, prepared: Prepared) -> None:
        model, train = settings.model, settings.train
        if train.micro_tokens < train.batch_tokens:
            raise ConfigError(
                f"train.micro_tokens={train.micro_tokens} cannot be less than train.batch_tokens="
                f"{train.batch_tokens} here: the texts of a step are compared with each other. "
                "Set train.batch_tokens to what fits."
            )
        if settings.embed.drop_words and "other" in prepared.train:
            raise ConfigError("embed.drop_words has no effect on pairs of texts. Leave it out.")
        if "other" not in prepared.train and not (model.dropout or settings.embed.drop_words):
            raise ConfigError(
                "model.dropout=0 makes both readings of a text the same, and nothing is learned "
                "from that. Set model.dropout=0.1 or embed.drop_words=0.3, or give pairs (--pairs)."
            )

    def task(self, settings: Resolved, prepared: Prepared) -> EmbedTask:
        return EmbedTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.embed_answers import predictor

        return predictor(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.embed_answers import evaluation

        return evaluation(use, files)
