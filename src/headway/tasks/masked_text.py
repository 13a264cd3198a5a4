"""Windows of text in which some tokens are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headway.data.batches import FixedShapes, IntArray, StepPlan, layout_of, pad_rows, to_device
from headway.data.document_windows import (
    DocumentWindows,
    fixed_windows,
    random_windows,
    window_limit,
    window_shapes,
)
from headway.data.masking import CounterRandom, FlatTexts, TokenMasker
from headway.data.text_windows import ranges
from headway.data.token_store import TokenStore
from headway.errors import ConfigError
from headway.models.parts.output_heads import ModelInput
from headway.nn.layout import loss_weights
from headway.specs.task_settings import FillSettings
from headway.tasks.answers import JsonDict
from headway.tasks.dataset import Batch, EpochSeed, PositionInfo
from headway.tasks.preprocess.preprocessor import MaskTargets
from headway.tokens.tokenizer import Tokenizer

ENDS = 2
"""Number of special tokens around every window: start and end."""

QUICK = 100_000
"""Number of validation tokens that are read in evaluations during training. The standard error of
the accuracy is then about 0.4 percentage points."""

USUAL = FillSettings(mask=0.15, random=0.0, keep=0.0)
"""Masking in evaluations. It does not depend on the training settings, so that the scores of runs
can be compared."""


@dataclass(frozen=True, kw_only=True)
class MaskedTextShapes(FixedShapes):
    masked_rows: int


@dataclass(frozen=True)
class MaskedTextDataset:
    """Windows of up to `room` text tokens between special tokens, in which some tokens are
    masked."""

    store: TokenStore
    tokenizer: Tokenizer
    how: FillSettings
    room: int
    epoch_seed: EpochSeed | None = None

    @cached_property
    def cut(self) -> DocumentWindows:
        lengths = self.store.lengths.astype(np.int64)
        if self.epoch_seed is None:
            return fixed_windows(lengths, self.room)
        return random_windows(lengths, self.room, self.epoch_seed.seed, self.epoch_seed.epoch)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return (self.cut.length + ENDS)[:, None]

    @property
    def example_index(self) -> IntArray:
        return self.cut.document

    @property
    def widest(self) -> int:
        return self.room + ENDS

    @property
    def n_quick(self) -> int:
        return min(len(self.cut), int(np.searchsorted(np.cumsum(self.cut.length), QUICK)) + 1)

    def example(self, row: int) -> JsonDict:
        tokens = self.texts(np.array([row])).tokens
        return {
            "document": int(self.example_index[row]),
            "text": self.tokenizer.decode(tokens.tolist()),
        }

    def for_epoch(self, draw: EpochSeed) -> MaskedTextDataset:
        return replace(self, epoch_seed=draw)

    @property
    def _masking_draws(self) -> CounterRandom:
        return (
            CounterRandom(0, -1)
            if self.epoch_seed is None
            else CounterRandom(self.epoch_seed.seed, self.epoch_seed.epoch)
        )

    @cached_property
    def _masker(self) -> TokenMasker:
        return TokenMasker(self.tokenizer, USUAL if self.epoch_seed is None else self.how)

    def _first(self, rows: IntArray) -> IntArray:
        return self.store.offsets[self.cut.document[rows]] + self.cut.start[rows]

    def texts(self, rows: IntArray) -> FlatTexts:
        lengths = self.cut.length[rows]
        places = ranges(self._first(rows), lengths)
        return FlatTexts(self.store.tokens[places].astype(np.int64), lengths, places)

    def n_targets(self, rows: IntArray) -> int:
        """Return the number of masked tokens in these windows."""
        if self._masker.settings.whole_words:
            return int(self._masker.choose(self.texts(rows), self._masking_draws).sum())
        counts = self._masker.counts(self.cut.length[rows], self._first(rows), self._masking_draws)
        return int(counts.sum())

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[MaskTargets]:
        """Return a batch of windows. Whole-word masking may mask more tokens than a batch of fixed
        size can predict; the surplus tokens stay masked but have no loss."""
        texts, draws = self.texts(rows), self._masking_draws
        hidden = self._masker.choose(texts, draws)
        replaced = self._masker.apply(texts, hidden, draws)
        tokens, at = add_ends(replaced, texts.lengths, self.tokenizer)
        where, words = at[hidden], texts.tokens[hidden]
        n_rows = fixed.masked_rows if isinstance(fixed, MaskedTextShapes) else len(where)
        where, words = where[:n_rows], words[:n_rows]
        layout = layout_of(texts.lengths + ENDS, fixed)
        batch = Batch(
            (ModelInput(pad_rows(tokens, layout.n_rows), layout),),
            MaskTargets(
                pad_rows(words, n_rows),
                loss_weights((texts.lengths + ENDS).tolist(), layout.n_rows),
            ),
            loss_weights([len(where)], n_rows),
            pad_rows(where, n_rows),
        )
        return to_device(batch, device)

    def limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        tokens = window_limit(plan, micro_tokens, self.widest)
        return tokens, tokens

    def fixed(self, plan: StepPlan, micro_tokens: int) -> MaskedTextShapes:
        """Return the fixed shapes of all batches, for CUDA graphs.

        The number of masked tokens of a window exceeds the masked fraction of its length by at most
        one. This bounds their number in a batch. Whole-word masking may exceed this bound, so one
        more token per window is allowed.
        """
        usual = fixed_windows(self.store.lengths.astype(np.int64), self.room).length + ENDS
        tokens = window_limit(plan, micro_tokens, self.widest)
        even = StepPlan.of_lengths(usual, plan.target_tokens, plan.seed, plan.bucket_steps)
        shapes = window_shapes(even, tokens, self.widest)
        each = 2 if self.how.whole_words else 1
        hidden = int(self.how.mask * shapes.target_rows) + each * shapes.n_sequences
        return MaskedTextShapes(**vars(shapes), masked_rows=min(hidden, shapes.target_rows))

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        from headway.tasks.preprocess.text import describe_tokens

        [stream] = self.batch(np.array([row]), torch.device("cpu")).streams
        return (describe_tokens(stream.values.tolist(), self.tokenizer),)

    def apply_mask(
        self, model: nn.Module, batch: Batch[MaskTargets], training: bool
    ) -> Batch[MaskTargets]:
        """Return the batch unchanged: its tokens were already masked when it was built."""
        return batch


def room_of(how: FillSettings, max_len: int) -> int:
    """Return the maximum number of text tokens in a window, without the special tokens."""
    wanted = how.context or max_len
    if wanted > max_len:
        raise ConfigError(
            f"fill.context={wanted} exceeds the maximum length of the model "
            f"(model.max_len={max_len}). Reduce fill.context."
        )
    if wanted <= ENDS:
        raise ConfigError(
            f"a window of {wanted} tokens has no room for text, because {ENDS} of its tokens are "
            "special tokens. "
            "Increase fill.context or model.max_len."
        )
    return wanted - ENDS


def add_ends(
    tokens: IntArray, lengths: IntArray, tokenizer: Tokenizer
) -> tuple[IntArray, IntArray]:
    """Add start and end tokens to each text. Return all tokens, and the new position of each
    original token."""
    number = np.repeat(np.arange(len(lengths)), lengths)
    at = np.arange(len(tokens)) + ENDS * number + 1
    longer = np.full(len(tokens) + ENDS * len(lengths), tokenizer.eos, np.int64)
    longer[at] = tokens
    ends = np.cumsum(lengths + ENDS)
    longer[ends - lengths - ENDS] = tokenizer.bos
    return longer, at
