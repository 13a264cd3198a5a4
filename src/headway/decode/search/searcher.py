"""Entry point of all searches, from sources or prompts to output tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch

from headway.decode.logits_processors import NO_CONSTRAINTS, SpecialTokens, TokenConstraints
from headway.decode.search.beam import beam_search
from headway.decode.search.constrained import MIN_WIDTH, check_constrainable, constrained_search
from headway.decode.search.cuda_graphs import CudaGraphSearcher, supports_static_search
from headway.decode.search.greedy import TokenCallback, generate_independently, most_likely
from headway.decode.search.job import (
    INTERRUPTION,
    UNNUMBERED,
    Hypothesis,
    Job,
    Observer,
    observe_choices,
)
from headway.decode.search.sample import sampler
from headway.decode.steps import (
    DecoderSteps,
    DecodingSteps,
    EnsembleSteps,
    Seq2SeqSteps,
    prefill_prompts,
)
from headway.errors import ConfigError, UserError
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.nn.eval_mode import evaluating
from headway.nn.positions import max_positions
from headway.settings.decode import DecodeSettings

T = TypeVar("T")

MAX_CACHED_SEARCHES = 4
"""Maximum number of cached searches. On a GPU, each keeps its CUDA graphs and their memory."""


def search(
    models: Sequence[Seq2Seq],
    sources: Sequence[Any],
    settings: DecodeSettings,
    *,
    bos: int,
    eos: int,
    unk: int,
    wishes: Sequence[TokenConstraints] | None = None,
    numbers: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Decode one batch with a new `Searcher`."""
    return Searcher(models, settings, SpecialTokens(bos, eos, unk))(sources, wishes, numbers)


class SharedPrefix:
    """Prefix that many prompts share, processed once by each model."""

    def __init__(self, models: Sequence[Decoder], tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        with torch.no_grad(), evaluating(models):
            self.caches = [prefill_prompts(model, [self.tokens], 0)[0] for model in models]

    def is_prefix_of(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt starts with the prefix and has at least one more token."""
        return len(prompt) > len(self.tokens) and list(prompt[: len(self.tokens)]) == self.tokens


@dataclass(frozen=True)
class StepsConfig:
    """Parameters with which a search creates its `DecodingSteps`."""

    width: int
    """Number of hypotheses of each source."""

    capacity: int
    """Maximum number of new tokens per hypothesis."""

    prefix: SharedPrefix | None = None
    """Prefix that all prompts share; None if there is none."""

    attention: bool = False
    """Whether to record cross-attention."""

    apart: bool = False
    """Whether hypotheses are independent. This is true in sampling; in beam search, one hypothesis
    can replace another."""


class Searcher:
    """Decodes sources with one model or an ensemble. Outputs are ordered best first.

    A source is what the model's input layers accept: tokens (ending with `eos`), an image or audio.
    For a language model it is a prompt to continue. On a GPU, CUDA graphs are kept for later calls.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq] | Sequence[Decoder],
        settings: DecodeSettings,
        specials: SpecialTokens,
        context: int | None = None,
    ) -> None:
        """Create a searcher for these models. `context`: maximum number of tokens; None: limited
        only by the models' positions."""
        self.models: Sequence[Seq2Seq | Decoder]
        self.models, self.settings, self.specials = models, settings, specials
        fronts = [one.front if isinstance(one, Decoder) else one.target_front for one in models]
        ends = [end for end in (context, *map(max_positions, fronts)) if end is not None]
        self.context = min(ends, default=None)
        self.continues = isinstance(models[0], Decoder)
        if self.continues:
            check_prompted(settings)
        counts = isinstance(models[0], Decoder) and models[0].is_counted  # needs sizes on the host
        records = next(models[0].parameters()).is_cuda and len(models) == 1 and not counts
        self.graph_searcher = CudaGraphSearcher(models[0]) if records else None

    @torch.no_grad()
    def __call__(
        self,
        sources: Sequence[Any],
        wishes: Sequence[TokenConstraints] | None = None,
        numbers: Sequence[Sequence[int]] | None = None,
        *,
        prefix: SharedPrefix | None = None,
        watch: TokenCallback | None = None,
        observer: Observer | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode all sources as one batch. Their lengths should be similar.

        `numbers`: keys that identify the sources in sampling; by default their indices. `prefix`:
        prefix that all prompts share. `watch`: called for each new token, and can end an output,
        except in beam search. `observer`: called with each step of a search, unless phrases are
        required.
        """
        if not sources:
            return []
        job = self.job(sources, wishes)
        interruption = INTERRUPTION.get()
        if interruption is not None:
            given_up = interruption.is_cancelled
            known = [[UNNUMBERED]] * len(sources) if numbers is None else numbers
            job = replace(
                job, is_cancelled=lambda place: given_up(known[place][0]),
                between_steps=interruption.between_steps,
            )  # fmt: skip
        numbers = [[place] for place in range(len(sources))] if numbers is None else numbers
        with evaluating(self.models):
            if (
                self.graph_searcher is not None
                and self.graph_searcher.free
                and observer is None
                and supports_static_search(job)
            ):
                cache = None if prefix is None else prefix.caches[0]
                return self.graph_searcher.search(sources, job, numbers, prefix=cache, watch=watch)
            return self._search(sources, job, numbers, prefix, watch, observer)

    def job(self, sources: Sequence[Any], wishes: Sequence[TokenConstraints] | None = None) -> Job:
        """Create the `Job` of these sources. Prompts cannot have constraints."""
        if self.continues:
            assert wishes is None or not any(wish != NO_CONSTRAINTS for wish in wishes)
            check_prompts(sources, self.context)
            return Job.completing(self.settings, self.specials, sources, self.context)
        wishes = [NO_CONSTRAINTS] * len(sources) if wishes is None else wishes
        wishes = with_begin(wishes, self.specials.target_begin)
        lengths = [self.rows(source) for source in sources]
        return Job.of(self.settings, self.specials, lengths, wishes, self.context)

    def steps(self, sources: Sequence[Any], begin: StepsConfig) -> DecodingSteps:
        """Create the `DecodingSteps` of a batch. A subclass for another runtime overrides only this
        method."""
        members: list[DecodingSteps] = []
        for place, model in enumerate(self.models):
            if isinstance(model, Decoder):
                cache = None if begin.prefix is None else begin.prefix.caches[place]
                members.append(
                    DecoderSteps(
                        model, sources, begin.width, begin.capacity, cache, apart=begin.apart
                    )
                )
            else:
                members.append(
                    Seq2SeqSteps(
                        model, sources, begin.width, begin.capacity, attention=begin.attention
                    )
                )
        return members[0] if len(members) == 1 else EnsembleSteps(members)

    def rows(self, source: Any) -> int:
        """Return the number of encoder positions of a source, which determines the maximum output
        length."""
        return max(cast(Seq2Seq, model).source_front.rows(source) for model in self.models)

    def _search(
        self,
        sources: Sequence[Any],
        job: Job,
        numbers: Sequence[Sequence[int]],
        prefix: SharedPrefix | None = None,
        watch: TokenCallback | None = None,
        observer: Observer | None = None,
    ) -> list[list[Hypothesis]]:
        settings, room, width = job.settings, max(job.limits), job.settings.width
        required = [place for place, wish in enumerate(job.constraints) if wish.required]
        if required and len(required) < len(sources):
            return self._apart(sources, job, numbers, required)
        if required:
            check_constrainable(settings)
            width = max(settings.beam, MIN_WIDTH)
            return constrained_search(self.steps(sources, StepsConfig(width, room)), job, width)
        steps = self.steps(
            sources,
            StepsConfig(width, room, prefix, attention=settings.coverage > 0, apart=settings.walks),
        )
        if not settings.walks:
            return beam_search(steps, job, observer)
        pick = sampler(settings, numbers, room) if settings.sample else most_likely
        return generate_independently(steps, job, width, observe_choices(observer, pick), watch)

    def _apart(
        self,
        sources: Sequence[Any],
        job: Job,
        numbers: Sequence[Sequence[int]],
        required: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """Decode sources with required phrases and all others as two batches, because they need
        different searches."""
        results: dict[int, list[Hypothesis]] = {}
        others = sorted(set(range(len(sources))) - set(required))
        for places in (required, others):
            some, theirs = ([all_of[i] for i in places] for all_of in (sources, numbers))
            found = self._search(some, job.pick(places), theirs)
            results |= dict(zip(places, found, strict=True))
        return [results[place] for place in range(len(sources))]


class SearchCache:
    """Cache of the most recently used searches, so that their CUDA graphs are reused."""

    def __init__(self, most: int = MAX_CACHED_SEARCHES) -> None:
        self.most = most
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            found = self._made.pop(key) if key in self._made else make()
            self._made[key] = found
            while len(self._made) > self.most:
                del self._made[next(iter(self._made))]
            return cast(T, found)


def with_begin(wishes: Sequence[TokenConstraints], begin: int | None) -> Sequence[TokenConstraints]:
    """Add the token that starts every output, if the model has one, to the prefix of the
    constraints."""
    if begin is None:
        return wishes
    return [replace(wish, prefix=(begin, *wish.prefix)) for wish in wishes]


def check_prompted(settings: DecodeSettings) -> None:
    """Raise a `ConfigError` for settings that need a source, because language models have none."""
    if settings.coverage:
        raise ConfigError(
            f"decode.coverage={settings.coverage:g} needs a source, but a language model has none. "
            "Remove decode.coverage."
        )
    if settings.unknown == "copy":
        raise ConfigError(
            "decode.unknown=copy needs a source, but a language model has none. Set "
            "decode.unknown to ban or keep."
        )


def check_prompts(prompts: Sequence[Sequence[int]], context: int | None) -> None:
    for number, prompt in enumerate(prompts, 1):
        if context is not None and len(prompt) > context:
            raise too_long(f"prompt {number:,}", len(prompt), context)


def too_long(what: str, n_tokens: int, context: int) -> UserError:
    return UserError(
        f"{what} has {n_tokens:,} tokens (including the start token), but the model accepts at "
        f"most {context:,}. Shorten it, or use a model with a larger max_len."
    )
