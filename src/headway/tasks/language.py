"""What a language model reads and how likely it finds it: batches of windows, and their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.config.model import DecoderSettings, family_of
from headway.config.run import Resolved, RunSettings
from headway.data.batches import Fixed, filled, moved
from headway.data.store import Columns
from headway.data.streams import USUAL, DocumentStream, FieldStream, Marks, Stream, mark_names
from headway.data.tokens import TokenStore
from headway.data.windows import Cut, whole_cut
from headway.errors import FolderError, Stopped
from headway.metrics.language import token_counts
from headway.models.decoder import Decoder
from headway.models.parts.heads import Input
from headway.nn.layout import Layout, loss_weights
from headway.progress import OnProgress, unheard
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.opened import Opened
from headway.tasks.read import EachRow, Read
from headway.tasks.task import Frequencies
from headway.text.tokenizer import Tokenizer

EVALUATED_AT_ONCE = 8192
"""Tokens of a validation batch."""

COUNTED = 1 << 22
"""Tokens from which their frequencies are known well enough for a yardstick."""

BLOCK = 1024


@dataclass(frozen=True)
class TokenBatch:
    tokens_N: Tensor
    layout: Layout
    labels_N: Tensor
    """The token that follows each."""

    weights_N: Tensor
    """Zero for the dummy rows of the fixed-size form."""


def stream(texts: Columns, tokenizer: Tokenizer, settings: RunSettings) -> Stream:
    """Plain documents, or documents with fields where the settings name some."""
    if not settings.data.fields:
        return DocumentStream(texts["text"], tokenizer.bos, tokenizer.eos)
    return FieldStream(
        {name: texts.tokens(name) for name in settings.data.fields},
        field_marks(tokenizer, settings.data.fields),
        tokenizer.bos,
        tokenizer.eos,
        settings.complete.drop_fields,
        settings.train.seed,
    )


def field_marks(tokenizer: Tokenizer, fields: Sequence[str]) -> dict[str, Marks]:
    found = {}
    for name in fields:
        ids = [tokenizer.special(mark) for mark in mark_names([name])]
        assert None not in ids, f"the vocabulary has no marks of {name}"
        found[name] = Marks(*ids)  # type: ignore[arg-type]
    return found


def likelihood(
    model: Decoder,
    source: Stream,
    context: int,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = unheard,
    most: int | None = None,
) -> tuple[float, int, float]:
    """Minus the log-likelihood of all documents or of the first `most` windows, the number of
    tokens it is about, and their share of all."""
    cut = whole_cut(source.lengths(USUAL), context)
    order = np.argsort(cut.length[:most], kind="stable")
    ends = np.cumsum(cut.length[order])
    total = 0.0
    first = 0
    while first < len(order):
        done = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, done + max(EVALUATED_AT_ONCE, context), side="right"))
        batch = token_batch(source, USUAL, cut, order[first:last], device, None)
        total += float(word_loss(read_next(model, batch), batch.labels_N, PLAIN).nll)
        first = last
        on_progress(first, len(order))
        if stopped():
            raise Stopped
    count = int(cut.length[:most].sum())
    return total, count, count / max(1, int(cut.length.sum()))


def read_next(model: nn.Module, batch: TokenBatch) -> Read:
    """Every row says the token that follows."""
    return EachRow("words").read(model, Input(batch.tokens_N, batch.layout))


def n_windows(source: Stream, context: int) -> int:
    return len(whole_cut(source.lengths(USUAL), context))


def text_frequencies(train: TokenStore, valid: TokenStore, tokenizer: Tokenizer) -> Frequencies:
    """Of the tokens of texts, each with its end."""
    counts = []
    for texts in (train, valid):
        counts_V = token_counts(texts.tokens, tokenizer.vocab_size, COUNTED)
        counts_V[tokenizer.eos] += len(texts)
        counts.append(counts_V)
    return Frequencies(*counts)


def stream_frequencies(train: Stream, valid: Stream, size: int) -> Frequencies:
    """Of what is to be said about documents, marks of fields and ends included."""
    return Frequencies(*(_label_counts(one, size) for one in (train, valid)))


def _label_counts(source: Stream, size: int) -> NDArray[np.int64]:
    cut = whole_cut(source.lengths(USUAL), BLOCK)
    counts_V, most = np.zeros(size, np.int64), max(1, COUNTED // BLOCK)
    for first in range(0, min(len(cut), most), 256):
        rows = slice(first, first + 256)
        _, labels = source.read(USUAL, cut.document[rows], cut.start[rows], cut.length[rows])
        counts_V += np.bincount(np.asarray(labels, np.int64), minlength=size)
    return counts_V


def language_scores(total: float, count: int, n_bytes: float) -> dict[str, float]:
    """From nats in all: a token, as perplexity, and in bits a byte of the text."""
    loss = total / max(1, count)
    return {
        "loss": loss,
        "ppl": math.exp(min(loss, 50.0)),
        "bits_per_byte": total / math.log(2) / max(1, n_bytes),
    }


def token_batch(
    source: Stream,
    epoch: int,
    cut: Cut,
    rows: Any,
    device: torch.device,
    fixed: Fixed | None,
) -> TokenBatch:
    length = cut.length[rows]
    inputs, labels = source.read(epoch, cut.document[rows], cut.start[rows], length)
    lengths = length.tolist()
    if fixed is None:
        layout = Layout.of(lengths)
    else:
        layout = Layout.fixed(
            lengths,
            n_rows=fixed.target_rows,
            n_sequences=fixed.n_sequences,
            longest=fixed.longest,
        )
    batch = TokenBatch(
        filled(inputs, layout.n_rows),
        layout,
        filled(labels, layout.n_rows),
        loss_weights(lengths, layout.n_rows),
    )
    return moved(batch, device)


def check_language(opened: Opened) -> None:
    """Refuse runs that do not continue text."""
    for folder, run in zip(opened.folders, opened.runs, strict=True):
        if not isinstance(run.model, DecoderSettings) or "words" not in run.model.heads:
            kind = run.task if run.model is None else f"{family_of(run.model)} model"
            raise FolderError(
                f"{folder} holds no model that continues text; what it holds: {kind}."
            )


def context_of(run: Resolved) -> int:
    """The tokens that a language model was trained to read."""
    return min(run.complete.context or run.model.max_len, run.model.max_len)
