"""Windows of text with gaps: batches to learn from, and a test of how well they are filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from headway.data.batches import Fixed, StepPlan, filled, fixed_shapes, moved
from headway.data.masking import Draws, Masker, Numbers, Texts
from headway.data.tokens import TokenStore
from headway.data.windows import Cut, Windows, whole_cut
from headway.errors import Stopped
from headway.metrics.language import perplexity
from headway.models.encoder import Encoder
from headway.models.parts.heads import Input
from headway.nn.layout import Layout, loss_weights
from headway.progress import OnProgress, unheard
from headway.tasks.read import EachRow, Read
from headway.tasks.specs import FillSettings
from headway.text.tokenizer import Tokenizer

ENDS = 2
"""The special tokens around every window."""

USUAL = -1
"""The epoch of validation."""

VALIDATION = FillSettings(mask=0.15, random=0.0, keep=0.0)
"""The same gaps whatever a run is trained with, so that runs can be compared."""

AT_ONCE = 8192
"""Tokens of a validation batch."""

ROWS = 512
"""Gaps whose words are scored at a time."""

SAMPLES = 5


@dataclass(frozen=True)
class FillBatch:
    tokens_N: Tensor
    layout: Layout
    rows_R: Tensor
    """Where the hidden tokens stand ..."""

    labels_R: Tensor
    """... and what they are."""

    weights_R: Tensor
    real_N: Tensor
    """Zero for the dummy rows of the fixed-size form, among the hidden tokens and among all."""


@dataclass(frozen=True, kw_only=True)
class FillFixed(Fixed):
    hidden_rows: int


@dataclass
class FramedWindows(Windows):
    """Windows of `context` tokens of text, each with its special tokens around it."""

    def plan(self, epoch: int) -> StepPlan:
        return self._plan(self.cut(epoch).length + ENDS)

    @property
    def widest(self) -> int:
        return self.context + ENDS

    def fixed(self, micro_tokens: int) -> Fixed:
        tokens = self.limit(micro_tokens)
        lengths = whole_cut(self.lengths(0), self.context).length + ENDS
        plan = self._plan(lengths)
        shapes = fixed_shapes(plan, tokens, tokens, self.widest)
        # The number of windows that a part is cut into differs a little from epoch to epoch.
        return replace(shapes, n_sequences=shapes.n_sequences + shapes.n_sequences // 4 + 8)


@dataclass(frozen=True)
class Reader:
    """Windows of a store as batches."""

    store: TokenStore
    tokenizer: Tokenizer
    masker: Masker
    seed: int

    def texts(self, cut: Cut, rows: Numbers) -> Texts:
        lengths, starts = cut.length[rows], self.store.offsets[cut.document[rows]] + cut.start[rows]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)
        return Texts(self.store.tokens[places].astype(np.int64), lengths, places)

    def hidden_in(self, epoch: int, cut: Cut, rows: Numbers) -> int:
        """How many tokens of these windows are hidden."""
        draws = Draws(self.seed, epoch)
        if self.masker.settings.whole_words:
            return int(self.masker.hidden(self.texts(cut, rows), draws).sum())
        first = self.store.offsets[cut.document[rows]] + cut.start[rows]
        return int(self.masker.counts(cut.length[rows], first, draws).sum())

    def batch(
        self, epoch: int, cut: Cut, rows: Numbers, most: int, fixed: FillFixed | None = None
    ) -> FillBatch:
        """`most`: hidden tokens beyond this number, of whole words, stay hidden but unasked."""
        texts, draws = self.texts(cut, rows), Draws(self.seed, epoch)
        hidden = self.masker.hidden(texts, draws)
        tokens, at = framed(
            self.masker.replaced(texts, hidden, draws), texts.lengths, self.tokenizer
        )
        where, labels = at[hidden][:most], texts.tokens[hidden][:most]
        layout = layout_of(texts.lengths + ENDS, fixed)
        n_rows = len(where) if fixed is None else fixed.hidden_rows
        weights_R = torch.zeros(n_rows)
        weights_R[: len(where)] = 1.0
        return FillBatch(
            filled(tokens, layout.n_rows),
            layout,
            filled(where, n_rows),
            filled(labels, n_rows),
            weights_R,
            loss_weights((texts.lengths + ENDS).tolist(), layout.n_rows),
        )


class Gaps:
    """A text with the same gaps every time, and how well they are filled."""

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, context: int) -> None:
        self.tokenizer, self.store = tokenizer, store
        self.reader = Reader(store, tokenizer, Masker(tokenizer, VALIDATION), 0)
        self.cut = whole_cut(store.lengths.astype(np.int64), context)

    def n_windows(self, tokens: int) -> int:
        """As many of the first as have so many tokens, or all there are."""
        return min(len(self.cut), int(np.searchsorted(np.cumsum(self.cut.length), tokens)) + 1)

    def batches(
        self,
        device: torch.device,
        most: int | None = None,
        on_progress: OnProgress = unheard,
    ) -> Iterator[FillBatch]:
        """The first windows."""
        lengths = self.cut.length + ENDS
        order = np.argsort(lengths[:most], kind="stable")
        at_once = max(AT_ONCE, int(lengths.max(initial=0)))
        plan = StepPlan.of_lengths(lengths, at_once, 0)
        done = 0
        for rows in plan.cut(order, at_once, at_once):
            yield moved(self.reader.batch(USUAL, self.cut, rows, at_once), device)
            done += len(rows)
            on_progress(done, len(order))

    def scores(
        self,
        model: Encoder,
        device: torch.device,
        stopped: Callable[[], bool],
        most: int | None,
        on_progress: OnProgress = unheard,
    ) -> dict[str, float]:
        """Loss and perplexity of the hidden words, and the share (%) guessed right."""
        nll, right, count = 0.0, 0, 0
        for batch in self.batches(device, most, on_progress):
            logs_R, best_R = _guesses(model, batch)
            nll -= float(logs_R.sum())
            right += int((best_R == batch.labels_R).sum())
            count += len(batch.labels_R)
            if stopped():
                raise Stopped
        loss = nll / max(1, count)
        return {
            "loss": loss,
            "ppl": perplexity(loss),
            "accuracy": 100.0 * right / max(1, count),
        }

    def baseline(self) -> dict[str, float]:
        """What one gets who knows how frequent each token of this text is, and nothing else."""
        size = self.tokenizer.vocab_size
        counts = np.bincount(self.store.tokens.astype(np.int64), minlength=size).astype(np.float64)
        logs = np.log(np.maximum(counts, 1.0) / max(1.0, counts.sum()))
        labels = np.concatenate(
            [batch.labels_R.numpy() for batch in self.batches(torch.device("cpu"))]
            or [np.zeros(0, np.int64)]
        )
        loss = float(-logs[labels].mean()) if len(labels) else 0.0
        right = float((labels == counts.argmax()).mean()) if len(labels) else 0.0
        return {"loss": loss, "ppl": perplexity(loss), "accuracy": 100.0 * right}

    def samples(self, model: Encoder, device: torch.device) -> list[dict[str, str]]:
        """The first windows: with their gaps, what belongs there, and what the model says."""
        shown = []
        for row in range(min(SAMPLES, len(self.cut))):
            batch = self.reader.batch(USUAL, self.cut, np.array([row]), AT_ONCE)
            _, best_R = _guesses(model, moved(batch, device))
            tokens = batch.tokens_N[1:-1].tolist()
            decode = self.tokenizer.decode
            shown.append(
                {
                    "source": with_gaps(tokens, self.tokenizer),
                    "target": ", ".join(decode([t]).strip() for t in batch.labels_R.tolist()),
                    "output": ", ".join(decode([t]).strip() for t in best_R.tolist()),
                }
            )
        return shown


def read_gaps(model: nn.Module, batch: FillBatch) -> Read:
    """Of the gaps alone."""
    return EachRow("words").read(model, Input(batch.tokens_N, batch.layout), rows_R=batch.rows_R)


def _guesses(model: Encoder, batch: FillBatch) -> tuple[Tensor, Tensor]:
    """The log-probability of each hidden token, and the likeliest one, in fp32 whatever the model
    computes in."""
    read = read_gaps(model, batch)
    logs, best = [read.x_RD.new_zeros(0, dtype=torch.float32)], [batch.labels_R[:0]]
    for rows_RD, labels_R in zip(read.x_RD.split(ROWS), batch.labels_R.split(ROWS), strict=True):
        scores_RV = read.scores(rows_RD).float()
        at_label_R = scores_RV.gather(1, labels_R[:, None])[:, 0]
        logs.append(at_label_R - scores_RV.logsumexp(-1))
        best.append(scores_RV.argmax(-1))
    return torch.cat(logs), torch.cat(best)


def framed(tokens: Numbers, lengths: Numbers, tokenizer: Tokenizer) -> tuple[Numbers, Numbers]:
    """Each text between the start and the end token, and where each of its tokens went."""
    number = np.repeat(np.arange(len(lengths)), lengths)
    at = np.arange(len(tokens)) + ENDS * number + 1
    longer = np.full(len(tokens) + ENDS * len(lengths), tokenizer.eos, np.int64)
    longer[at] = tokens
    ends = np.cumsum(lengths + ENDS)
    longer[ends - lengths - ENDS] = tokenizer.bos
    return longer, at


def layout_of(lengths: Numbers, fixed: Fixed | None) -> Layout:
    if fixed is None:
        return Layout.of(lengths.tolist())
    return Layout.fixed(
        lengths.tolist(),
        n_rows=fixed.target_rows,
        n_sequences=fixed.n_sequences,
        longest=fixed.longest,
    )


def with_gaps(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Text with `[MASK]` where the mask is."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == tokenizer.mask:
            parts.append([])
        else:
            parts[-1].append(token)
    return " [MASK] ".join(tokenizer.decode(part) for part in parts).strip()
