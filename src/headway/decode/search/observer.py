"""Observers of a search, which receive every step and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from headway.decode.search.greedy import TokenChooser

if TYPE_CHECKING:  # beam search reports its steps to observers
    from headway.decode.search.beam import BeamCandidates, Beams


@dataclass(frozen=True)
class BeamStep:
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

    found: BeamCandidates
    after: Beams


class Observer(Protocol):
    """Interface of observers. A search without one does no extra work."""

    def on_beam_step(self, growth: BeamStep) -> None:
        """Receive a step of beam search."""
        ...

    def on_token_step(self, scores_RV: Tensor, sources: Sequence[int], token_R: Tensor) -> None:
        """Receive a step of greedy decoding or sampling: the scores and the chosen tokens."""
        ...


def observe_choices(observer: Observer | None, pick: TokenChooser) -> TokenChooser:
    """Wrap a `TokenChooser` so that the observer receives its choices."""
    if observer is None:
        return pick

    def shown(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
        token_R = pick(scores_RV, at, sources)
        observer.on_token_step(scores_RV, sources, token_R)
        return token_R

    return shown
