"""From prompts to outputs, in tokens: greedy, sampling and beam search with language models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headway.decode.language_model import DecoderSteps, read
from headway.decode.search.beam import beam_search
from headway.decode.search.fixed import fits
from headway.decode.search.fixed_models import learned
from headway.decode.search.greedy import Watch, most_likely, walk
from headway.decode.search.hypothesis import Hypothesis, Specials
from headway.decode.search.job import Job
from headway.decode.search.observer import Witness, seen_by
from headway.decode.search.recorded import Recorded
from headway.decode.search.sample import sampler
from headway.decode.search.search import evaluating
from headway.decode.steps import Ensemble, Steps
from headway.errors import ConfigError, UserError
from headway.models.decoder import Decoder
from headway.nn.cache import Cache
from headway.settings.decode import DecodeSettings


class Prefix:
    """Tokens that many prompts begin with, read once by each model."""

    def __init__(self, models: Sequence[Decoder], tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        with torch.no_grad(), evaluating(models):
            self.caches = [read(model, [self.tokens], 0)[0] for model in models]

    def begins(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt begins with it and goes on."""
        return len(prompt) > len(self.tokens) and list(prompt[: len(self.tokens)]) == self.tokens


class PromptSearcher:
    """Goes on with prompts, many at a time. Several models are an ensemble."""

    def __init__(
        self,
        models: Sequence[Decoder],
        settings: DecodeSettings,
        specials: Specials,
        context: int | None = None,
    ) -> None:
        """`context`: the most tokens that the models read; None: what their positions say."""
        check_settings(settings)
        self.models, self.settings, self.specials = models, settings, specials
        ends = [
            end for end in (context, *(learned(model.front) for model in models)) if end is not None
        ]
        self.context = min(ends, default=None)
        on_gpu = next(models[0].parameters()).is_cuda
        self.recorded = Recorded(models[0]) if on_gpu and len(models) == 1 else None

    @torch.no_grad()
    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        numbers: Sequence[Sequence[int]] | None = None,
        *,
        prefix: Prefix | None = None,
        watch: Watch | None = None,
        witness: Witness | None = None,
    ) -> list[list[Hypothesis]]:
        """What follows each prompt (one token at least), from the best down.

        `numbers` tells prompts apart where outputs are drawn: their places if None. `watch` sees
        each token as it comes, and can end an output; a beam search does not ask it. `witness` sees
        every step, whatever the search.
        """
        if not prompts:
            return []
        self.check(prompts)
        job = Job.completing(self.settings, self.specials, prompts, self.context)
        numbers = [[place] for place in range(len(prompts))] if numbers is None else numbers
        with evaluating(self.models):
            if self.recorded is not None and self.recorded.free and witness is None and fits(job):
                cache = None if prefix is None else prefix.caches[0]
                return self.recorded.search(prompts, job, numbers, prefix=cache, watch=watch)
            return self._search(job, prompts, numbers, prefix, watch, witness)

    def check(self, prompts: Sequence[Sequence[int]]) -> None:
        for number, prompt in enumerate(prompts, 1):
            if self.context is not None and len(prompt) > self.context:
                raise too_long(f"prompt {number:,}", len(prompt), self.context)

    def _search(
        self,
        job: Job,
        prompts: Sequence[Sequence[int]],
        numbers: Sequence[Sequence[int]],
        prefix: Prefix | None,
        watch: Watch | None,
        witness: Witness | None,
    ) -> list[list[Hypothesis]]:
        settings, room = job.settings, max(job.limits)
        if settings.sample:
            width, pick = settings.n_best, sampler(settings, numbers, room)
        else:
            width, pick = settings.beam, most_likely
        walks = settings.sample or width == 1
        steps = self.steps(prompts, width, room, prefix, apart=walks)
        if walks:
            return walk(steps, job, width, seen_by(witness, pick), watch)
        return beam_search(steps, job, witness)

    def steps(
        self,
        prompts: Sequence[Sequence[int]],
        width: int,
        capacity: int,
        prefix: Prefix | None,
        *,
        apart: bool,
    ) -> Steps:
        """As `DecoderSteps`. Another runtime computes by other steps; all else here serves it."""
        caches: Sequence[Cache | None] = [None] * len(self.models)
        if prefix is not None:
            caches = prefix.caches
        members = [
            DecoderSteps(model, prompts, width, capacity, cache, apart=apart)
            for model, cache in zip(self.models, caches, strict=True)
        ]
        return members[0] if len(members) == 1 else Ensemble(members)


def check_settings(settings: DecodeSettings) -> None:
    if settings.coverage:
        raise ConfigError(
            f"decode.coverage={settings.coverage:g} is about a source, and here is none. "
            "Leave it out."
        )
    if settings.unknown == "copy":
        raise ConfigError(
            "decode.unknown=copy copies from a source, and here is none. Use ban or keep."
        )


def too_long(what: str, n_tokens: int, context: int) -> UserError:
    return UserError(
        f"{what} has {n_tokens:,} tokens (its beginning counts as one) and the model reads "
        f"{context:,}. Shorten it, or use a model with a larger max_len."
    )
