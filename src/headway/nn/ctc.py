"""Connectionist temporal classification: texts from rows of symbols, most of them blank.

A row says one symbol or the blank; rows in a row that say the same are one symbol (Graves et al.
2006). Sequences stand side by side in a flat batch, as a `Layout` says. All in fp32 or wider: sums
of many exponentials do not survive less.
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
"""The logarithm of what cannot be: finite, so that differences of it are numbers."""


class CtcLoss(NamedTuple):
    nll_B: Tensor
    """−log p of each text; 0 where it cannot be."""

    possible_B: Tensor
    """Whether there are rows enough: one a symbol, and a blank between two equal ones."""


def ctc_loss(
    scores_MV: Tensor, rows: Layout, labels_N: Tensor, texts: Layout, blank: int
) -> CtcLoss:
    """Of the text of each sequence of rows, summed over all its ways through them.

    `labels_N` has the symbols of all texts, side by side as `texts` says. A text that has no way
    counts nothing and moves nothing. The lengths are needed on the host, so that a step with this
    loss cannot be recorded.
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
    """The rows of each sequence, filled up behind its end: (B T V), at least one row."""
    place_T = torch.arange(max(1, rows.longest), device=x_MV.device)
    real_BT = place_T < rows.lengths_B[:, None]
    if not len(x_MV):
        return x_MV.new_full((*real_BT.shape, x_MV.shape[1]), filling)
    row_BT = (rows.starts_B[:, None] + place_T).clamp(max=len(x_MV) - 1)
    grid_BTV = x_MV.index_select(0, row_BT.flatten()).view(*row_BT.shape, -1)
    return grid_BTV.masked_fill(~real_BT[:, :, None], filling)


def _needed(labels_N: Tensor, texts: Layout) -> Tensor:
    """Rows without which a text cannot be said."""
    again_N = (labels_N == labels_N.roll(1)) & (texts.positions_N > 0)
    total = F.pad(again_N.long().cumsum(0), (1, 0))
    ends_B = texts.starts_B + texts.lengths_B
    return texts.lengths_B + total[ends_B] - total[texts.starts_B]


@dataclass(frozen=True)
class PrefixState:
    """Of each hypothesis so far, H in all; T are the rows, and one before the first."""

    symbol_HT: Tensor
    """log p of all ways that say it in rows up to here and end with its last symbol ..."""

    blank_HT: Tensor
    """... and with a blank."""

    last_H: Tensor
    """The last symbol, −1 where there is none yet."""

    number_H: Tensor
    """The sequence of rows that it is a hypothesis about."""

    score_H: Tensor
    """log p that a text begins with it."""


class PrefixScorer:
    """How probable texts are that begin so, by CTC, for a decoder that writes from left to right.

    As Watanabe et al. (2017) have it, but for all rows at once: what one row adds to the next is
    a sum along the rows, of which the logarithm can be taken as a whole. In fp64, because it takes
    differences of sums over all rows.
    """

    def __init__(self, scores_MV: Tensor, rows: Layout, blank: int, end: int) -> None:
        self.log_BTV = _grid(_log_softmax(scores_MV), rows, NEVER)
        self.lengths_B = rows.lengths_B.long()
        self.blank, self.end = blank, end

    def start(self, number_H: Tensor) -> PrefixState:
        """Empty hypotheses about these sequences of rows."""
        blank_HT = F.pad(self._log(number_H, None).cumsum(1), (1, 0))
        return PrefixState(
            symbol_HT=torch.full_like(blank_HT, -math.inf),
            blank_HT=blank_HT,
            last_H=torch.full_like(number_H, -1),
            number_H=number_H,
            score_H=blank_HT.new_zeros(len(number_H)),
        )

    def scores(self, state: PrefixState, symbols_HC: Tensor) -> Tensor:
        """log p that a text begins with a hypothesis and this symbol; for `end`, that it is all.

        The step from the hypothesis to its longer form costs this minus `state.score_H`.
        """
        n = symbols_HC.shape[1]
        spread = PrefixState(
            **{name: value.repeat_interleave(n, 0) for name, value in vars(state).items()}
        )
        symbols_K = symbols_HC.flatten()
        score_K, _ = self._begins(spread, symbols_K)
        score_HC = torch.where(symbols_K == self.end, self.whole(spread), score_K)
        return score_HC.view(symbols_HC.shape).float()

    def advance(self, state: PrefixState, parent_H: Tensor, symbol_H: Tensor) -> PrefixState:
        """Hypotheses `parent_H` of the old ones, each longer by a symbol (not `end`)."""
        old = PrefixState(**{name: value[parent_H] for name, value in vars(state).items()})
        score_H, before_HT = self._begins(old, symbol_H)
        # r[t] = p[t] (r[t−1] + before[t−1]): divided by the product of p up to t, a running sum.
        along_HT = self._log(old.number_H, symbol_H).cumsum(1)
        symbol_HT = _running(before_HT, along_HT)
        blank_HT = _running(symbol_HT[:, :-1], self._log(old.number_H, None).cumsum(1))
        return PrefixState(symbol_HT, blank_HT, symbol_H, old.number_H, score_H)

    def whole(self, state: PrefixState) -> Tensor:
        """log p of each hypothesis as the whole text."""
        at_H1 = self.lengths_B[state.number_H, None]
        both_HT = torch.logaddexp(state.symbol_HT, state.blank_HT)
        return both_HT.gather(1, at_H1)[:, 0]

    def _begins(self, state: PrefixState, symbol_H: Tensor) -> tuple[Tensor, Tensor]:
        """log p that a text begins with the longer forms; the ways before the symbol is new."""
        # A symbol said again without a blank between is the same one.
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
        """Of the symbol in each row, or of the blank."""
        if symbol_H is None:
            return self.log_BTV[number_H, :, self.blank].double()
        return self.log_BTV[number_H, :, symbol_H].double()


def _running(before_HT: Tensor, along_HT: Tensor) -> Tensor:
    """One row more: of `r[t] = along[t] − along[t−1] + log(e^r[t−1] + e^before[t])`, r[−1] = −∞."""
    made_HT = along_HT + (before_HT - F.pad(along_HT, (1, 0))[:, :-1]).logcumsumexp(1)
    return F.pad(made_HT, (1, 0), value=-math.inf)


class Aligned(NamedTuple):
    """The rows of each symbol of a text: `first` to `last`, itself included."""

    first: list[int]
    last: list[int]
    log_prob: float
    """Of the best way of saying the text."""


def align(log_probs_AV: Tensor, symbols: Sequence[int], blank: int) -> Aligned | None:
    """Which rows say which symbol in the best of all ways; None where there is no way."""
    n_rows, n = len(log_probs_AV), len(symbols)
    states = np.full(2 * n + 1, blank)
    states[1::2] = symbols
    log_AZ = log_probs_AV.double().cpu().numpy()[:, states]
    # From two states before, over a blank, only a symbol is reached, and not one said again.
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


def _rows_of(steps_AZ: np.ndarray, state: int, n: int, log_prob: float) -> Aligned:
    first, last = [-1] * n, [-1] * n
    for row in range(len(steps_AZ) - 1, -1, -1):
        number, is_symbol = divmod(state, 2)
        if is_symbol:
            first[number] = row
            last[number] = max(last[number], row)
        state -= int(steps_AZ[row, state])
    return Aligned(first, last, log_prob)
