"""Someone who looks on while a search goes: sees every step, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headway.decode.search.beam_step import Beams, Continuations
from headway.decode.search.greedy import Pick


@dataclass(frozen=True)
class Growth:
    """One step of one group of a beam search, for all sources that are still in the batch."""

    at: int
    """Tokens of the hypotheses before this step."""

    group: int
    sources: Sequence[int]
    """Their numbers; a source that was done already comes along unchanged."""

    before: Beams
    scores_BWV: Tensor
    """Log-probabilities of every next token, as the rules left them. The next step may write on
    them: take from them what is needed at once."""

    price_BV: Tensor | None
    """What a token costs because earlier groups chose it; it grows with every group."""

    bonus_BC: Tensor | None
    """What is added to the score of a continuation that ends."""

    found: Continuations
    after: Beams


class Observer(Protocol):
    """Handed to a search. Without one no search does anything more."""

    def grown(self, growth: Growth) -> None:
        """A step of beam search."""
        ...

    def picked(self, scores_RV: Tensor, sources: Sequence[int], token_R: Tensor) -> None:
        """A step of greedy decoding or drawing: the choice, and what it was made from."""
        ...


def seen_by(observer: Observer | None, pick: Pick) -> Pick:
    """The same choices, shown to the observer."""
    if observer is None:
        return pick

    def shown(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
        token_R = pick(scores_RV, at, sources)
        observer.picked(scores_RV, sources, token_R)
        return token_R

    return shown
