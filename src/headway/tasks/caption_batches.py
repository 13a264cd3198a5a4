"""Pictures with captions as flat batches: what an encoder sees, what a decoder reads and says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from headway.config.model import PictureSettings
from headway.data.batches import POOL, FlatTokens, Rows, StepPlan, fed, moved
from headway.data.store import Columns
from headway.data.tokens import TokenStore
from headway.models.parts.heads import Input
from headway.nn.layout import Layout
from headway.tasks.media_reader import MediaInput, MediaReader
from headway.tasks.read import EachRow, Read
from headway.text.tokenizer import Tokenizer

ROOM = 1.1
"""Target tokens that a step has room for, beyond what its pictures bring on average."""


@dataclass(frozen=True)
class Words:
    """The decoder's side of a batch."""

    read_N: Tensor
    """The start token, then the caption."""

    layout: Layout
    said_N: Tensor
    """The caption, then the end token."""

    weights_N: Tensor
    """Zero for the dummy rows of the fixed-size form."""


@dataclass(frozen=True)
class CaptionBatch:
    seen: MediaInput
    words: Words


@dataclass(frozen=True, kw_only=True)
class CaptionShapes:
    """The shapes of every batch, for recorded steps."""

    n_pictures: int
    target_rows: int
    n_sequences: int
    longest: int
    longest_caption: int
    rows: int
    """Of pictures, which a part counts as its tokens."""

    @property
    def most_rows(self) -> int:
        return max(self.rows, self.target_rows)


@dataclass(frozen=True)
class Captions:
    """The pictures of one set and what is written about them."""

    items: Columns
    shape: PictureSettings
    tokenizer: Tokenizer

    @cached_property
    def pictures(self) -> MediaReader:
        return MediaReader(self.items.media, self.shape)

    @cached_property
    def lengths(self) -> Rows:
        """Tokens of each caption, with what is put around it."""
        more = 1 if self.tokenizer.target_begin is None else 2
        return np.asarray(self._texts.lengths, dtype=np.int64) + more

    def plan(self, rows: int, seed: int, pool: int | None = None) -> StepPlan:
        """Steps of so many rows of pictures, and the captions that come with them."""
        rows = max(rows, self.pictures.longest)
        if pool == 1:
            # Mixed steps are made even by what a plan calls its targets. That is the pictures here:
            # they are most of the rows, and a fixed form of them has no room to spare for words.
            plan = StepPlan(
                source_lengths=self.lengths,
                target_lengths=self.pictures.lengths,
                source_tokens=0,
                target_tokens=rows,
                seed=seed,
                pool=pool,
            )
            return replace(plan, source_tokens=plan.source_limit(plan.step_limit))
        return StepPlan(
            source_lengths=self.pictures.lengths,
            target_lengths=self.lengths,
            source_tokens=rows,
            target_tokens=self.room(rows),
            seed=seed,
            pool=pool or POOL,
        )

    def room(self, rows: int) -> int:
        """Target tokens for so many rows of pictures: never less than the longest has."""
        share = self.lengths.sum() / self.pictures.lengths.sum()
        return max(int(ROOM * share * rows) + 1, int(self.lengths.max()))

    def shapes(self, rows: int, target_tokens: int) -> CaptionShapes | None:
        """What holds every batch cut to these numbers; None where pictures differ in size."""
        if self.pictures.fixed(rows) is None:
            return None
        n_pictures, longest = rows // self.pictures.longest, int(self.lengths.max())
        return CaptionShapes(
            n_pictures=n_pictures,
            target_rows=min(rounded(target_tokens), n_pictures * longest),
            n_sequences=n_pictures,
            longest=max(self.pictures.longest, longest),
            longest_caption=longest,
            rows=n_pictures * self.pictures.longest,
        )

    def batch(
        self, rows: Rows, device: torch.device, fixed: CaptionShapes | None = None
    ) -> CaptionBatch:
        read, said, lengths = self._words(rows)
        if fixed is None:
            seen, longer = self.pictures.read(rows, device), lengths
            target = Layout.of(lengths.tolist())
        else:
            # The first pictures come again until the batch is full: nobody writes about them.
            seen = self.pictures.read(np.resize(rows, fixed.n_pictures), device)
            form = partial(Layout.fixed, n_sequences=fixed.n_sequences, longest=fixed.longest)
            every = [self.pictures.longest] * fixed.n_pictures
            seen = moved(replace(seen, layout=form(every, n_rows=sum(every))), device)
            lengths = np.pad(lengths, (0, fixed.n_pictures - len(rows)))
            longer = stretched(lengths, fixed.target_rows, fixed.longest_caption)
            target = form(longer.tolist(), n_rows=fixed.target_rows)
        is_word_N = target.positions_N < torch.from_numpy(np.repeat(lengths, longer))
        read_N, said_N = (
            torch.zeros(target.n_rows, dtype=torch.long).masked_scatter_(is_word_N, tokens)
            for tokens in map(torch.from_numpy, (read, said))
        )
        words = Words(read_N, target, said_N, is_word_N.float())
        return CaptionBatch(seen, moved(words, device))

    def read(self, model: nn.Module, batch: CaptionBatch) -> Read:
        """Every row of the captions says the token that follows."""
        seen = Input(self.pictures.seen(batch.seen), batch.seen.layout)
        written = Input(batch.words.read_N, batch.words.layout)
        return EachRow("words").read(model, seen, written)

    def texts(self) -> list[str]:
        return [self.text(row) for row in range(self.items.n)]

    def text(self, row: int) -> str:
        return self.tokenizer.decode(self._texts[row].tolist())

    def _words(self, rows: Rows) -> tuple[Rows, Rows, Rows]:
        tokenizer, store = self.tokenizer, self._texts
        return fed(
            *FlatTokens(store.tokens, store.offsets).gather(rows),
            tokenizer.bos,
            tokenizer.eos,
            tokenizer.target_begin,
        )

    @property
    def _texts(self) -> TokenStore:
        return self.items["text"]


def rounded(n_rows: int) -> int:
    """As many rows as a fixed form has that holds these."""
    return -(-n_rows // 128) * 128


def stretched(lengths: Rows, n_rows: int, longest: int) -> Rows:
    """The lengths with dummy rows behind them, `n_rows` in all: from the last sequence back, and
    none beyond `longest`. So every dummy has a picture to look at (attention to nothing is no work
    for the kernels of long sequences), and none is there for dummies alone. Words do not look
    ahead: no real one sees what stands behind it."""
    room = (longest - lengths)[::-1]
    taken = np.cumsum(room) - room
    return lengths + np.clip(n_rows - lengths.sum() - taken, 0, room)[::-1]


def by_picture(items: Columns, texts: Sequence[str]) -> tuple[list[int], list[list[str]]]:
    """The row of every picture, once, and all that is written about it: a manifest names a picture
    as often as it has captions."""
    found: dict[int, tuple[int, list[str]]] = {}
    for row, (key, text) in enumerate(zip(items.hashes.tolist(), texts, strict=True)):
        found.setdefault(key, (row, []))[1].append(text)
    return [row for row, _ in found.values()], [written for _, written in found.values()]
