"""Parameters of a search (limits, rules, penalties, cancellation), its observers and its
outputs."""

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
"""Minimum fraction of finished sources in a batch at which they are removed. Smaller fractions do
not pay, because the remaining sources must be moved."""

LOOK_EVERY = 4
"""Number of steps between checks for finished sources on a GPU. Each check waits for the device."""

NEW_TOKENS = 256
"""Maximum number of output tokens if neither a setting nor the model limits it."""


IsCancelled = Callable[[int], bool]
"""Callback that returns whether the request of a source was cancelled. Argument: the number of the
source."""

UNNUMBERED = -1
"""Argument of `IsCancelled` for a source without a number. The callback then returns whether all
requests were cancelled."""


def do_nothing() -> None:
    """Do nothing. This is the default of `Interruption.between_steps`."""


@dataclass(frozen=True)
class Interruption:
    """Callbacks with which a server cancels a running search, or does other work between two of its
    steps."""

    is_cancelled: IsCancelled
    between_steps: Callable[[], None] = do_nothing
    """Callback in the thread of the search.

    It may run another search of the same models, because a search keeps its state in its own
    objects. An exception ends the search.
    """


INTERRUPTION: ContextVar[Interruption | None] = ContextVar("interruption", default=None)
"""Callbacks for all searches in the current context (thread or asyncio task)."""


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search.

    `tokens` excludes the end token, while `token_log_probs` includes that of the end token.
    """

    tokens: list[int]
    log_prob: float
    score: float
    """Log-probability with penalties, by which the outputs of a source are ranked."""

    token_log_probs: list[float]
    finished: bool
    """Whether the hypothesis ends with the end token. False if the length limit ended it."""


@dataclass(frozen=True)
class Job:
    settings: DecodeSettings
    specials: SpecialTokens
    limits: Sequence[int]
    """Maximum number of tokens in an output of each source, including the end token."""

    constraints: Sequence[TokenConstraints]
    logits_processors: LogitsProcessors
    penalty: Penalty
    prompts: Sequence[Sequence[int]] | None = None
    """Prompts that the outputs continue; None for models with an encoder."""

    is_cancelled: IsCancelled | None = None
    """Callback that returns whether a source was cancelled. Cancelled sources are removed at the
    next step."""

    between_steps: Callable[[], None] = do_nothing
    """Callback between two steps of the search, as in `Interruption`."""

    @classmethod
    def completing(
        cls,
        settings: DecodeSettings,
        specials: SpecialTokens,
        prompts: Sequence[Sequence[int]],
        context: int | None,
    ) -> Job:
        """Create the job of a language model that continues prompts.

        `context`: maximum number of tokens that the model reads. The last token of an output is
        never read, so it does not count.
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
        """Create the job of an encoder-decoder. `reach`: maximum number of positions; None if they
        are not limited."""
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
        """Return the job restricted to these sources."""
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
        """Return the batch positions of the sources to remove.

        Cancelled sources are removed at once, and finished sources when enough of them are
        finished. `sources`: indices of the sources in the batch.
        """
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
"""Length penalty: function that maps the number of tokens, including the end token, to the divisor
of the log-probability."""


def length_penalty(settings: DecodeSettings) -> Penalty:
    alpha = settings.length_penalty_alpha
    if settings.length_penalty == "gnmt":  # Wu et al. 2016
        return lambda n: ((5.0 + n) / 6.0) ** alpha
    if settings.length_penalty == "power":
        return lambda n: n.to(torch.float32) ** alpha
    return lambda n: torch.ones_like(n, dtype=torch.float32)


TokenChooser = Callable[[Tensor, int, Sequence[int]], Tensor]
"""Function that chooses the next token of each row. Arguments: log-probabilities (R V), the number
of output tokens already chosen, and the indices of the sources."""


@dataclass(frozen=True)
class BeamStep:
    """One step of a group of a beam search, for all sources still in the batch."""

    at: int
    """Number of tokens of the hypotheses before this step."""

    group: int
    sources: Sequence[int]
    """Indices of the sources. Finished sources are included and do not change."""

    before: Beams
    scores_BWV: Tensor
    """Log-probabilities of every next token after the rules. The next step may overwrite this
    tensor, so observers must copy what they keep."""

    price_BV: Tensor | None
    """Penalty on tokens that earlier groups chose, which grows from group to group; None without
    groups."""

    bonus_BC: Tensor | None
    """Term added to the score of a continuation that ends; None if there is none."""

    found: BeamCandidates
    after: Beams


class Observer(Protocol):
    """Interface for recording the steps of a search, as the inspection pages do. A search without
    an observer has no additional cost."""

    def on_beam_step(self, growth: BeamStep) -> None:
        """Receive a step of beam search."""
        ...

    def on_token_step(self, scores_RV: Tensor, sources: Sequence[int], token_R: Tensor) -> None:
        """Receive a step of greedy decoding or sampling, with its log-probabilities and chosen
        tokens."""
        ...


def observe_choices(observer: Observer | None, pick: TokenChooser) -> TokenChooser:
    """Wrap a `TokenChooser` so that the observer is called with each of its choices."""
    if observer is None:
        return pick

    def shown(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
        token_R = pick(scores_RV, at, sources)
        observer.on_token_step(scores_RV, sources, token_R)
        return token_R

    return shown


TOP_K_BLOCK = 128
"""Number of scores per block of `top_k`. For a vocabulary of 32,000 there are then 250 block
maxima, about as many as values in the blocks that a small k selects."""


def top_k(scores_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row in descending order, and their indices.

    All of them are in the k blocks with the largest maxima. One fast pass over the blocks therefore
    leaves few values to sort.
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
