"""Pairs of token sequences as the items of a task that writes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from headway.data.token_store import TokenStore
from headway.tasks.preprocess.text import SourceTextDataset
from headway.tasks.seq2seq_dataset import Seq2SeqDataset


def words(eos: int = 2, *, bos: int = 1, begin: int | None = None) -> Any:
    """What items ask of a tokenizer."""
    return SimpleNamespace(bos=bos, eos=eos, source_begin=begin, target_begin=begin)


USUAL = words()


def store(sequences: Sequence[Sequence[int]]) -> TokenStore:
    lengths = np.array([len(s) for s in sequences], dtype=np.int32)
    return TokenStore(np.array([t for s in sequences for t in s], dtype=np.uint16), lengths)


def pair_items(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    of_source: Any = USUAL,
    of_target: Any = USUAL,
) -> Seq2SeqDataset:
    return Seq2SeqDataset.of(SourceTextDataset(store(source), of_source), store(target), of_target)
