"""Observers of a search, which receive every step and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headway.decode.search.beam_step import Beams, Continuations
from headway.decode.search.greedy import Pick


@dataclass(frozen=True)
class Growth:
    """One step of one group of a beam search, for all sources still in the batch."""

    at: int
    """Number of tokens of the hypotheses before this step."""

    group: int
    sources: Sequence[int]
    """Numbers of the sources; those already done are included unchanged."""

    before: Beams
    scores_BWV: Tensor
    """Log-probabilities of every next token after the rules. The next step may overwrite them, so
    copy what is needed."""

    price_BV: Tensor | None
    """Penalty of tokens that earlier groups chose; it grows with every group."""

    bonus_BC: Tensor | None
    """Term added to the score of a continuation that ends."""

    found: Continuations
    after: Beams


class Observer(Protocol):
    """Interface of observers. A search without one does no extra work."""

    def grown(self, growth: Growth) -> None:
        """Receive a step of beam search."""
        ...

    def picked(self, scores_RV: Tensor, sources: Sequence[int], token_R: Tensor) -> None:
        """Receive a step of greedy decoding or sampling: the scores and the chosen tokens."""
        ...


def seen_by(observer: Observer | None, pick: Pick) -> Pick:
    """Wrap a `Pick` so that the observer receives its choices."""
    if observer is None:
        return pick

    def shown(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
        token_R = pick(scores_RV, at, sources)
        observer.picked(scores_RV, sources, token_R)
        return token_R

    return shown
