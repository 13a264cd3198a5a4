"""From sources to outputs, in tokens: the one way in to every search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from headway.decode.search.beam import beam_search
from headway.decode.search.constrained import MIN_WIDTH, constrained_search
from headway.decode.search.fixed import fits
from headway.decode.search.fixed_models import learned
from headway.decode.search.greedy import most_likely, walk
from headway.decode.search.hypothesis import NO_WISH, Hypothesis, Specials, Wish
from headway.decode.search.job import Job
from headway.decode.search.observer import Witness, seen_by
from headway.decode.search.recorded import Recorded
from headway.decode.search.sample import sampler
from headway.decode.steps import Ensemble, Seq2SeqSteps, Steps
from headway.errors import ConfigError
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings

__all__ = ["Hypothesis", "Searcher", "Specials", "Wish", "evaluating", "search"]


def search(
    models: Sequence[Seq2Seq],
    sources: Sequence[Any],
    settings: DecodeSettings,
    *,
    bos: int,
    eos: int,
    unk: int,
    wishes: Sequence[Wish] | None = None,
    numbers: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The best outputs of each source, from the best down.

    A source is what the model's front takes: tokens (which end with `eos`), a picture, a recording.
    Several models are an ensemble. All sources are decoded together; make batches of what is
    alike in length. `numbers` tells sources apart where outputs are drawn: their places if None.
    """
    return Searcher(models, settings, Specials(bos, eos, unk))(sources, wishes, numbers)


class Searcher:
    """`search` for many batches: on a GPU it keeps the steps that it recorded."""

    def __init__(
        self, models: Sequence[Seq2Seq], settings: DecodeSettings, specials: Specials
    ) -> None:
        self.models, self.settings, self.specials = models, settings, specials
        on_gpu = next(models[0].parameters()).is_cuda
        self.recorded = Recorded(models[0]) if on_gpu and len(models) == 1 else None

    @torch.no_grad()
    def __call__(
        self,
        sources: Sequence[Any],
        wishes: Sequence[Wish] | None = None,
        numbers: Sequence[Sequence[int]] | None = None,
        *,
        witness: Witness | None = None,
    ) -> list[list[Hypothesis]]:
        """`witness` sees every step of a search without required phrases."""
        if not sources:
            return []
        wishes = [NO_WISH] * len(sources) if wishes is None else wishes
        wishes = with_begin(wishes, self.specials.target_begin)
        numbers = [[place] for place in range(len(sources))] if numbers is None else numbers
        lengths = [self.rows(source) for source in sources]
        job = Job.of(self.settings, self.specials, lengths, wishes, self.reach())
        with evaluating(self.models):
            if self.recorded is not None and self.recorded.free and witness is None and fits(job):
                return self.recorded.search(sources, job, numbers)
            return _search(self.steps, sources, job, numbers, witness)

    def steps(
        self,
        sources: Sequence[Any],
        *,
        width: int,
        capacity: int,
        watch: bool = False,
    ) -> Steps:
        """`Begin`. Another runtime computes by other steps; all else here serves it too."""
        members = [
            Seq2SeqSteps(model, sources, width, capacity, watch=watch) for model in self.models
        ]
        return members[0] if len(members) == 1 else Ensemble(members)

    def rows(self, source: Any) -> int:
        """Rows of the encoder's output: what the length of an output is measured by."""
        return max(model.source_front.rows(source) for model in self.models)

    def reach(self) -> int | None:
        """The most positions that all the decoders know."""
        ends = (learned(model.target_front) for model in self.models)
        return min((end for end in ends if end is not None), default=None)


def with_begin(wishes: Sequence[Wish], begin: int | None) -> Sequence[Wish]:
    """The wishes for outputs that all begin with a token, if there is such."""
    if begin is None:
        return wishes
    return [replace(wish, prefix=(begin, *wish.prefix)) for wish in wishes]


class Begin(Protocol):
    """The steps of a search: `capacity` tokens at most; `watch`: with their attention."""

    def __call__(
        self,
        sources: Sequence[Any],
        *,
        width: int,
        capacity: int,
        watch: bool = False,
    ) -> Steps: ...


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Without dropout inside; afterwards as before.

    Compiled blocks run as they are written: every length would compile them once more.
    """
    training = [model.training for model in models]
    parts = (part for model in models for part in model.modules())
    compiled = any(part._compiled_call_impl is not None for part in parts)
    try:
        for model in models:
            model.eval()
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for model, was_training in zip(models, training, strict=True):
            model.train(was_training)


def _search(
    begin: Begin,
    sources: Sequence[Any],
    job: Job,
    numbers: Sequence[Sequence[int]],
    witness: Witness | None = None,
) -> list[list[Hypothesis]]:
    settings, room = job.settings, max(job.limits)
    required = [place for place, wish in enumerate(job.wishes) if wish.required]
    if required and len(required) < len(sources):
        return _apart(begin, sources, job, numbers, required)
    first = partial(begin, sources, capacity=room)
    if required:
        _check_constrainable(settings)
        width = max(settings.beam, MIN_WIDTH)
        return constrained_search(first(width=width), job, width)
    if settings.sample:
        pick = seen_by(witness, sampler(settings, numbers, room))
        return walk(first(width=settings.n_best), job, settings.n_best, pick)
    if settings.beam == 1:
        return walk(first(width=1), job, 1, seen_by(witness, most_likely))
    watch = settings.coverage > 0
    return beam_search(first(width=settings.beam, watch=watch), job, witness)


def _apart(
    begin: Begin,
    sources: Sequence[Any],
    job: Job,
    numbers: Sequence[Sequence[int]],
    required: Sequence[int],
) -> list[list[Hypothesis]]:
    """Sources with required phrases, and the others, as two batches."""
    results: dict[int, list[Hypothesis]] = {}
    others = sorted(set(range(len(sources))) - set(required))
    for places in (required, others):
        found = _search(
            begin,
            [sources[place] for place in places],
            job.pick(places),
            [numbers[place] for place in places],
        )
        results |= dict(zip(places, found, strict=True))
    return [results[place] for place in range(len(sources))]


def _check_constrainable(settings: DecodeSettings) -> None:
    for name, asked in {
        "sample=true": settings.sample,
        f"groups={settings.groups}": settings.groups > 1,
        f"coverage={settings.coverage:g}": settings.coverage > 0,
    }.items():
        if asked:
            raise ConfigError(
                f"decode.{name} does not go together with required phrases, which need plain beam "
                "search. Leave one of the two out."
            )
