"""Connectionist temporal classification (CTC): texts from rows (frames), most of them blank.

Each row emits one symbol or the blank. Consecutive rows with the same symbol count as one symbol
(Graves et al. 2006). Sequences are contiguous in a flat batch, which a `Layout` describes. All sums
are in fp32 or wider, because log-sum-exp loses too much precision in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.layout import Layout

NEVER = -1e5
"""Log-probability of impossible events: finite, so that differences between two of them are not
NaN."""


class CtcLoss(NamedTuple):
    nll_B: Tensor
    """−log p of each text; 0 if the text is impossible."""

    possible_B: Tensor
    """Whether there are enough rows: one per symbol, and a blank between two equal symbols."""


def ctc_loss(
    scores_MV: Tensor, rows: Layout, labels_N: Tensor, texts: Layout, blank: int
) -> CtcLoss:
    """Return −log p of each text, summed over all its alignments with the rows.

    `labels_N` holds the symbols of all texts, and `texts` is their layout. A text without an
    alignment has loss 0 and no gradient. The lengths are needed on the host, so a CUDA graph cannot
    capture this loss.
    """
    log_MV = _log_softmax(scores_MV)
    possible_B = (rows.lengths_B >= _needed(labels_N, texts)) & (rows.lengths_B > 0)
    nll_B = F.ctc_loss(
        _grid(log_MV, rows, NEVER).transpose(0, 1),
        _grid(labels_N.long()[:, None], texts, 0)[:, :, 0],
        torch.tensor(rows.known_lengths()).clamp(min=1),
        torch.tensor(texts.known_lengths()),
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    return CtcLoss(torch.where(possible_B, nll_B, 0.0), possible_B)


def _log_softmax(scores_MV: Tensor) -> Tensor:
    wide = scores_MV if scores_MV.dtype == torch.float64 else scores_MV.float()
    return F.log_softmax(wide, -1)


def _grid(x_MV: Tensor, rows: Layout, filling: float) -> Tensor:
    """Return the rows of each sequence, padded with `filling`: (B T V), where T is at least 1."""
    place_T = torch.arange(max(1, rows.longest), device=x_MV.device)
    real_BT = place_T < rows.lengths_B[:, None]
    if not len(x_MV):
        return x_MV.new_full((*real_BT.shape, x_MV.shape[1]), filling)
    row_BT = (rows.starts_B[:, None] + place_T).clamp(max=len(x_MV) - 1)
    grid_BTV = x_MV.index_select(0, row_BT.flatten()).view(*row_BT.shape, -1)
    return grid_BTV.masked_fill(~real_BT[:, :, None], filling)


def _needed(labels_N: Tensor, texts: Layout) -> Tensor:
    """Return the smallest number of rows that can emit each text."""
    again_N = (labels_N == labels_N.roll(1)) & (texts.positions_N > 0)
    total = F.pad(again_N.long().cumsum(0), (1, 0))
    ends_B = texts.starts_B + texts.lengths_B
    return texts.lengths_B + total[ends_B] - total[texts.starts_B]


@dataclass(frozen=True)
class PrefixState:
    """CTC state of H hypotheses. Axis T has one position before the first row, then the rows."""

    symbol_HT: Tensor
    """Log-probability that the rows up to here emit the hypothesis and end with its last symbol."""

    blank_HT: Tensor
    """Log-probability that the rows up to here emit the hypothesis and end with a blank."""

    last_H: Tensor
    """Last symbol of each hypothesis; −1 for an empty hypothesis."""

    number_H: Tensor
    """Index of the row sequence (recording) that each hypothesis belongs to."""

    score_H: Tensor
    """Log-probability that the text starts with the hypothesis."""


class PrefixScorer:
    """CTC prefix scores for an autoregressive decoder.

    They are the log-probabilities that a text starts with a hypothesis (Watanabe et al. 2017). All
    rows are computed at once, as a cumulative log-sum-exp. In fp64, because it takes differences of
    sums over all rows.
    """

    def __init__(self, scores_MV: Tensor, rows: Layout, blank: int, end: int) -> None:
        self.log_BTV = _grid(_log_softmax(scores_MV), rows, NEVER)
        self.lengths_B = rows.lengths_B.long()
        self.blank, self.end = blank, end

    def start(self, number_H: Tensor) -> PrefixState:
        """Return empty hypotheses for these row sequences."""
        blank_HT = F.pad(self._log(number_H, None).cumsum(1), (1, 0))
        return PrefixState(
            symbol_HT=torch.full_like(blank_HT, -math.inf),
            blank_HT=blank_HT,
            last_H=torch.full_like(number_H, -1),
            number_H=number_H,
            score_H=blank_HT.new_zeros(len(number_H)),
        )

    def scores(self, state: PrefixState, symbols_HC: Tensor) -> Tensor:
        """Return the log-probability that the text starts with a hypothesis and then each symbol.

        For `end`, it is the log-probability that the hypothesis is the whole text. The score of one
        step is this minus `state.score_H`.
        """
        n = symbols_HC.shape[1]
        spread = PrefixState(
            **{name: value.repeat_interleave(n, 0) for name, value in vars(state).items()}
        )
        symbols_K = symbols_HC.flatten()
        score_K, _ = self._begins(spread, symbols_K)
        score_HC = torch.where(symbols_K == self.end, self.final_scores(spread), score_K)
        return score_HC.view(symbols_HC.shape).float()

    def advance(self, state: PrefixState, parent_H: Tensor, symbol_H: Tensor) -> PrefixState:
        """Return the hypotheses `parent_H`, each extended by one symbol (not `end`)."""
        old = PrefixState(**{name: value[parent_H] for name, value in vars(state).items()})
        score_H, before_HT = self._begins(old, symbol_H)
        # r[t] = p[t] (r[t−1] + before[t−1]). Divided by the product of p up to t: a cumulative sum.
        along_HT = self._log(old.number_H, symbol_H).cumsum(1)
        symbol_HT = _running(before_HT, along_HT)
        blank_HT = _running(symbol_HT[:, :-1], self._log(old.number_H, None).cumsum(1))
        return PrefixState(symbol_HT, blank_HT, symbol_H, old.number_H, score_H)

    def final_scores(self, state: PrefixState) -> Tensor:
        """Return the log-probability that each hypothesis is the whole text."""
        at_H1 = self.lengths_B[state.number_H, None]
        both_HT = torch.logaddexp(state.symbol_HT, state.blank_HT)
        return both_HT.gather(1, at_H1)[:, 0]

    def _begins(self, state: PrefixState, symbol_H: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prefix log-probabilities of extended hypotheses, and the log-probabilities per
        row before the new symbol."""
        # A repeated symbol without a blank in between is the same symbol.
        same_H1 = (symbol_H == state.last_H)[:, None]
        either_HT = torch.logaddexp(state.symbol_HT, state.blank_HT)
        before_HT = torch.where(same_H1, state.blank_HT, either_HT)[:, :-1]
        new_HT = before_HT + self._log(state.number_H, symbol_H)
        past_HT = (
            torch.arange(new_HT.shape[1], device=new_HT.device)
            >= (self.lengths_B[state.number_H, None])
        )
        return new_HT.masked_fill(past_HT, -math.inf).logsumexp(1), before_HT

    def _log(self, number_H: Tensor, symbol_H: Tensor | None) -> Tensor:
        """Return the log-probability of a symbol, or of the blank, in each row."""
        if symbol_H is None:
            return self.log_BTV[number_H, :, self.blank].double()
        return self.log_BTV[number_H, :, symbol_H].double()


def _running(before_HT: Tensor, along_HT: Tensor) -> Tensor:
    """Compute `r[t] = along[t] − along[t−1] + log(e^r[t−1] + e^before[t])`, after r[−1] = −∞."""
    made_HT = along_HT + (before_HT - F.pad(along_HT, (1, 0))[:, :-1]).logcumsumexp(1)
    return F.pad(made_HT, (1, 0), value=-math.inf)


class CtcAlignment(NamedTuple):
    """Rows of each symbol of a text: from `first` to `last`, inclusive."""

    first: list[int]
    last: list[int]
    log_prob: float
    """Log-probability of the best alignment."""


def align(log_probs_AV: Tensor, symbols: Sequence[int], blank: int) -> CtcAlignment | None:
    """Return the best alignment of symbols with rows (Viterbi), or None if there is none."""
    n_rows, n = len(log_probs_AV), len(symbols)
    states = np.full(2 * n + 1, blank)
    states[1::2] = symbols
    log_AZ = log_probs_AV.double().cpu().numpy()[:, states]
    # Skipping a blank is allowed only between two different symbols.
    skips_Z = np.zeros(2 * n + 1, dtype=bool)
    skips_Z[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
    best_Z = np.full(2 * n + 1, -np.inf)
    best_Z[: 1 + (n > 0)] = 0.0
    steps_AZ = np.zeros((n_rows, 2 * n + 1), dtype=np.int8)
    for row, log_Z in enumerate(log_AZ):
        if row:
            ways_3Z = np.full((3, 2 * n + 1), -np.inf)
            ways_3Z[0] = best_Z
            ways_3Z[1, 1:] = best_Z[:-1]
            ways_3Z[2, 2:] = np.where(skips_Z[2:], best_Z[:-2], -np.inf)
            steps_AZ[row] = ways_3Z.argmax(0)
            best_Z = ways_3Z.max(0)
        best_Z = best_Z + log_Z
    state = 2 * n - 1 if n and (best_Z[-2] >= best_Z[-1]) else 2 * n
    if not n_rows or best_Z[state] == -np.inf:
        return None
    return _rows_of(steps_AZ, state, n, float(best_Z[state]))


def _rows_of(steps_AZ: np.ndarray, state: int, n: int, log_prob: float) -> CtcAlignment:
    first, last = [-1] * n, [-1] * n
    for row in range(len(steps_AZ) - 1, -1, -1):
        number, is_symbol = divmod(state, 2)
        if is_symbol:
            first[number] = row
            last[number] = max(last[number], row)
        state -= int(steps_AZ[row, state])
    return CtcAlignment(first, last, log_prob)
