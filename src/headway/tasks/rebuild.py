"""Learning from pictures and recordings without labels: parts are hidden, and the model rebuilds
them from what it still sees. Only hidden rows cost anything. What it learns serves a run that
starts from it (`--from`) with few labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headway.config.data import DataSettings
from headway.config.model import SoundSettings
from headway.config.run import Resolved, RunSettings
from headway.data.batches import Fixed, Rows, StepPlan, moved
from headway.data.media.prepared import evaluation_media
from headway.data.media.reading import UNITS
from headway.data.store import Prepared
from headway.errors import Stopped
from headway.models.parts.heads import Input
from headway.models.parts.pictures import PictureFront, Pictures
from headway.models.parts.sounds import Sound, SoundFront
from headway.nn.augment import Augment
from headway.progress import OnProgress, unheard
from headway.tasks.hiding import (
    Hidden,
    Hider,
    hidden_frames,
    hidden_patches,
    without_frames,
    without_patches,
)
from headway.tasks.intake import front_of
from headway.tasks.kind import Use
from headway.tasks.media_given import what_of
from headway.tasks.media_reader import READ_AT_ONCE, MediaInput, MediaReader
from headway.tasks.read import EachRow, Read
from headway.tasks.scores import Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import Part, TaskLoss, n_examples

QUICK_ITEMS = 1000
"""Validation items that are rebuilt during training; all of them at the end."""

USUAL = -1
"""The epoch of validation: the same rows are hidden every time."""


class Chosen(NamedTuple):
    """Items of a step, or a part of one, and the epoch it is of."""

    epoch: int
    rows: Rows


@dataclass(frozen=True)
class RebuildBatch:
    input: MediaInput
    hidden: Hidden


@dataclass(frozen=True)
class RebuildGiven:
    """A batch as the model sees it, and what it is to rebuild."""

    stream: Input
    hidden: Hidden
    targets_RE: Tensor


def read_hidden(model: nn.Module, given: RebuildGiven) -> Read:
    """Of the hidden rows alone."""
    return EachRow("rebuild").read(model, given.stream, rows_R=given.hidden.rows_R)


def errors(read: Read, given: RebuildGiven) -> Tensor:
    """The mean squared error of each hidden row."""
    return (read.said_RC - given.targets_RE).square().mean(-1)


@dataclass(frozen=True)
class Rebuilder:
    """Items with parts of them hidden, and how far off what is rebuilt of them is."""

    reader: MediaReader
    hider: Hider

    def batch(
        self, rows: Rows, epoch: int, device: torch.device, fixed: Fixed | None = None
    ) -> RebuildBatch:
        read = self.reader.read(rows, device, fixed)
        return RebuildBatch(read, moved(self._hidden(rows, epoch, fixed), device))

    def _hidden(self, rows: Rows, epoch: int, fixed: Fixed | None) -> Hidden:
        shape = self.reader.shape
        if isinstance(shape, SoundSettings):
            lengths = self.reader.items.lengths[rows]  # type: ignore[union-attr]
            frames = np.array([shape.frames_of(n) for n in lengths.tolist()], np.int64)
            return hidden_frames(self.hider, rows, frames, shape, epoch)
        all_rows = rows if fixed is None else np.resize(rows, fixed.n_sequences)
        return hidden_patches(self.hider, all_rows, shape, epoch, len(rows))

    def n_hidden(self, rows: Rows) -> int:
        shape = self.reader.shape
        if isinstance(shape, SoundSettings):
            return sum(self.hider.count(n) for n in self.reader.lengths[rows].tolist())
        n_times, n_lines, n_columns = shape.grid
        return len(rows) * n_times * self.hider.count(n_lines * n_columns)

    def given(
        self, model: nn.Module, batch: RebuildBatch, augment: Augment | None = None
    ) -> RebuildGiven:
        front, seen = model.front, self.reader.seen(batch.input)
        left: Pictures | Sound
        if isinstance(seen, Sound):
            assert isinstance(front, SoundFront)
            left, targets_RE = without_frames(front, seen, batch.hidden)
        else:
            assert isinstance(front, PictureFront)
            if augment is not None:
                seen = replace(seen, groups=tuple(augment(group) for group in seen.groups))
            left, targets_RE = without_patches(front, seen, batch.hidden)
        return RebuildGiven(Input(left, batch.input.layout), batch.hidden, targets_RE)

    def batches(
        self, device: torch.device, most: int | None, on_progress: OnProgress = unheard
    ) -> Iterator[RebuildBatch]:
        """Of the first items, always with the same rows hidden."""
        tokens = max(READ_AT_ONCE.get(device.type, 8192), self.reader.longest)
        plan = StepPlan.of_lengths(self.reader.lengths, tokens, 0)
        order = np.argsort(self.reader.lengths[:most], kind="stable")
        done = 0
        for rows in plan.cut(order, tokens, tokens):
            yield self.batch(rows, USUAL, device)
            done += len(rows)
            on_progress(done, len(order))

    @torch.no_grad()
    def scores(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool] = lambda: False,
        most: int | None = None,
        on_progress: OnProgress = unheard,
    ) -> dict[str, float]:
        """The mean squared error of hidden rows, that of their own mean, which is what one gets who
        sees nothing, and the share (%) of it that the model explains."""
        error, count = 0.0, 0
        sums_2E: Tensor | None = None
        for batch in self.batches(device, most, on_progress):
            given = self.given(model, batch)
            error_R, targets_RE = errors(read_hidden(model, given), given), given.targets_RE
            error += float(error_R.double().sum())
            count += len(error_R)
            wide_RE = targets_RE.double()
            found_2E = torch.stack([wide_RE.sum(0), wide_RE.square().sum(0)])
            sums_2E = found_2E if sums_2E is None else sums_2E + found_2E
            if stopped():
                raise Stopped
        assert sums_2E is not None
        mean_E, square_E = sums_2E / count
        baseline = float((square_E - mean_E.square()).mean())
        loss = error / count
        explained = 100.0 * (1.0 - loss / baseline) if baseline > 0 else 0.0
        return {"loss": loss, "baseline": baseline, "explained": explained}


@dataclass
class RebuildTask:
    prepared: Prepared
    settings: Resolved

    def __post_init__(self) -> None:
        train, shape = self.settings.train, front_of(self.settings)
        self.metric = METRICS[train.metric or "loss"]
        self.train = Rebuilder(
            MediaReader(self.prepared.train.media, shape), hider_of(self.settings, train.seed)
        )
        self.valid = Rebuilder(
            MediaReader(self.prepared.valid.media, shape), hider_of(self.settings, 0)
        )
        self.augment = Augment(self.settings.augment)
        step_tokens = max(train.batch_tokens, self.train.reader.longest)
        self.plan = StepPlan.of_lengths(
            self.train.reader.lengths, step_tokens, train.seed, train.pool
        )

    def epoch(self, number: int) -> list[Chosen]:
        return [Chosen(number, rows) for rows in self.plan.epoch(number)]

    def parts(self, step: Chosen, micro_tokens: int) -> list[Part]:
        tokens = self._tokens(micro_tokens)
        return [
            Part(Chosen(step.epoch, rows), self.train.n_hidden(rows), self.plan.n_targets(rows))
            for rows in self.plan.cut(step.rows, tokens, tokens)
        ]

    def _tokens(self, micro_tokens: int) -> int:
        return self.plan.part_limit(micro_tokens)

    def fixed(self, micro_tokens: int) -> Fixed | None:
        return self.train.reader.fixed(self._tokens(micro_tokens))

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> RebuildBatch:
        return self.train.batch(part.rows.rows, part.rows.epoch, device, fixed)

    def vary(self, model: nn.Module, batch: RebuildBatch) -> RebuildGiven:
        return self.train.given(model, batch, self.augment if model.training else None)

    def read(self, model: nn.Module, given: RebuildGiven) -> Read:
        return read_hidden(model, given).weighed(given.hidden.weights_R)

    def loss(self, read: Read, given: RebuildGiven) -> TaskLoss:
        total = (errors(read, given) * given.hidden.weights_R).sum()
        return TaskLoss(total, total.detach())

    @property
    def n_valid(self) -> int:
        return len(self.valid.reader.lengths)

    @property
    def n_quick(self) -> int:
        return min(QUICK_ITEMS, self.n_valid)

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
        values = self.valid.scores(
            model, device, stopped, n_examples(self, full, most), on_progress
        )
        baseline = values.pop("baseline")
        mean = {"loss": baseline, "explained": 0.0}
        return Scores(values=values, find_baselines=lambda: {"mean of hidden rows": mean})

    def frequencies(self) -> None:
        return None

    def show(self, part: Part) -> list[dict[str, Any]]:
        return [{"item": int(row)} for row in part.rows.rows]


def hider_of(settings: RunSettings, seed: int) -> Hider:
    return Hider(settings.fill.mask, settings.fill.span, seed)


def evaluate_rebuilding(use: Use, files: DataSettings) -> Scores:
    """How well hidden rows of a test set are rebuilt, with the same share of them hidden as in
    training."""
    model = use.opened.model
    shape = front_of(use.settings)
    what = what_of(shape)
    settings = replace(use.settings, data=files)
    found = evaluation_media(what, settings, shape, target="none", progress=use.progress)
    reader = MediaReader(found.items.media, shape)
    with use.progress.stage("rebuilding", len(reader)) as stage:
        rebuilder = Rebuilder(reader, hider_of(use.settings, 0))
        values = rebuilder.scores(model, use.opened.device, on_progress=stage.update)
    share = f"{100 * use.settings.fill.mask:g} % of each hidden"
    rows = [
        ("loss", f"{values['loss']:.4f}", f"mean squared error, {share}"),
        ("mean of hidden rows", f"{values['baseline']:.4f}", "what one gets who sees nothing"),
        ("explained", f"{values['explained']:.2f}", f"% of it, over {len(reader):,} {UNITS[what]}"),
    ]
    known = {name: value for name, value in values.items() if name in METRICS}
    trivial = {"mean of hidden rows": {"loss": values["baseline"]}}
    facts = {**values, "n": len(reader)}
    return Scores(known, rows=rows, facts=facts, find_baselines=lambda: trivial)
