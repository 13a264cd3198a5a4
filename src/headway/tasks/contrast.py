"""Texts side by side that belong together, and what it costs to take them for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headway.data.batches import Fixed, FlatTokens, Rows, filled
from headway.data.readings import TextReader, flat_lists, flat_tokens
from headway.data.store import Columns, Ragged
from headway.data.tokens import TokenStore
from headway.nn.layout import Layout
from headway.tasks.vectors import reader_of
from headway.text.tokenizer import Tokenizer

BLOCK = 256
"""Validation pairs that are told apart at a time, for the loss."""


@dataclass(frozen=True)
class PairedBatch:
    """Sequences 2i and 2i + 1 are pair i."""

    tokens_N: Tensor
    layout: Layout
    apart_BB: Tensor
    """True where the second text of a pair (column) must be told from that of another (row)."""

    weights_B: Tensor
    """Zero for the dummy pairs of the fixed-size form."""


def contrastive(like_BB: Tensor, apart_BB: Tensor, weights_B: Tensor) -> Tensor:
    """Each text shall choose its partner among the partners of all, from either side: the mean of
    the two cross-entropies, summed over the pairs."""
    own_BB = torch.eye(len(like_BB), dtype=torch.bool, device=like_BB.device)
    like_BB = like_BB.masked_fill(~(apart_BB | own_BB), -torch.inf)
    target_B = torch.arange(len(like_BB), device=like_BB.device)
    loss_B = sum(
        F.cross_entropy(side_BB, target_B, reduction="none") for side_BB in (like_BB, like_BB.T)
    )
    return (loss_B * weights_B).sum() / 2


def paired_batch(
    texts: Sequence[NDArray[np.int64]], keys: Sequence[NDArray[np.int64]], fixed: Fixed | None
) -> PairedBatch:
    """Of texts with their special tokens, two after two. Pairs whose texts have the same key, on
    either side, are not told apart."""
    lengths = [len(text) for text in texts]
    if fixed is None:
        layout = Layout.of(lengths)
    else:
        layout = Layout.fixed(
            lengths,
            n_rows=fixed.target_rows,
            n_sequences=fixed.n_sequences,
            longest=fixed.longest,
        )
    n_pairs, n = layout.n_sequences // 2, len(texts) // 2
    apart_BB = torch.zeros(n_pairs, n_pairs, dtype=torch.bool)
    apart_BB[:n, :n] = True
    for side in keys:
        key_B = torch.from_numpy(side)
        apart_BB[:n, :n] &= key_B[:, None] != key_B
    weights_B = torch.zeros(n_pairs)
    weights_B[:n] = 1.0
    return PairedBatch(filled(np.concatenate(texts), layout.n_rows), layout, apart_BB, weights_B)


def valid_loss(a_ND: Any, b_ND: Any, temperature: float) -> float:
    """The loss in blocks of one size, so that it can be compared; the mean over the pairs."""
    total = 0.0
    for first in range(0, len(a_ND), BLOCK):
        a, b = (torch.from_numpy(x[first : first + BLOCK]) for x in (a_ND, b_ND))
        apart_BB = torch.ones(len(a), len(a), dtype=torch.bool)
        total += float(contrastive(a @ b.T / temperature, apart_BB, torch.ones(len(a))))
    return total / max(1, len(a_ND))


SIDES: tuple[Ragged, ...] = ("text", "other")


def sides(texts: Columns, tokenizer: Tokenizer, max_len: int) -> list[TextReader]:
    """One for the texts, and one for their partners where there are pairs."""
    stores = [texts[name] for name in SIDES if name in texts]
    return [reader_of(_flat(store), tokenizer, max_len) for store in stores]


def partners(texts: Columns, tokenizer: Tokenizer, max_len: int) -> tuple[TextReader, TextReader]:
    """Texts and those they should find: their partners, or, where there are none, every other word
    of a text and the words between those."""
    found = sides(texts, tokenizer, max_len)
    if len(found) == 2:
        return found[0], found[1]
    halves: tuple[list[list[int]], list[list[int]]] = ([], [])
    for number in range(texts.n):
        tokens = np.asarray(texts["text"][number], np.int64)
        word = np.cumsum(tokenizer.word_starts(tokens)) - 1 if len(tokens) else tokens
        for half, side in enumerate(halves):
            side.append(tokens[word % 2 == half].tolist())
    a, b = (reader_of(flat_lists(side), tokenizer, max_len) for side in halves)
    return a, b


def flat_of(texts: FlatTokens, rows: Rows) -> FlatTokens:
    """These texts alone."""
    return flat_tokens(*texts.gather(rows))


def _flat(store: TokenStore) -> FlatTokens:
    return FlatTokens(store.tokens, store.offsets)
