"""Parameters of a search: length limits, token rules, penalties and cancellation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

from torch import Tensor

from headway.decode.filters import Filters
from headway.decode.search.hypothesis import NO_WISH, Specials, Wish
from headway.decode.search.length_penalty import Penalty, length_penalty
from headway.settings.decode import DecodeSettings

LEAVE_AT = 1 / 8
"""Share of finished sources at which they are removed from the batch; moving the others has a
cost."""

LOOK_EVERY = 4
"""Steps between checks for finished sources on a GPU, because each check synchronises."""

NEW_TOKENS = 256
"""Maximum number of output tokens if neither a setting nor the model limits it."""


GivenUp = Callable[[int], bool]
"""Function from the number of a source to whether its request was cancelled."""

UNNUMBERED = -1
"""Number of sources without one: `GivenUp` then returns whether all requests were cancelled."""


def nothing() -> None:
    """Default of `Interruption.between_steps`."""


@dataclass(frozen=True)
class Interruption:
    """Callbacks with which a server cancels a running search, or computes something else between
    two of its steps."""

    given_up: GivenUp
    between_steps: Callable[[], None] = nothing
    """Called in the thread of the search. It may run another search of the same models: a search
    keeps its state in its own objects. An exception ends the search."""


INTERRUPTION: ContextVar[Interruption | None] = ContextVar("interruption", default=None)
"""Applies to all searches in this context."""


@dataclass(frozen=True)
class Job:
    settings: DecodeSettings
    specials: Specials
    limits: Sequence[int]
    """Maximum number of tokens of each output, including the end token."""

    wishes: Sequence[Wish]
    filters: Filters
    penalty: Penalty
    prompts: Sequence[Sequence[int]] | None = None
    """Prompts that the outputs continue, for language models."""

    given_up: GivenUp | None = None
    """Whether a source was cancelled; it is removed at the next step."""

    between_steps: Callable[[], None] = nothing
    """As in `Interruption`; every search calls it once per step."""

    @classmethod
    def completing(
        cls,
        settings: DecodeSettings,
        specials: Specials,
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
        wishes = [NO_WISH] * len(prompts)
        filters = Filters(settings, specials, wishes, prompts)
        return cls(settings, specials, limits, wishes, filters, length_penalty(settings), prompts)

    @classmethod
    def of(
        cls,
        settings: DecodeSettings,
        specials: Specials,
        lengths: Sequence[int],
        wishes: Sequence[Wish],
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
        filters = Filters(settings, specials, wishes)
        return cls(settings, specials, limits, wishes, filters, length_penalty(settings))

    def pick(self, places: Sequence[int]) -> Job:
        """The job restricted to these sources."""
        wishes = [self.wishes[place] for place in places]
        return replace(
            self,
            limits=[self.limits[place] for place in places],
            wishes=wishes,
            filters=Filters(self.settings, self.specials, wishes),
            given_up=self._given_up_of(places),
        )

    def _given_up_of(self, places: Sequence[int]) -> GivenUp | None:
        given_up = self.given_up
        return None if given_up is None else lambda place: given_up(places[place])

    def leaving(self, done_B: Tensor, at: int, sources: Sequence[int]) -> list[int]:
        """Indices of the sources to remove now, if it is worth it. `sources`: those in the
        batch."""
        last, n_sources = at + 1 >= max(self.limits), len(sources)
        gone: set[int] = set()
        if self.given_up is not None:
            gone = {place for place, source in enumerate(sources) if self.given_up(source)}
        if done_B.is_cuda and not last and not gone and (at + 1) % LOOK_EVERY:
            return []
        places: list[int] = done_B.nonzero().squeeze(1).tolist()
        if gone:
            return sorted(gone.union(places))
        enough = last or len(places) == n_sources or len(places) >= LEAVE_AT * n_sources
        return places if enough else []
