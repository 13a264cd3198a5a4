"""What every search is given besides the steps: limits, rules, penalties."""

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
"""Finished sources leave the batch when they are this share of it: moving the others has a cost."""

LOOK_EVERY = 4
"""Steps between looks at what is finished on a GPU, which would have to wait each time."""

NEW_TOKENS = 256
"""Most tokens of an output where neither a setting nor the model knows an end."""


GivenUp = Callable[[int], bool]
"""From the number of a source to whether nobody waits for its outputs any more."""

UNNUMBERED = -1
"""Stands for the number of sources that have none: it is asked whether nobody waits for any."""


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
    """Most tokens of each output, end token included."""

    wishes: Sequence[Wish]
    filters: Filters
    penalty: Penalty
    prompts: Sequence[Sequence[int]] | None = None
    """What the outputs go on from, where there is no source."""

    given_up: GivenUp | None = None
    """Whether nobody waits for the source at a place any more: it leaves at the next step."""

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
        """For models that go on with a prompt. `context`: the most tokens that they read.

        The last token of an output is not read, so it may stand behind the context's end.
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
        """`reach`: the most positions that the model knows, if there is an end to them."""
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
        """The same for these sources alone."""
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
        """The places of sources to take out now, if it is worth it; `sources`: who is there."""
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
