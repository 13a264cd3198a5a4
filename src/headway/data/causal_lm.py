"""Documents for a causal language model, in which the target of every token is the next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.data.document_windows import IntArray
from headway.data.token_store import TokenStore
from headway.tokens.tokenizer import Tokenizer

DEFAULT_EPOCH = -1
"""Epoch number for validation. Fields of documents are then neither dropped nor reordered."""


class DocumentTokens(Protocol):
    """Token stream of documents, which may differ between epochs."""

    def lengths(self, epoch: int) -> IntArray:
        """Return the number of tokens to predict in each document, including its end token."""
        ...

    def read(
        self, epoch: int, document: IntArray, start: IntArray, length: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return the input tokens of windows of documents, concatenated, and the next token of each
        input.

        Args:
            epoch: Number of the epoch.
            document: Index of the document of each window.
            start: Position of the first token of each window in its document.
            length: Number of tokens of each window.
        """
        ...


@dataclass(frozen=True)
class DocumentStream:
    """Token stream of plain documents. Each document is a start token, its text and an end
    token."""

    store: TokenStore
    bos: int
    eos: int

    def lengths(self, epoch: int) -> IntArray:
        return self.store.lengths.astype(np.int64) + 1

    def read(
        self, epoch: int, document: IntArray, start: IntArray, length: IntArray
    ) -> tuple[IntArray, IntArray]:
        ends = np.cumsum(length)
        place = np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - ends + length, length)
        document = np.repeat(document, length)
        first, size = self.store.offsets[document], self.store.lengths[document]
        tokens = self.store.tokens
        if not len(tokens):  # documents without a word
            tokens = np.zeros(1, np.uint16)
        last = len(tokens) - 1
        inputs = tokens[np.clip(first + place - 1, 0, last)].astype(np.int64)
        labels = tokens[np.minimum(first + place, last)].astype(np.int64)
        inputs[place == 0] = self.bos
        labels[place == size] = self.eos
        return inputs, labels


class FieldMarks(NamedTuple):
    """Special tokens before and after a field of a document."""

    open: int
    close: int

    @classmethod
    def of(cls, field_: str, tokenizer: Tokenizer) -> FieldMarks:
        before, behind = (tokenizer.special(mark) for mark in mark_names([field_]))
        assert before is not None, f"the vocabulary has no marks of {field_}"
        assert behind is not None
        return cls(before, behind)


def mark_names(fields: Sequence[str]) -> list[str]:
    """Return the names of the special tokens around each of these fields, such as `<title>` and
    `</title>`."""
    return [name for field_ in fields for name in (f"<{field_}>", f"</{field_}>")]


@dataclass
class FieldStream:
    """Token stream of documents with several fields, each between its own special tokens, as in
    GROVER (Zellers et al., 2019). In every epoch, the order of the fields is random and some are
    dropped, so that the model learns to predict any field from any others."""

    fields: Mapping[str, TokenStore]
    """Tokens of each field, by field name. A document without the field has an empty text there."""

    marks: Mapping[str, FieldMarks]
    bos: int
    eos: int
    drop: float
    """Probability that a field is dropped from a document in an epoch."""

    seed: int
    _choices: dict[int, tuple[NDArray[np.bool_], IntArray]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        fields: Mapping[str, TokenStore],
        tokenizer: Tokenizer,
        drop: float = 0.0,
        seed: int = 0,
    ) -> FieldStream:
        marks = {name: FieldMarks.of(name, tokenizer) for name in fields}
        return cls(fields, marks, tokenizer.bos, tokenizer.eos, drop, seed)

    def __post_init__(self) -> None:
        self.sizes_DF = np.stack([s.lengths for s in self.fields.values()], 1).astype(np.int64)
        self.names = list(self.fields)

    def choice(self, epoch: int) -> tuple[NDArray[np.bool_], IntArray]:
        """Return which fields of each document are read in an epoch, and their order."""
        if epoch not in self._choices:
            present_DF = self.sizes_DF > 0
            if epoch == DEFAULT_EPOCH:
                order_DF = np.broadcast_to(np.arange(len(self.names)), present_DF.shape)
                self._choices[epoch] = present_DF, order_DF
            else:
                draw = np.random.Generator(np.random.PCG64([self.seed, epoch, 2]))
                kept_DF = present_DF & (draw.random(present_DF.shape) >= self.drop)
                nothing_D = ~kept_DF.any(1)
                kept_DF[nothing_D] = present_DF[nothing_D]
                order_DF = np.argsort(draw.random(present_DF.shape), axis=1)
                self._choices[epoch] = kept_DF, order_DF
                for old in sorted(e for e in self._choices if e != DEFAULT_EPOCH)[:-2]:
                    if old != epoch:
                        del self._choices[old]
        return self._choices[epoch]

    def lengths(self, epoch: int) -> IntArray:
        kept_DF, _ = self.choice(epoch)
        total: IntArray = ((self.sizes_DF + 2) * kept_DF).sum(1) + 1
        return total

    def document(self, epoch: int, number: int) -> IntArray:
        """Return the tokens of a document with the chosen fields, from its start token to its end
        token."""
        kept_DF, order_DF = self.choice(epoch)
        parts: list[IntArray] = [np.array([self.bos])]
        for place in order_DF[number]:
            if kept_DF[number, place]:
                name = self.names[place]
                open_, close = self.marks[name]
                tokens = self.fields[name][number].astype(np.int64)
                parts += [np.array([open_]), tokens, np.array([close])]
        return np.concatenate([*parts, np.array([self.eos])])

    def read(
        self, epoch: int, document: IntArray, start: IntArray, length: IntArray
    ) -> tuple[IntArray, IntArray]:
        inputs, labels = [], []
        for number, first, size in zip(document, start, length, strict=True):
            tokens = self.document(epoch, int(number))
            inputs.append(tokens[first : first + size])
            labels.append(tokens[first + 1 : first + size + 1])
        return np.concatenate(inputs), np.concatenate(labels)
