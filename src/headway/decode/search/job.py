"""Job of a search (limits, rules, penalties, cancellation), its observers and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from headway.decode.logits_processors import (
    NO_CONSTRAINTS,
    LogitsProcessors,
    SpecialTokens,
    TokenConstraints,
)
from headway.settings.decode import DecodeSettings

if TYPE_CHECKING:  # beam search reports its steps to observers
    from headway.decode.search.beam import BeamCandidates, Beams

LEAVE_AT = 1 / 8
"""Share of finished sources in a batch from which they are removed. Moving the remaining ones has a
cost."""

LOOK_EVERY = 4
"""Number of steps between checks for finished sources on a GPU: each check waits for the device."""

NEW_TOKENS = 256
"""Maximum number of output tokens if neither a setting nor the model limits it."""


IsCancelled = Callable[[int], bool]
"""Type of callbacks that return whether the request of a source, given by its number, was
cancelled."""

UNNUMBERED = -1
"""Placeholder for sources without a number. For it, `IsCancelled` returns whether all requests were
cancelled."""


def do_nothing() -> None:
    """Default of `Interruption.between_steps`."""


@dataclass(frozen=True)
class Interruption:
    """Callbacks with which a server cancels a running search, or computes something else between
    two of its steps."""

    is_cancelled: IsCancelled
    between_steps: Callable[[], None] = do_nothing
    """Called in the thread of the search. It may run another search of the same models: a search
    keeps its state in its own objects. An exception ends the search."""


INTERRUPTION: ContextVar[Interruption | None] = ContextVar("interruption", default=None)
"""Callbacks of the current context (thread or task), which all searches in it use."""


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search. `tokens` excludes the end token; `token_log_probs` includes it
    last."""

    tokens: list[int]
    log_prob: float
    score: float
    """Log P with penalties, by which the outputs of a source are ranked."""

    token_log_probs: list[float]
    finished: bool
    """Whether the hypothesis has an end token; False if the length limit cut it off."""


@dataclass(frozen=True)
class Job:
    settings: DecodeSettings
    specials: SpecialTokens
    limits: Sequence[int]
    """Maximum number of tokens of each output, including the end token."""

    constraints: Sequence[TokenConstraints]
    logits_processors: LogitsProcessors
    penalty: Penalty
    prompts: Sequence[Sequence[int]] | None = None
    """Prompts that the outputs continue, for language models."""

    is_cancelled: IsCancelled | None = None
    """Callback that returns whether a source was cancelled; it is then removed at the next step."""

    between_steps: Callable[[], None] = do_nothing
    """Callback between two steps of a search, as in `Interruption`."""

    @classmethod
    def completing(
        cls,
        settings: DecodeSettings,
        specials: SpecialTokens,
        prompts: Sequence[Sequence[int]],
        context: int | None,
    ) -> Job:
        """Job of a language model that continues prompts. `context`: maximum number of tokens.

        The last token of an output is never an input, so it does not count against the context.
        """
        limits = []
        for prompt in prompts:
            room = NEW_TOKENS if context is None else context - len(prompt) + 1
            limits.append(room if settings.max_len is None else min(room, settings.max_len))
        wishes = [NO_CONSTRAINTS] * len(prompts)
        filters = LogitsProcessors(settings, specials, wishes, prompts)
        return cls(settings, specials, limits, wishes, filters, length_penalty(settings), prompts)

    @classmethod
    def of(
        cls,
        settings: DecodeSettings,
        specials: SpecialTokens,
        lengths: Sequence[int],
        wishes: Sequence[TokenConstraints],
        reach: int | None,
    ) -> Job:
        """Job of an encoder-decoder. `reach`: maximum number of positions, or None without a
        limit."""
        limits = []
        for length, wish in zip(lengths, wishes, strict=True):
            limit = length + settings.extra_len
            if settings.max_len is not None:
                limit = min(limit, settings.max_len)
            asked = len(wish.prefix) + sum(map(len, wish.required)) + 1
            limit = max(limit, asked)
            limits.append(limit if reach is None else min(limit, reach))
        filters = LogitsProcessors(settings, specials, wishes)
        return cls(settings, specials, limits, wishes, filters, length_penalty(settings))

    def pick(self, places: Sequence[int]) -> Job:
        """Part of the job for these sources."""
        wishes = [self.constraints[place] for place in places]
        return replace(
            self,
            limits=[self.limits[place] for place in places],
            constraints=wishes,
            logits_processors=LogitsProcessors(self.settings, self.specials, wishes),
            is_cancelled=self._is_cancelled_of(places),
        )

    def _is_cancelled_of(self, places: Sequence[int]) -> IsCancelled | None:
        given_up = self.is_cancelled
        return None if given_up is None else lambda place: given_up(places[place])

    def finished_sources(self, done_B: Tensor, at: int, sources: Sequence[int]) -> list[int]:
        """Indices of the finished sources, if enough are finished to remove them from the batch;
        otherwise none. `sources`: those in the batch."""
        last, n_sources = at + 1 >= max(self.limits), len(sources)
        gone: set[int] = set()
        if self.is_cancelled is not None:
            gone = {place for place, source in enumerate(sources) if self.is_cancelled(source)}
        if done_B.is_cuda and not last and not gone and (at + 1) % LOOK_EVERY:
            return []
        places: list[int] = done_B.nonzero().squeeze(1).tolist()
        if gone:
            return sorted(gone.union(places))
        enough = last or len(places) == n_sources or len(places) >= LEAVE_AT * n_sources
        return places if enough else []


Penalty = Callable[[Tensor], Tensor]
"""Type of length penalties: functions from the number of tokens, including the end token, to the
divisor of log P."""


def length_penalty(settings: DecodeSettings) -> Penalty:
    alpha = settings.length_penalty_alpha
    if settings.length_penalty == "gnmt":  # Wu et al. 2016
        return lambda n: ((5.0 + n) / 6.0) ** alpha
    if settings.length_penalty == "power":
        return lambda n: n.to(torch.float32) ** alpha
    return lambda n: torch.ones_like(n, dtype=torch.float32)


TokenChooser = Callable[[Tensor, int, Sequence[int]], Tensor]
"""Type of functions that choose the next tokens. They get log-probabilities (R V), the number of
tokens so far and the sources, and return one token per row."""


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
    """Interface for recording the steps of a search, as the inspection pages do. A search without
    an observer does no extra work."""

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


TOP_K_BLOCK = 128
"""Scores per block of `top_k`: with blocks of 128, a vocabulary of 32,000 has 250 maxima, about as
many as values in the blocks of a small k."""


def top_k(scores_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row, in order, and their indices.

    The k largest values are in the k blocks with the largest maxima, so that one fast pass over the
    blocks leaves little to sort.
    """
    n_blocks = scores_RV.shape[1] // TOP_K_BLOCK
    if n_blocks <= 2 * k:
        largest = scores_RV.topk(min(k, scores_RV.shape[1]))
        return largest.values, largest.indices
    blocks_RCS = scores_RV[:, : n_blocks * TOP_K_BLOCK].unflatten(1, (n_blocks, TOP_K_BLOCK))
    chosen_Rk = blocks_RCS.amax(2).topk(k, sorted=False).indices
    inside_RkS = blocks_RCS.gather(1, chosen_Rk[:, :, None].expand(-1, -1, TOP_K_BLOCK))
    largest = inside_RkS.flatten(1).topk(k)
    block_Rk = chosen_Rk.gather(1, largest.indices // TOP_K_BLOCK)
    values_Rk, index_Rk = largest.values, block_Rk * TOP_K_BLOCK + largest.indices % TOP_K_BLOCK
    rest = scores_RV.shape[1] % TOP_K_BLOCK
    if not rest:
        return values_Rk, index_Rk
    tail = scores_RV[:, -rest:].topk(min(k, rest))
    largest = torch.cat([values_Rk, tail.values], dim=1).topk(k)
    where = torch.cat([index_Rk, tail.indices + n_blocks * TOP_K_BLOCK], dim=1)
    return largest.values, where.gather(1, largest.indices)
