"""Texts in, probabilities of classes out: what training, prediction and evaluation share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import Fixed, FlatTokens, Rows, StepPlan, filled, moved
from headway.data.readings import TextReader
from headway.data.streams import USUAL, FieldStream, Marks, mark_names
from headway.data.tokens import TokenStore
from headway.errors import Stopped
from headway.metrics import classification as metrics
from headway.models.parts.heads import Input
from headway.nn.layout import Layout
from headway.progress import OnProgress, unheard
from headway.tasks.read import OneClass, Read
from headway.tasks.scores import Answered
from headway.tasks.task import Frequencies
from headway.text.tokenizer import Tokenizer

READ_AT_ONCE = 8192
"""Tokens of a batch that is only read."""

Numbers = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ClassBatch:
    tokens_N: Tensor
    layout: Layout
    segments_N: Tensor | None
    """First or second text of a pair; None where the model does not tell them apart."""

    labels_B: Tensor
    weights_B: Tensor
    """How much each text counts; zero for the dummies of the fixed-size form."""


def class_batch(
    reader: TextReader,
    rows: Rows,
    *,
    device: torch.device,
    fixed: Fixed | None = None,
    segments: bool = False,
    labels: Labels | None = None,
    weights: NDArray[np.float32] | None = None,
) -> ClassBatch:
    """Readings as tensors; `labels` and `weights` are those of the rows."""
    read = reader.read(rows)
    lengths = read.lengths.tolist()
    if fixed is None:
        layout = Layout.of(lengths)
    else:
        layout = Layout.fixed(
            lengths,
            n_rows=fixed.target_rows,
            n_sequences=fixed.n_sequences,
            longest=fixed.longest,
        )
    weights_B = torch.zeros(layout.n_sequences)
    weights_B[: len(rows)] = 1.0 if weights is None else torch.from_numpy(weights)
    batch = ClassBatch(
        filled(read.tokens, layout.n_rows),
        layout,
        filled(read.segments, layout.n_rows) if segments else None,
        filled(np.zeros(0, np.int64) if labels is None else labels, layout.n_sequences),
        weights_B,
    )
    return moved(batch, device)


def read_classes(model: nn.Module, batch: ClassBatch) -> Read:
    return OneClass().read(model, Input(batch.tokens_N, batch.layout, batch.segments_N))


def has_segments(model: nn.Module) -> bool:
    """Whether it tells the second text of a pair from the first."""
    segments = getattr(model.front, "segments", None)
    return segments is not None and segments.num_embeddings > 1


@torch.no_grad()
def log_probs(
    model: nn.Module,
    reader: TextReader,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
    most: int | None = None,
    on_progress: OnProgress = unheard,
) -> Numbers:
    """Of each class for each of the first `most` examples: the mean of the probabilities of its
    windows."""
    tokens = max(READ_AT_ONCE, reader.max_len)
    plan = StepPlan.of_lengths(reader.lengths, tokens, 0)
    n_examples = len(reader.needed[:most])
    order = np.argsort(reader.lengths, kind="stable")
    order = order[reader.example[order] < n_examples]
    sums_NC: Numbers | None = None
    done = 0
    for rows in plan.cut(order, tokens, tokens):
        pairs = reader.other is not None and has_segments(model)
        batch = class_batch(reader, rows, device=device, segments=pairs)
        p_BC = read_classes(model, batch).answers().log_softmax(-1).double().exp().cpu().numpy()
        if sums_NC is None:
            sums_NC = np.zeros((n_examples, p_BC.shape[1]))
        np.add.at(sums_NC, reader.example[rows], p_BC)
        done += len(rows)
        on_progress(done, len(order))
        if stopped():
            raise Stopped
    assert sums_NC is not None
    counts_N = np.bincount(reader.example)[:n_examples]
    return np.log(np.maximum(sums_NC / counts_N[:, None], 1e-300))


def text_reader(
    text: TokenStore, other: TokenStore | None, tokenizer: Tokenizer, max_len: int
) -> TextReader:
    return TextReader(
        text=flat(text),
        other=None if other is None else flat(other),
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        max_len=max_len,
        pair_ends=tokenizer.pair_ends,
        ends=tokenizer.text_ends,
    )


def flat(store: TokenStore) -> FlatTokens:
    return FlatTokens(store.tokens, store.offsets)


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenStore:
    found = tokenizer.encode_flat(list(texts))
    return TokenStore(found.ids.astype(np.uint32), found.lengths)


def joined_fields(tokenizer: Tokenizer, stores: Mapping[str, TokenStore]) -> TokenStore:
    """Documents with fields as one text each, every field between its marks."""
    marks = {}
    for name in stores:
        opening, closing = (tokenizer.special(mark) for mark in mark_names([name]))
        assert opening is not None, f"the vocabulary has no mark of {name}"
        assert closing is not None
        marks[name] = Marks(opening, closing)
    stream = FieldStream(stores, marks, tokenizer.bos, tokenizer.eos, 0.0, 0)
    n = len(next(iter(stores.values())))
    parts = [stream.document(USUAL, number)[1:-1] for number in range(n)]
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    return TokenStore(np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.uint32), lengths)


def class_values(logs_NC: Numbers, labels_N: Labels) -> dict[str, float]:
    """The scores that training goes by; shares in percent."""
    counts = metrics.confusion(labels_N, logs_NC.argmax(1), logs_NC.shape[1])
    return {
        "loss": metrics.nll(logs_NC, labels_N),
        "accuracy": 100.0 * metrics.accuracy(counts),
        "f1": 100.0 * metrics.macro_f1(counts),
    }


def named_answers(logs_NC: Numbers, labels_N: Labels, names: Sequence[str]) -> Answered:
    """The likeliest classes and the right ones, by name."""
    best_N = logs_NC.argmax(1)
    return [names[label] for label in best_N], [names[label] for label in labels_N]


def class_figures(logs_NC: Numbers, labels_N: Labels, labels: Sequence[str]) -> dict[str, Any]:
    """What the report draws: the confusion matrix, scores of classes, the reliability diagram."""
    counts = metrics.confusion(labels_N, logs_NC.argmax(1), len(labels))
    found = metrics.calibration(logs_NC, labels_N)
    temperature = metrics.fit_temperature(logs_NC, labels_N)
    after = metrics.calibration(metrics.tempered(logs_NC, temperature), labels_N)
    return {
        "confusion": {"labels": list(labels), "counts": counts.tolist()},
        "classes": [
            {"label": label, **vars(score)}
            for label, score in zip(labels, metrics.class_scores(counts), strict=True)
        ],
        "calibration": {
            "bins": [vars(one) for one in found.bins if one.count],
            "ece": found.ece,
            "temperature": temperature,
            "ece_after": after.ece,
        },
    }


def frequency_log_probs(counts_C: NDArray[np.integer], n: int) -> Numbers:
    """For each of `n` examples: how frequent each class is, whatever the example."""
    counts = np.asarray(counts_C, np.float64) + 1.0
    return np.tile(np.log(counts / counts.sum()), (n, 1))


def class_frequencies(
    train: Labels, valid: Labels, n_labels: int, weights_C: NDArray[np.floating]
) -> Frequencies:
    """Counted as the loss counts them: by the weight of their class."""
    counts = (np.bincount(one, minlength=n_labels) * weights_C for one in (train, valid))
    return Frequencies(*(np.rint(one).astype(np.int64) for one in counts))
