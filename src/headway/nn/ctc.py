"""Connectionist temporal classification (CTC): texts from frames, most of which are blank.

Each frame emits one symbol or the blank. Consecutive frames with the same symbol count as one
symbol (Graves et al. 2006). Frames are the rows of a flat batch; a `Layout` tells which of them
belong to each recording. All sums are in fp32 or wider, because log-sum-exp loses too much
precision in 16 bits.
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
"""Log-probability of impossible events. It is finite, so that the difference of two of them is not
NaN."""


class CtcLoss(NamedTuple):
    nll_B: Tensor
    """−log p of each text; 0 if the text is impossible."""

    possible_B: Tensor
    """Whether each text is possible: it needs one frame per symbol, and one for the blank between
    two equal symbols."""


def ctc_loss(
    scores_MV: Tensor, rows: Layout, labels_N: Tensor, texts: Layout, blank: int
) -> CtcLoss:
    """Return −log p of each text, summed over all its alignments with the frames.

    `labels_N` holds the symbols of all texts, and `texts` is their layout. A text that is too long
    for its frames has loss 0 and no gradient. The lengths are needed on the host, so a CUDA graph
    cannot capture this loss.
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
    """Return the frames of each sequence, padded with the value `filling` (B T V). T is at least
    1."""
    place_T = torch.arange(max(1, rows.longest), device=x_MV.device)
    real_BT = place_T < rows.lengths_B[:, None]
    if not len(x_MV):
        return x_MV.new_full((*real_BT.shape, x_MV.shape[1]), filling)
    row_BT = (rows.starts_B[:, None] + place_T).clamp(max=len(x_MV) - 1)
    grid_BTV = x_MV.index_select(0, row_BT.flatten()).view(*row_BT.shape, -1)
    return grid_BTV.masked_fill(~real_BT[:, :, None], filling)


def _needed(labels_N: Tensor, texts: Layout) -> Tensor:
    """Return the minimum number of frames that can emit each text."""
    again_N = (labels_N == labels_N.roll(1)) & (texts.positions_N > 0)
    total = F.pad(again_N.long().cumsum(0), (1, 0))
    ends_B = texts.starts_B + texts.lengths_B
    return texts.lengths_B + total[ends_B] - total[texts.starts_B]


@dataclass(frozen=True)
class PrefixState:
    """State of CTC prefix scoring for H hypotheses. Along axis T, index 0 is before the first
    frame."""

    symbol_HT: Tensor
    """Log-probability that the frames up to here emit the hypothesis and end with its last
    symbol."""

    blank_HT: Tensor
    """Log-probability that the frames up to here emit the hypothesis and end with a blank."""

    last_H: Tensor
    """Last symbol of each hypothesis; −1 for an empty hypothesis."""

    number_H: Tensor
    """Index of the recording that each hypothesis belongs to."""

    score_H: Tensor
    """Log-probability that the text starts with the hypothesis."""


class PrefixScorer:
    """CTC prefix scores for an autoregressive decoder (Watanabe et al. 2017).

    A prefix score is the log-probability that a text starts with a hypothesis. A cumulative
    log-sum-exp computes all frames at once. It uses fp64, because it subtracts sums over all
    frames.
    """

    def __init__(self, scores_MV: Tensor, rows: Layout, blank: int, end: int) -> None:
        self.log_BTV = _grid(_log_softmax(scores_MV), rows, NEVER)
        self.lengths_B = rows.lengths_B.long()
        self.blank, self.end = blank, end

    def start(self, number_H: Tensor) -> PrefixState:
        """Return the state of empty hypotheses, for the recordings with these indices."""
        blank_HT = F.pad(self._log(number_H, None).cumsum(1), (1, 0))
        return PrefixState(
            symbol_HT=torch.full_like(blank_HT, -math.inf),
            blank_HT=blank_HT,
            last_H=torch.full_like(number_H, -1),
            number_H=number_H,
            score_H=blank_HT.new_zeros(len(number_H)),
        )

    def scores(self, state: PrefixState, symbols_HC: Tensor) -> Tensor:
        """Return the log-probability that the text starts with each hypothesis followed by each
        symbol (H C).

        For the symbol `end`, it is the log-probability that the hypothesis is the whole text. To
        get the score of a single step, subtract `state.score_H`.
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
        """Return the state after extending the hypotheses with the indices `parent_H` by one symbol
        each (not `end`)."""
        old = PrefixState(**{name: value[parent_H] for name, value in vars(state).items()})
        score_H, before_HT = self._begins(old, symbol_H)
        # The recurrence is r[t+1] = p[t] (r[t] + before[t]). Dividing it by p[0]···p[t] turns it
        # into a cumulative sum, which needs no loop over t.
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
        """Return the prefix log-probabilities of hypotheses extended by a symbol, and, for each
        frame, the log-probability that the frames before it emit the hypothesis without the
        symbol."""
        # A repeated symbol counts as a new one only after a blank.
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
        """Return the log-probability of a symbol, or of the blank if it is None, in each frame."""
        if symbol_H is None:
            return self.log_BTV[number_H, :, self.blank].double()
        return self.log_BTV[number_H, :, symbol_H].double()


def _running(before_HT: Tensor, along_HT: Tensor) -> Tensor:
    """Compute `r[t+1] = p[t] (r[t] + before[t])` with r[0] = 0, in logarithms.

    `along_HT`: cumulative sum of log p[t]. `before_HT`: log before[t].
    """
    made_HT = along_HT + (before_HT - F.pad(along_HT, (1, 0))[:, :-1]).logcumsumexp(1)
    return F.pad(made_HT, (1, 0), value=-math.inf)


class CtcAlignment(NamedTuple):
    """First and last frame (inclusive) of each symbol of a text."""

    first: list[int]
    last: list[int]
    log_prob: float
    """Log-probability of the best alignment."""


def align(log_probs_AV: Tensor, symbols: Sequence[int], blank: int) -> CtcAlignment | None:
    """Return the most probable alignment of symbols with frames (Viterbi), or None if there are too
    few frames."""
    n_rows, n = len(log_probs_AV), len(symbols)
    states = np.full(2 * n + 1, blank)
    states[1::2] = symbols
    log_AZ = log_probs_AV.double().cpu().numpy()[:, states]
    # Skipping a blank is possible only between two different symbols.
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
