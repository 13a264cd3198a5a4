"""Stored pictures, videos and recordings as inputs of a model, in flat batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.config.model import PictureSettings, SoundSettings
from headway.data.batches import Fixed, Rows, StepPlan, moved
from headway.data.media.store import PictureStore, SoundStore
from headway.errors import Stopped
from headway.models.parts.heads import Input
from headway.models.parts.pictures import Pictures, collate_pictures
from headway.models.parts.sounds import Sound, collate_sounds
from headway.nn.layout import Layout
from headway.progress import OnProgress, unheard
from headway.tasks.fronts import item_rows
from headway.tasks.read import Read, Readout

READ_AT_ONCE = {"cpu": 8192, "cuda": 65_536}
"""Rows of a batch that is only read."""


@dataclass(frozen=True)
class MediaInput:
    """A flat batch: what the front reads, or which of the pictures that are on the device."""

    given: Pictures | Sound | None
    rows_B: Tensor | None
    layout: Layout


Speeds = Callable[[Rows], Sequence[float] | None]
"""How much quicker than they are these recordings are to be heard."""


@dataclass(frozen=True)
class MediaReader:
    """The items of one set, read for a front of these settings."""

    items: PictureStore | SoundStore
    shape: PictureSettings | SoundSettings

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def lengths(self) -> Rows:
        """Rows of the flat batch that each item becomes."""
        return item_rows(self.items, self.shape)

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max())

    def fixed(self, tokens: int) -> Fixed | None:
        """The shapes of every batch of at most so many rows, where all pictures are of one size;
        else there are none."""
        if isinstance(self.items, SoundStore) or self.items.equal is None:
            return None
        n = max(1, tokens // self.longest)
        rows = n * self.longest
        return Fixed(source_rows=rows, target_rows=rows, n_sequences=n, longest=self.longest)

    def read(
        self,
        rows: Rows,
        device: torch.device,
        fixed: Fixed | None = None,
        speeds: Speeds | None = None,
    ) -> MediaInput:
        """These items as a batch on the device. In the fixed form the first ones come again until
        it is full: give those behind `len(rows)` weight zero. `speeds`: of recordings."""
        if isinstance(self.items, SoundStore):
            return moved(self._sounds(rows, speeds), device)
        if fixed is not None:
            rows = np.resize(rows, fixed.n_sequences)
        layout = Layout.of(self.lengths[rows].tolist())
        if self._held(device) is not None:
            return moved(MediaInput(None, torch.from_numpy(rows), layout), device)
        return moved(MediaInput(self._pictures(rows), None, layout), device)

    def seen(self, batch: MediaInput) -> Pictures | Sound:
        """What the front reads."""
        if batch.given is not None:
            return batch.given
        assert batch.rows_B is not None
        held = self._held(batch.rows_B.device)
        assert held is not None
        return Pictures((held.index_select(0, batch.rows_B),))

    def _held(self, device: torch.device) -> Tensor | None:
        """All pictures, where the device has room for them."""
        if isinstance(self.items, SoundStore) or device.type == "cpu":
            return None
        place = torch.empty(0, device=device).device  # "cuda" and "cuda:0" are one place
        if place not in self._copies:
            self._copies[place] = self.items.on(place).copy
        return self._copies[place]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor | None]:
        return {}

    def _pictures(self, rows: Rows) -> Pictures:
        assert isinstance(self.items, PictureStore)
        assert isinstance(self.shape, PictureSettings)
        if self.items.equal is not None:
            return Pictures((self.items.gather(rows),))
        return collate_pictures([self.items[row] for row in rows.tolist()], self.shape)[0]

    def _sounds(self, rows: Rows, speeds: Speeds | None) -> MediaInput:
        assert isinstance(self.items, SoundStore)
        assert isinstance(self.shape, SoundSettings)
        waves: Sequence[Any] = [self.items[row] for row in rows.tolist()]
        drawn = None if speeds is None else speeds(rows)
        sound, lengths = collate_sounds(waves, self.shape, drawn)
        return MediaInput(sound, None, Layout.of(lengths))


@torch.no_grad()
def readings(
    readout: Readout,
    model: nn.Module,
    reader: MediaReader,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
    most: int | None = None,
    on_progress: OnProgress = unheard,
) -> Iterator[tuple[Rows, Read]]:
    """What the model makes of the first `most` items, a batch at a time, beside their numbers.
    Items of like length are read together."""
    tokens = max(READ_AT_ONCE.get(device.type, 8192), reader.longest)
    plan = StepPlan.of_lengths(reader.lengths, tokens, 0)
    order = np.argsort(reader.lengths[:most], kind="stable")
    done = 0
    for rows in plan.cut(order, tokens, tokens):
        batch = reader.read(rows, device)
        yield rows, readout.read(model, Input(reader.seen(batch), batch.layout))
        done += len(rows)
        on_progress(done, len(order))
        if stopped():
            raise Stopped
