"""Words in, scores of tags out: what training, prediction and evaluation of taggers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import Fixed, Rows, StepPlan, filled, moved
from headway.data.readings import WordReader
from headway.errors import Stopped
from headway.metrics import spans as metrics
from headway.models.parts.heads import Input
from headway.nn.crf import allowed_transitions, is_scheme, log_likelihood, viterbi
from headway.nn.layout import Layout, loss_weights
from headway.progress import OnProgress, unheard
from headway.tasks.read import EachRow, Read, Scorer, asked

READ_AT_ONCE = 8192
"""Tokens of a batch that is only read."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class TagBatch:
    tokens_N: Tensor
    layout: Layout
    rows_W: Tensor
    """The row of the first piece of each word."""

    words: Layout
    """The words of each reading, one after another."""

    labels_W: Tensor
    weights_W: Tensor
    weights_B: Tensor
    """Of words and of readings: zero for the dummies of the fixed-size form."""


def tag_batch(
    reader: WordReader,
    rows: Rows,
    *,
    device: torch.device,
    fixed: Fixed | None = None,
    labels: Numbers | None = None,
) -> TagBatch:
    """Readings as tensors; `labels` are those of all words of all sentences."""
    flat, first_pieces, counts = reader.read(rows)
    layouts = []
    for lengths in (flat.lengths.tolist(), counts.tolist()):
        if fixed is None:
            layouts.append(Layout.of(lengths))
        else:
            layouts.append(
                Layout.fixed(
                    lengths,
                    n_rows=fixed.target_rows,
                    n_sequences=fixed.n_sequences,
                    longest=fixed.longest,
                )
            )
    layout, words = layouts
    numbers, _ = reader.words.gather(rows)
    found = np.zeros(0, np.int64) if labels is None else labels[numbers]
    batch = TagBatch(
        filled(flat.tokens, layout.n_rows),
        layout,
        filled(first_pieces, words.n_rows),
        words,
        filled(found, words.n_rows),
        loss_weights(counts.tolist(), words.n_rows),
        (torch.arange(words.n_sequences) < len(rows)).float(),
    )
    return moved(batch, device)


def read_tags(model: nn.Module, batch: TagBatch) -> Read:
    """A row for each word."""
    return EachRow("tags").read(model, Input(batch.tokens_N, batch.layout), rows_R=batch.rows_W)


def learned_transitions(model: nn.Module) -> Tensor | None:
    return transitions(asked(model).head_named("tags"))


def transitions(head: Scorer) -> Tensor | None:
    """What a head has learned about tags that follow each other, if it does learn that."""
    found = getattr(head, "transitions", None)
    return found if isinstance(found, Tensor) else None


@torch.no_grad()
def word_scores(
    model: nn.Module,
    reader: WordReader,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
    most: int | None = None,
    on_progress: OnProgress = unheard,
) -> Tensor:
    """Of all words of the first `most` sentences in their order, each from the reading that
    answers for it."""
    tokens = max(READ_AT_ONCE, reader.max_len)
    plan = StepPlan.of_lengths(reader.lengths, tokens, 0)
    n_words = int(reader.pieces.offsets[1:][:most][-1])
    order = np.argsort(reader.lengths, kind="stable")
    if most is not None:
        order = order[reader.readings[0][order] < most]
    found: Tensor | None = None
    done = 0
    for rows in plan.cut(order, tokens, tokens):
        scores_WC = read_tags(model, tag_batch(reader, rows, device=device)).said_RC.cpu()
        if found is None:
            found = torch.zeros(n_words, scores_WC.shape[1])
        found[torch.from_numpy(reader.words.gather(rows)[0])] = scores_WC
        done += len(rows)
        on_progress(done, len(order))
        if stopped():
            raise Stopped
    assert found is not None
    return found


@torch.no_grad()
def best_tags(
    scores_WC: Tensor,
    lengths: Sequence[int],
    labels: tuple[str, ...],
    learned_PC: Tensor | None = None,
) -> list[list[int]]:
    """The best possible tags of each sentence: none that its scheme does not allow."""
    rules_PC = allowed_transitions(labels)
    if learned_PC is not None:
        rules_PC = rules_PC + learned_PC.detach().float().cpu()
    found: list[list[int]] = [[]] * len(lengths)
    ends = np.cumsum(lengths)
    order = np.argsort(lengths, kind="stable")
    # Sentences of like length together: a grid is as wide as its longest.
    for first in range(0, len(order), 256):
        some = order[first : first + 256]
        rows = [scores_WC[ends[i] - lengths[i] : ends[i]] for i in some]
        layout = Layout.of([lengths[i] for i in some])
        if layout.longest:
            best = layout.split(viterbi(torch.cat(rows), rules_PC, layout))
            for i, tags in zip(some, best, strict=True):
                found[i] = tags.tolist()
    return found


@torch.no_grad()
def total_nll(
    scores_WC: Tensor, labels_W: Tensor, lengths: Sequence[int], learned_PC: Tensor | None
) -> float:
    """Of all tags: a word at a time, or a sentence at a time where their order is scored too."""
    if learned_PC is None:
        return float(F.cross_entropy(scores_WC, labels_W, reduction="sum"))
    total, start = 0.0, 0
    for first in range(0, len(lengths), 256):
        layout = Layout.of(list(lengths[first : first + 256]))
        some = slice(start, start + layout.n_rows)
        start = some.stop
        if layout.n_rows:
            logs_B = log_likelihood(scores_WC[some], labels_W[some], learned_PC.cpu(), layout)
            total -= float(logs_B.sum())
    return total


def as_bio(tags: Sequence[str]) -> list[str]:
    """BIOES as BIO; other tags as they are."""
    if not is_scheme(tuple(tags)):
        return list(tags)
    return [{"E": "I", "S": "B"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def tag_values(
    truths: Sequence[list[str]], guesses: Sequence[list[str]], spans: bool
) -> dict[str, float]:
    """The scores that training goes by, in percent; those of spans where tags mark them."""
    accuracy = 100.0 * metrics.tag_accuracy(truths, guesses)
    if not spans:
        return {"accuracy": accuracy}
    whole, _ = metrics.span_scores(truths, guesses)
    return {
        "f1": 100.0 * whole.f1,
        "precision": 100.0 * whole.precision,
        "recall": 100.0 * whole.recall,
        "accuracy": accuracy,
    }


def tag_figures(
    truths: Sequence[list[str]], guesses: Sequence[list[str]], spans: bool
) -> dict[str, Any]:
    """Scores of each type of span, or of each plain tag."""
    if not spans:
        # Each word is a span of its own: the same scores, of single tags.
        truths, guesses = (
            [[f"S-{tag}" for tag in tags] for tags in side] for side in (truths, guesses)
        )
    _, types = metrics.span_scores(truths, guesses)
    return {"classes": [{"label": name, **vars(score)} for name, score in types.items()]}
