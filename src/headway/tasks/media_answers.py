"""Classes as answers to pictures, videos and recordings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.config.model import PictureSettings, SoundSettings
from headway.config.run import RunSettings
from headway.data.media.reading import UNITS
from headway.decode.lines import live_windows, windows
from headway.errors import DataError, UserError
from headway.models.encoder import Encoder
from headway.models.parts.front import Front
from headway.models.parts.heads import Input
from headway.progress import OnProgress, unheard
from headway.tasks.answers import Answer, Facts, LabelAnswer, Printed, Show
from headway.tasks.classes import Numbers
from headway.tasks.kind import Use
from headway.tasks.media_given import Given, given_media, what_of
from headway.tasks.media_labels import front_of, log_probs
from headway.tasks.media_reader import READ_AT_ONCE, MediaReader
from headway.tasks.read import Readout, readout_of

FIRST_WINDOW = 16
"""Items that are read before the first of them is answered."""

FEW = 50
"""Up to so many classes, programs get the probability of each."""


@dataclass
class Labeller:
    """Files in, classes out. Several models answer with the mean of their probabilities."""

    models: Sequence[Encoder]
    settings: RunSettings
    folder: Path
    device: torch.device
    top: int | None = None
    between: OnProgress = unheard
    n_given: int = field(default=0, init=False)
    n_failed: int = field(default=0, init=False)

    @classmethod
    def of(cls, use: Use) -> Labeller:
        top = use.options.get("top")
        if top is not None and top < 1:
            raise UserError(f"--top {top} must be at least 1.")
        opened = use.opened
        models = [model for model in opened.models if isinstance(model, Encoder)]
        return cls(models, use.settings, opened.folder, opened.device, top, use.between)

    @property
    def shape(self) -> PictureSettings | SoundSettings:
        return front_of(self.settings)

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        found = given_media(lines, self.folder, self.shape, self.settings.data)
        for window in live_windows(found) if live else windows(found, FIRST_WINDOW):
            yield from self._window(window)

    def _window(self, window: Sequence[Given]) -> Iterator[Answer]:
        values = [one.values for one in window if one.values is not None]
        try:
            logs = iter(self.log_probs(values))
        except DataError as error:  # too long for a graph, say: the others are answered
            if len(window) > 1:
                for one in window:
                    yield from self._window([one])
                return
            [one] = window
            window, values = [replace(one, values=None, error=f"{one.name}: {error}")], []
            logs = iter(())
        self.n_given += len(window)
        self.n_failed += len(window) - len(values)
        for one in window:
            if one.values is None:
                yield unread(one.name, one.error)
            else:
                yield noted(self._answer(one.name, next(logs)), one)

    def log_probs(self, items: Sequence[Any]) -> Numbers:
        """Of each class for each of the items, in their order."""
        found = []
        for model in self.models:
            rows = read_items(model, items, self.device, readout_of(self.settings), self.between)
            found.append(rows.double().softmax(-1).numpy())
        if not items:
            return np.zeros((0, len(self.settings.labels)))
        return np.log(np.maximum(np.mean(found, axis=0), 1e-300))

    def read(self, reader: MediaReader, on_progress: OnProgress = unheard) -> Numbers:
        """The same for stored items."""
        found = [
            np.exp(log_probs(model, reader, self.device, self.settings, on_progress=on_progress))
            for model in self.models
        ]
        return np.log(np.maximum(np.mean(found, axis=0), 1e-300))

    def _answer(self, name: str, logs_C: Numbers) -> LabelAnswer:
        labels, p_C = self.settings.labels, tuple(np.exp(logs_C).tolist())
        printed = _Printed(name, labels, p_C, self.top or 5)
        return LabelAnswer.of(labels, p_C, place=name, printed=printed)

    def summary(self) -> str:
        unit = UNITS[what_of(self.shape)]
        text = f"{self.n_given:,} {unit.removesuffix('s') if self.n_given == 1 else unit}"
        if self.n_failed:
            text += f", {self.n_failed:,} of them could not be read"
        return text


@dataclass(frozen=True)
class _Printed:
    name: str
    labels: Sequence[str]
    p_C: Sequence[float]
    most: int
    """Classes that programs get in order."""

    @property
    def best(self) -> list[tuple[str, float]]:
        order = sorted(range(len(self.p_C)), key=lambda i: -self.p_C[i])
        return [(self.labels[i], self.p_C[i]) for i in order[: self.most]]

    def lines(self, show: Show, number: int) -> str:
        if show.top is None and not show.scores:
            return self.best[0][0]
        return "\t".join(f"{label}\t{p:.4f}" for label, p in self.best[: show.top or 1])

    def facts(self) -> Facts:
        best = [{"label": label, "probability": round(p, 6)} for label, p in self.best]
        facts: Facts = {"file": self.name, **best[0], "top": best}
        if len(self.labels) <= FEW:
            pairs = zip(self.labels, self.p_C, strict=True)
            facts["probabilities"] = {label: round(p, 6) for label, p in pairs}
        return facts


@dataclass(frozen=True)
class Unread:
    """What could not be read."""

    name: str

    def lines(self, show: Show, number: int) -> str:
        return ""

    def facts(self) -> Facts:
        return {"file": self.name}


def unread(name: str, error: str) -> Answer:
    return Answer(place=name, error=error, printed=Unread(name))


@dataclass(frozen=True)
class _Silent:
    """As it was, and that it was silent."""

    printed: Printed

    def lines(self, show: Show, number: int) -> str:
        return self.printed.lines(show, number)

    def facts(self) -> Facts:
        return {**self.printed.facts(), "silent": True}


def noted(answer: Answer, one: Given) -> Answer:
    """The answer, and that there was nothing to hear where that is so."""
    if not one.is_silent or answer.printed is None:
        return answer
    note = f"{one.name} is silent: its answer says nothing."
    return replace(answer, notes=(note,), printed=_Silent(answer.printed))


@torch.no_grad()
def read_items(
    model: Encoder,
    items: Sequence[Any],
    device: torch.device,
    readout: Readout,
    between: OnProgress = unheard,
) -> Tensor:
    """The answer to each item, on the host in their order. Items of like length are computed
    together; what stands beside an item does not change its answer."""
    front = model.front
    assert isinstance(front, Front)
    rows = [front.rows(item) for item in items]
    most = max(READ_AT_ONCE.get(device.type, 8192), max(rows, default=0))
    found: list[Tensor | None] = [None] * len(items)
    order = sorted(range(len(items)), key=rows.__getitem__)
    while order:
        n, total = 0, 0
        while n < len(order) and total + rows[order[n]] <= most:
            total += rows[order[n]]
            n += 1
        now, order = order[:n], order[n:]
        given, layout = front.collate([items[i] for i in now], device)
        read_BC = readout.read(model, Input(given, layout)).answers().cpu()
        for place, row_C in zip(now, read_BC, strict=True):
            found[place] = row_C
        between(len(items) - len(order), len(items))
    return torch.stack([row for row in found if row is not None]) if items else torch.zeros(0, 0)
