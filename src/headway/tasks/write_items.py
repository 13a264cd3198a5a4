"""Items of tasks that generate text: a source of any kind and its target text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.batches import (
    BUCKET_STEPS,
    FixedShapes,
    IntArray,
    StepPlan,
    layout_of,
    pad_rows,
    shift_right,
    to_device,
)
from headway.data.token_store import TokenStore
from headway.models.parts.output_heads import ModelInput
from headway.nn.layout import Layout, loss_weights
from headway.tasks.intake import Cuts
from headway.tasks.intake_text import token_units
from headway.tasks.items import Batch, Draw, Unit
from headway.tokens.tokenizer import Tokenizer

ROOM = 1.1
"""Room for target tokens in a step, as a multiple of the average for its images."""


@dataclass(frozen=True)
class Words:
    """Target texts of a batch."""

    said_N: Tensor
    """Target of each decoder position: the text, then the end token."""

    heard_K: Tensor | None = None
    """CTC targets: the tokens of all texts, concatenated, without end tokens."""

    heard: Layout | None = None
    """Layout of the CTC targets: the recording that each token belongs to."""


@dataclass(frozen=True, kw_only=True)
class PicturePlan(StepPlan):
    """Plan whose steps are sized by the patches of images, with the texts that belong to them."""

    equal: bool
    """Whether all images have the same size."""

    @classmethod
    def of(
        cls, lengths: NDArray[np.int64], rows: int, seed: int, pool: int | None, equal: bool
    ) -> PicturePlan:
        pictures, words = lengths.T
        rows = max(rows, int(pictures.max()))
        if pool == 1:
            # Steps without bucketing are balanced by the targets of the plan. Here these are the
            # images: they have most of the positions, and a fixed form of them leaves no spare room
            # for texts.
            plan = cls(
                source_lengths=words, target_lengths=pictures, source_tokens=0, target_tokens=rows,
                seed=seed, bucket_steps=pool, equal=equal,
            )  # fmt: skip
            return replace(plan, source_tokens=plan.source_limit(plan.step_limit))
        plan = cls(
            source_lengths=pictures, target_lengths=words, source_tokens=rows, target_tokens=0,
            seed=seed, bucket_steps=pool or BUCKET_STEPS, equal=equal,
        )  # fmt: skip
        return replace(plan, target_tokens=plan.room(rows))

    @property
    def pictures(self) -> IntArray:
        return self.target_lengths if self.is_mixed else self.source_lengths

    @property
    def words(self) -> IntArray:
        return self.source_lengths if self.is_mixed else self.target_lengths

    @cached_property
    def largest(self) -> int:
        return int(self.pictures.max())

    def room(self, rows: int) -> int:
        """Limit of target tokens for this number of image positions; at least the longest text."""
        share = self.words.sum() / self.pictures.sum()
        return max(int(ROOM * share * rows) + 1, int(self.words.max()))

    def limits(self, micro_tokens: int) -> tuple[int, int]:
        """Limits of image positions and text tokens in a micro-batch; at least one example fits."""
        largest = self.largest
        if not self.is_mixed:
            rows = min(max(micro_tokens, largest), self.source_tokens)
            return rows, min(self.room(rows), self.target_tokens)
        rows = super().part_limits(micro_tokens)[1]
        if self.equal:
            # Images of one size are distributed over micro-batches that differ by at most one.
            most = self.step_limit // largest
            n_parts = -(-most // max(1, micro_tokens // largest))
            rows = -(-most // n_parts) * largest
        # A step that is one micro-batch may have had a little more room, less than one image.
        return rows, rounded(self.source_limit(rows + largest))

    def part_limits(self, micro_tokens: int) -> tuple[int, int]:
        rows, tokens = self.limits(micro_tokens)
        return (tokens, rows) if self.is_mixed else (rows, tokens)

    def n_targets(self, rows: IntArray) -> int:
        return int(self.pictures[rows].sum())

    def fixed(self, micro_tokens: int) -> FixedShapes | None:
        """The fixed form of all micro-batches; None if images differ in size."""
        if not self.equal:
            return None
        rows, tokens = self.limits(micro_tokens)
        n, longest = rows // self.largest, int(self.words.max())
        return FixedShapes(
            source_rows=n * self.largest,
            target_rows=min(rounded(tokens), n * longest),
            n_sequences=n,
            longest=max(self.largest, longest),
            longest_target=longest,
        )


@dataclass(frozen=True)
class WriteItems:
    """Sources and their texts; sources that are too long for the model are left out."""

    source: Cuts
    texts: TokenStore
    tokenizer: Tokenizer
    """Tokenizer of the texts."""

    lengths: NDArray[np.int64]
    owner: IntArray
    spoken: bool = False
    """Whether source positions are in the order of the text, so that CTC can predict it."""

    draw: Draw | None = None

    @classmethod
    def of(
        cls,
        source: Cuts,
        texts: TokenStore,
        tokenizer: Tokenizer,
        *,
        most_rows: int | None = None,
        spoken: bool = False,
    ) -> WriteItems:
        """Items for sources and texts. Sources with more than `most_rows` positions are left
        out."""
        more = 1 if tokenizer.target_begin is None else 2
        words = np.asarray(texts.lengths, dtype=np.int64) + more
        lengths = np.stack([source.lengths, words], axis=1)
        owner = np.flatnonzero(lengths[:, 0] <= (np.inf if most_rows is None else most_rows))
        return cls(source, texts, tokenizer, lengths[owner], owner, spoken)

    def __len__(self) -> int:
        return len(self.owner)

    def text(self, example: int) -> str:
        return self.tokenizer.decode(self.texts[example].tolist())

    def drawn(self, draw: Draw) -> WriteItems:
        return replace(self, draw=draw)

    def n_targets(self, rows: IntArray) -> int:
        return int(self.lengths[rows, 1].sum())

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        if isinstance(plan, PicturePlan):
            return plan.fixed(micro_tokens)
        return self.source.fixed(plan, micro_tokens)

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[Words]:
        examples, words = self.owner[rows], self.tokenizer
        tokens, bare = self.texts.gather(examples)
        read, said, lengths = shift_right(tokens, bare, words.bos, words.eos, words.target_begin)
        if fixed is not None:
            left = fixed.target_rows - int(lengths.sum())
            fixed = replace(fixed, n_dummies=-(-left // fixed.longest))
        source = self.source.collate(examples, device, fixed, self.draw)
        layout, weights_N = written_rows(lengths, fixed)
        read_N, said_N = (_filled(one, layout.n_rows, weights_N) for one in (read, said))
        targets = Words(said_N)
        if self.spoken:
            targets = Words(said_N, torch.from_numpy(tokens), Layout.of(bare.tolist()))
        weights_R = None if self.spoken else weights_N
        return to_device(Batch((source, ModelInput(read_N, layout)), targets, weights_R), device)

    def units(self, row: int) -> tuple[Sequence[Unit], ...]:
        example, words = int(self.owner[row]), self.tokenizer
        begin = [] if words.target_begin is None else [words.target_begin]
        read = [words.bos, *begin, *self.texts[example].tolist()]
        return self.source.units(example), token_units(read, words)


def written_rows(lengths: IntArray, fixed: FixedShapes | None) -> tuple[Layout, Tensor]:
    """Layout of texts with these lengths, and the weight of each position: zero for the padding of
    a fixed form, which follows all texts or each text."""
    if fixed is None or fixed.longest_target is None:
        layout = layout_of(lengths, fixed)
        return layout, loss_weights(lengths.tolist(), layout.n_rows)
    lengths = np.pad(lengths, (0, fixed.n_sequences - len(lengths)))
    longer = stretched(lengths, fixed.target_rows, fixed.longest_target)
    layout = layout_of(longer, fixed)
    return layout, (layout.positions_N < torch.from_numpy(np.repeat(lengths, longer))).float()


def _filled(tokens: IntArray, n_rows: int, weights_N: Tensor) -> Tensor:
    """The tokens at the positions with weight, and zeros at the others."""
    if len(tokens) == n_rows or bool(weights_N[: len(tokens)].all()):
        return pad_rows(tokens, n_rows)
    empty_N = torch.zeros(n_rows, dtype=torch.long)
    return empty_N.masked_scatter_(weights_N.bool(), torch.from_numpy(tokens))


def rounded(n_rows: int) -> int:
    """Round up to a multiple of 128, the granularity of fixed forms."""
    return -(-n_rows // 128) * 128


def stretched(lengths: IntArray, n_rows: int, longest: int) -> IntArray:
    """Increase the lengths to a total of `n_rows` with padding after the texts, from the last
    sequence backwards and up to `longest` each.

    In this way every padding position has an image to attend to (kernels for long sequences do not
    support attention to nothing), and no image is needed for padding alone. Causal attention hides
    padding from the real tokens before it."""
    room = (longest - lengths)[::-1]
    taken = np.cumsum(room) - room
    return lengths + np.clip(n_rows - lengths.sum() - taken, 0, room)[::-1]
