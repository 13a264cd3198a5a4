"""Parameters of a search: length limits, token rules, penalties and cancellation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.decode.logits_processors import (
    NO_CONSTRAINTS,
    LogitsProcessors,
    SpecialTokens,
    TokenConstraints,
)
from headway.settings.decode import DecodeSettings

LEAVE_AT = 1 / 8
"""Share of finished sources at which they are removed from the batch; moving the others has a
cost."""

LOOK_EVERY = 4
"""Steps between checks for finished sources on a GPU, because each check synchronises."""

NEW_TOKENS = 256
"""Maximum number of output tokens if neither a setting nor the model limits it."""


IsCancelled = Callable[[int], bool]
"""Function from the number of a source to whether its request was cancelled."""

UNNUMBERED = -1
"""Number of sources without one: `IsCancelled` then returns whether all requests were cancelled."""


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
"""Applies to all searches in this context."""


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
    """Whether a source was cancelled; it is removed at the next step."""

    between_steps: Callable[[], None] = do_nothing
    """As in `Interruption`; every search calls it once per step."""

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
        """The job restricted to these sources."""
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
        """Indices of the sources to remove now, if it is worth it. `sources`: those in the
        batch."""
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
"""Function from numbers of tokens, including the end token, to the divisors of log P."""


def length_penalty(settings: DecodeSettings) -> Penalty:
    alpha = settings.length_penalty_alpha
    if settings.length_penalty == "gnmt":  # Wu et al. 2016
        return lambda n: ((5.0 + n) / 6.0) ** alpha
    if settings.length_penalty == "power":
        return lambda n: n.to(torch.float32) ** alpha
    return lambda n: torch.ones_like(n, dtype=torch.float32)
