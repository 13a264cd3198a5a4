"""Datasets of tasks that generate text: a source of any kind, and its target text."""

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
from headway.tasks.dataset import Batch, EpochSeed, PositionInfo
from headway.tasks.preprocess.preprocessor import InputDataset
from headway.tasks.preprocess.text import describe_tokens
from headway.tokens.tokenizer import Tokenizer

ROOM = 1.1
"""Capacity for target tokens in a step of images, as a multiple of their average number. The margin
is needed because captions differ in length."""


@dataclass(frozen=True)
class TextTargets:
    """Target texts of a batch, as tokens."""

    targets_N: Tensor
    """Target token of each decoder position: the text, then the end token."""

    ctc_targets_K: Tensor | None = None
    """CTC targets: the tokens of all texts, concatenated, without end tokens. None if CTC is not
    possible."""

    ctc_layout: Layout | None = None
    """Layout of the CTC targets, which assigns each token to its recording. None if CTC is not
    possible."""


@dataclass(frozen=True, kw_only=True)
class ImagePlan(StepPlan):
    """Plan of training steps for captioning. A step is limited by the number of image patches, and
    includes the captions of its images."""

    equal_sizes: bool
    """Whether all images have the same size."""

    @classmethod
    def of(
        cls, lengths: NDArray[np.int64], rows: int, seed: int, pool: int | None, equal: bool
    ) -> ImagePlan:
        images, words = lengths.T
        rows = max(rows, int(images.max()))
        if pool == 1:
            # Exchange the roles of images and texts: a plan without bucketing balances its steps by
            # the target lengths, and the images have most of the positions.
            plan = cls(
                source_lengths=words, target_lengths=images, source_tokens=0, target_tokens=rows,
                seed=seed, bucket_steps=pool, equal_sizes=equal,
            )  # fmt: skip
            return replace(plan, source_tokens=plan.source_limit(plan.step_limit))
        plan = cls(
            source_lengths=images, target_lengths=words, source_tokens=rows, target_tokens=0,
            seed=seed, bucket_steps=pool or BUCKET_STEPS, equal_sizes=equal,
        )  # fmt: skip
        return replace(plan, target_tokens=plan.text_limit(rows))

    @property
    def image_lengths(self) -> IntArray:
        return self.target_lengths if self.is_mixed else self.source_lengths

    @property
    def text_lengths(self) -> IntArray:
        return self.source_lengths if self.is_mixed else self.target_lengths

    @cached_property
    def largest(self) -> int:
        return int(self.image_lengths.max())

    def text_limit(self, rows: int) -> int:
        """Return the maximum number of target tokens for this number of image positions. It is
        never less than the longest text."""
        share = self.text_lengths.sum() / self.image_lengths.sum()
        return max(int(ROOM * share * rows) + 1, int(self.text_lengths.max()))

    def limits(self, micro_tokens: int) -> tuple[int, int]:
        """Return the maximum numbers of image positions and of text tokens in a micro-batch. The
        limits always allow at least one example."""
        largest = self.largest
        if not self.is_mixed:
            rows = min(max(micro_tokens, largest), self.source_tokens)
            return rows, min(self.text_limit(rows), self.target_tokens)
        rows = super().part_limits(micro_tokens)[1]
        if self.equal_sizes:
            # Distribute images of equal size evenly, so that the numbers of images in two
            # micro-batches differ by at most one.
            most = self.step_limit // largest
            n_parts = -(-most // max(1, micro_tokens // largest))
            rows = -(-most // n_parts) * largest
        # Add one image to the limit of text tokens, because a step that is a single micro-batch may
        # exceed its limit by less than one image.
        return rows, rounded(self.source_limit(rows + largest))

    def part_limits(self, micro_tokens: int) -> tuple[int, int]:
        rows, tokens = self.limits(micro_tokens)
        return (tokens, rows) if self.is_mixed else (rows, tokens)

    def n_targets(self, rows: IntArray) -> int:
        return int(self.image_lengths[rows].sum())

    def fixed(self, micro_tokens: int) -> FixedShapes | None:
        """Return fixed shapes of all micro-batches, for CUDA graphs; None if images differ in
        size."""
        if not self.equal_sizes:
            return None
        rows, tokens = self.limits(micro_tokens)
        n, longest = rows // self.largest, int(self.text_lengths.max())
        return FixedShapes(
            source_rows=n * self.largest,
            target_rows=min(rounded(tokens), n * longest),
            n_sequences=n,
            longest=max(self.largest, longest),
            longest_target=longest,
        )


@dataclass(frozen=True)
class Seq2SeqDataset:
    """Sources with their target texts, without the sources that are too long for the model."""

    source: InputDataset
    texts: TokenStore
    tokenizer: Tokenizer
    """Tokenizer of the target texts."""

    lengths: NDArray[np.int64]
    example_index: IntArray
    monotonic: bool = False
    """Whether source and target have the same order, as audio and transcript do, so that CTC can
    align them."""

    epoch_seed: EpochSeed | None = None

    @classmethod
    def of(
        cls,
        source: InputDataset,
        texts: TokenStore,
        tokenizer: Tokenizer,
        *,
        most_rows: int | None = None,
        spoken: bool = False,
    ) -> Seq2SeqDataset:
        """Build the dataset. `most_rows`: maximum number of positions of a source, above which it
        is left out; None: no limit."""
        more = 1 if tokenizer.target_begin is None else 2
        words = np.asarray(texts.lengths, dtype=np.int64) + more
        lengths = np.stack([source.lengths, words], axis=1)
        owner = np.flatnonzero(lengths[:, 0] <= (np.inf if most_rows is None else most_rows))
        return cls(source, texts, tokenizer, lengths[owner], owner, spoken)

    def __len__(self) -> int:
        return len(self.example_index)

    def text(self, example: int) -> str:
        return self.tokenizer.decode(self.texts[example].tolist())

    def for_epoch(self, draw: EpochSeed) -> Seq2SeqDataset:
        return replace(self, epoch_seed=draw)

    def n_targets(self, rows: IntArray) -> int:
        return int(self.lengths[rows, 1].sum())

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        if isinstance(plan, ImagePlan):
            return plan.fixed(micro_tokens)
        return self.source.fixed(plan, micro_tokens)

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[TextTargets]:
        examples, words = self.example_index[rows], self.tokenizer
        tokens, bare = self.texts.gather(examples)
        read, said, lengths = shift_right(tokens, bare, words.bos, words.eos, words.target_begin)
        if fixed is not None:
            left = fixed.target_rows - int(lengths.sum())
            fixed = replace(fixed, n_dummies=-(-left // fixed.longest))
        source = self.source.collate(examples, device, fixed, self.epoch_seed)
        layout, weights_N = target_layout(lengths, fixed)
        read_N, said_N = (_filled(one, layout.n_rows, weights_N) for one in (read, said))
        targets = TextTargets(said_N)
        if self.monotonic:
            targets = TextTargets(said_N, torch.from_numpy(tokens), Layout.of(bare.tolist()))
        weights_R = None if self.monotonic else weights_N
        return to_device(Batch((source, ModelInput(read_N, layout)), targets, weights_R), device)

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        example, words = int(self.example_index[row]), self.tokenizer
        begin = [] if words.target_begin is None else [words.target_begin]
        read = [words.bos, *begin, *self.texts[example].tolist()]
        return self.source.describe_positions(example), describe_tokens(read, words)


def target_layout(lengths: IntArray, fixed: FixedShapes | None) -> tuple[Layout, Tensor]:
    """Return the layout of texts with these lengths, and the weight of each position: zero for
    padding in a batch of fixed size.

    Padding follows all texts or, if `fixed.longest_target` is set, each text.
    """
    if fixed is None or fixed.longest_target is None:
        layout = layout_of(lengths, fixed)
        return layout, loss_weights(lengths.tolist(), layout.n_rows)
    lengths = np.pad(lengths, (0, fixed.n_sequences - len(lengths)))
    longer = padded_lengths(lengths, fixed.target_rows, fixed.longest_target)
    layout = layout_of(longer, fixed)
    return layout, (layout.positions_N < torch.from_numpy(np.repeat(lengths, longer))).float()


def _filled(tokens: IntArray, n_rows: int, weights_N: Tensor) -> Tensor:
    """Return the tokens at the positions with weight, and zeros at the other positions
    (padding)."""
    if len(tokens) == n_rows or bool(weights_N[: len(tokens)].all()):
        return pad_rows(tokens, n_rows)
    empty_N = torch.zeros(n_rows, dtype=torch.long)
    return empty_N.masked_scatter_(weights_N.bool(), torch.from_numpy(tokens))


def rounded(n_rows: int) -> int:
    """Return the number rounded up to a multiple of 128, so that batches have few different
    shapes."""
    return -(-n_rows // 128) * 128


def padded_lengths(lengths: IntArray, n_rows: int, longest: int) -> IntArray:
    """Return the lengths increased to a total of `n_rows`, by padding after each text. Padding is
    added from the last sequence backwards, up to `longest` each.

    Every padding position then has an image to attend to, and no image is needed for padding alone.
    Kernels for long sequences do not support positions that attend to nothing. Causal attention
    hides padding from the real tokens before it.
    """
    room = (longest - lengths)[::-1]
    taken = np.cumsum(room) - room
    return lengths + np.clip(n_rows - lengths.sum() - taken, 0, room)[::-1]
