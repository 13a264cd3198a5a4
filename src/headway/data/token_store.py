"""Arrays of tokens on disk, memory-mapped so that a corpus of any size needs little memory.

The tokens of all sequences are concatenated in one file. The lengths of the sequences are in a
second file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

AnyIntArray = NDArray[np.integer[Any]]


class TokenStore:
    """Store of token sequences. `store[i]` is the array of token ids of sequence i, without special
    tokens."""

    def __init__(self, tokens: AnyIntArray, lengths: NDArray[np.signedinteger[Any]]) -> None:
        self.tokens = tokens
        self.lengths = lengths
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    @classmethod
    def open(cls, name: Path, dtype: str, lengths_dtype: str = "<i4") -> TokenStore:
        lengths = np.fromfile(lengths_file(name), lengths_dtype)
        path = tokens_file(name)
        if not path.stat().st_size:  # an empty file cannot be mapped
            return cls(np.zeros(0, dtype), lengths)
        return cls(np.memmap(path, dtype, mode="r"), lengths)

    def in_memory(self) -> TokenStore:
        return TokenStore(np.array(self.tokens), self.lengths)

    @classmethod
    def of(cls, sequences: Iterable[ArrayLike]) -> TokenStore:
        """Return a store of sequences in memory."""
        each = [np.asarray(sequence, np.uint32) for sequence in sequences]
        lengths = np.array([len(one) for one in each], np.int64)
        return cls(np.concatenate([np.zeros(0, np.uint32), *each]), lengths)

    @property
    def n(self) -> int:
        return len(self.lengths)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> AnyIntArray:
        if not -self.n <= i < self.n:
            raise IndexError(f"sequence {i} is out of range: the store has {self.n} sequences")
        i %= self.n
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def gather(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the concatenated tokens of the sequences `rows`, and the lengths of these
        sequences."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        ends = np.cumsum(lengths)
        index = np.arange(ends[-1] if len(ends) else 0)
        index += np.repeat(starts - (ends - lengths), lengths)
        return self.tokens[index].astype(np.int64), lengths


def token_dtype(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def side(name: Path, which: str) -> Path:
    return name.with_name(f"{name.name}.{which}")


def tokens_file(name: Path) -> Path:
    return name.with_name(f"{name.name}.tokens")


def lengths_file(name: Path) -> Path:
    return name.with_name(f"{name.name}.lengths")
