"""Translation by CTranslate2's own search, with the interface of our search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headway.decode.engine import SearchedBatch, TokenLists
from headway.decode.search.greedy import TokenCallback
from headway.decode.search.hypothesis import (
    NO_CONSTRAINTS,
    Hypothesis,
    Phrase,
    SpecialTokens,
    TokenConstraints,
)
from headway.decode.search.job import Job
from headway.decode.search.searcher import SharedPrefix, with_begin
from headway.errors import Option, UserError
from headway.interop.ctranslate2.options import check_options, divisors, power, search_options
from headway.settings.decode import DecodeSettings

FIRST = 64
"""Initial length of the table of length penalties."""


class Ranking:
    """Conversion of CTranslate2 outputs to hypotheses, ranked by our length penalty."""

    def __init__(
        self, settings: DecodeSettings, specials: SpecialTokens, vocabulary: Sequence[str]
    ) -> None:
        self.settings, self.end = settings, vocabulary[specials.eos]
        self.number = {token: number for number, token in enumerate(vocabulary)}
        self.power, self.divisors = power(settings), divisors(settings, FIRST)

    def hypotheses(self, found: Sequence[list[str]], scores: Sequence[float]) -> list[Hypothesis]:
        """Return the `n_best` best hypotheses. As in our search, finished ones come first."""
        logs = [score * len(one) ** self.power for one, score in zip(found, scores, strict=True)]
        ranks = [log / self._divisor(len(one)) for one, log in zip(found, logs, strict=True)]
        order = sorted(range(len(found)), key=lambda i: (found[i][-1:] != [self.end], -ranks[i]))
        best = order[: self.settings.n_best]
        return [self._hypothesis(found[i], logs[i], ranks[i]) for i in best]

    def _hypothesis(self, tokens: list[str], log_prob: float, score: float) -> Hypothesis:
        number, finished = self.number, bool(tokens) and tokens[-1] == self.end
        ids = [number[token] for token in (tokens[:-1] if finished else tokens)]
        return Hypothesis(ids, log_prob, score, [], finished)

    def detailed(self, h: Hypothesis, token_log_probs: list[float]) -> Hypothesis:
        """Return the hypothesis with the log-probability of each token, and scores computed from
        these."""
        log_prob = sum(token_log_probs)
        score = log_prob / self._divisor(len(token_log_probs))
        return replace(h, log_prob=log_prob, score=score, token_log_probs=token_log_probs)

    def _divisor(self, length: int) -> float:
        if length >= len(self.divisors):
            self.divisors = divisors(self.settings, 2 * length)
        return self.divisors[length]


class SearchRequest(NamedTuple):
    """Sources of a search: their tokens, their constraints, and the maximum length of their
    outputs."""

    texts: list[list[str]]
    wishes: Sequence[TokenConstraints]
    limits: Sequence[int]


class Ctranslate2Searcher:
    """Translation search by CTranslate2; an implementation of `decode.engine.Search`.

    All batches are queued at once and processed by the workers. The longest come first, so that no
    long batch is left for the end.
    """

    def __init__(
        self,
        runner: Any,
        settings: DecodeSettings,
        specials: SpecialTokens,
        vocabularies: tuple[list[str], list[str]],
        reach: int | None,
        detail: bool,
    ) -> None:
        """`runner`: a `ctranslate2.Translator`; `vocabularies`: of source and target; `reach`: its
        maximum number of positions; `detail`: whether to return the log-probability of each
        token."""
        check_options(settings)
        self.runner, self.settings, self.specials = runner, settings, specials
        self.source, self.target = vocabularies
        self.context, self.detail = reach, detail
        self.ranking = Ranking(settings, specials, self.target)
        self.options = {
            **search_options(settings, specials, self.target),
            "coverage_penalty": settings.coverage,
            "min_decoding_length": settings.min_len,
            "max_input_length": 0,
            "asynchronous": True,
        }

    def __call__(
        self,
        sources: TokenLists,
        wishes: Sequence[TokenConstraints] | None = None,
        numbers: TokenLists | None = None,
        *,
        prefix: SharedPrefix | None = None,
        watch: TokenCallback | None = None,
    ) -> list[list[Hypothesis]]:
        asked = self.begin(sources, [NO_CONSTRAINTS] * len(sources) if wishes is None else wishes)
        found = {i: one for group, many in asked for i, one in zip(group, many, strict=True)}
        return [found[i] for i in range(len(sources))]

    def begin(
        self, sources: TokenLists, wishes: Sequence[TokenConstraints]
    ) -> Iterator[SearchedBatch]:
        self._check(sources, wishes)
        # CTranslate2's scores omit forced prefixes and renormalise without banned words.
        inexact = {i for i, wish in enumerate(wishes) if self.detail or wish != NO_CONSTRAINTS}
        wishes = with_begin(wishes, self.specials.target_begin)
        lengths = [len(source) for source in sources]
        # One position is reserved for the end token, which is an input when outputs are scored.
        reach = None if self.context is None else self.context - 1
        limits = Job.of(self.settings, self.specials, lengths, wishes, reach).limits
        asked = SearchRequest([spelled(source, self.source) for source in sources], wishes, limits)
        groups = list(self._groups(lengths, wishes))
        return self._results(
            asked, groups, [self._submit(asked, group) for group in groups], inexact
        )

    def _results(
        self, asked: SearchRequest, groups: list[list[int]], waiting: list[Any], inexact: set[int]
    ) -> Iterator[SearchedBatch]:
        """Yield finished batches in order. Outputs that must be searched again or scored come
        last."""
        last: dict[int, list[Hypothesis]] = {}
        late: list[int] = []
        for group, results in zip(groups, waiting, strict=True):
            done: dict[int, list[Hypothesis]] = {}
            for i, one in zip(group, results, strict=True):
                result = one.result()
                hypotheses, scores = result.hypotheses, result.scores
                # The longest source sets the limit of a batch, so others may exceed theirs.
                if max(map(len, hypotheses)) > asked.limits[i]:
                    late.append(i)
                else:
                    ranked = self.ranking.hypotheses(hypotheses, scores)
                    (last if i in inexact else done)[i] = ranked
            yield list(done), list(done.values())
        for i, [one] in [(i, self._submit(asked, [i])) for i in late]:
            result = one.result()
            last[i] = self.ranking.hypotheses(result.hypotheses, result.scores)
        last |= self._scored([i for i in last if i in inexact], asked.texts, last)
        yield list(last), list(last.values())

    def _submit(self, asked: SearchRequest, group: Sequence[int]) -> Any:
        """Submit a batch to the queue."""
        wishes = [asked.wishes[i] for i in group]
        return self.runner.translate_batch(
            [asked.texts[i] for i in group],
            target_prefix=self._prefixes(wishes),
            max_decoding_length=max(asked.limits[i] for i in group),
            **self._banning(wishes[0].banned),
        )

    def _check(self, sources: TokenLists, wishes: Sequence[TokenConstraints]) -> None:
        if any(wish.required for wish in wishes):
            raise UserError(
                f"required phrases are not supported by {Option('engine', 'ctranslate2')}, which "
                "cannot force words into the middle of an output. Use "
                f"{Option('engine', 'torch')} with the run."
            )
        longest = max(map(len, sources), default=0)
        if self.context is not None and longest > self.context:
            raise UserError(
                f"a source has {longest:,} tokens, but the exported model accepts at most "
                f"{self.context:,}. Shorten or split the source."
            )

    def _groups(
        self, lengths: Sequence[int], wishes: Sequence[TokenConstraints]
    ) -> Iterator[list[int]]:
        """Batches of similar length. Banned phrases apply to a whole batch, so its sources share
        them."""
        together: dict[tuple[Phrase, ...], list[int]] = {}
        for i, wish in enumerate(wishes):
            together.setdefault(wish.banned, []).append(i)
        room = max(1, self.settings.batch_tokens // self.settings.width)
        workers = self.runner.num_translators
        for places in together.values():
            for group in even_batches([lengths[i] for i in places], room, workers):
                yield [places[i] for i in group]

    def _prefixes(self, wishes: Sequence[TokenConstraints]) -> list[list[str]] | None:
        if not any(wish.prefix for wish in wishes):
            return None
        return [spelled(wish.prefix, self.target) for wish in wishes]

    def _banning(self, phrases: Sequence[Phrase]) -> dict[str, Any]:
        if not phrases:
            return self.options
        banned = [*self.options["suppress_sequences"], *(spelled(p, self.target) for p in phrases)]
        return {**self.options, "suppress_sequences": banned}

    def _scored(
        self, places: Sequence[int], texts: list[list[str]], found: dict[int, list[Hypothesis]]
    ) -> dict[int, list[Hypothesis]]:
        pairs = [(i, h) for i in places for h in found[i]]
        if not pairs:
            return {}
        results = self.runner.score_batch(
            [texts[i] for i, _ in pairs],
            [spelled(h.tokens, self.target) for _, h in pairs],
            max_batch_size=self.settings.batch_tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        scored: dict[int, list[Hypothesis]] = {i: [] for i in places}
        for (i, h), result in zip(pairs, results, strict=True):
            logs = result.log_probs[: len(h.tokens) + h.finished]
            if self.specials.target_begin is not None:
                logs[0] = 0.0  # this token is the same for all outputs
            scored[i].append(self.ranking.detailed(h, logs))
        return scored


def even_batches(lengths: Sequence[int], room: int, workers: int) -> Iterator[list[int]]:
    """Indices in groups of similar length, longest first. Groups have about equal numbers of
    tokens, at most about `room`, and their number is a multiple of `workers`."""
    total = sum(lengths)
    n_groups = workers * math.ceil(total / (room * workers))
    groups: list[list[int]] = [[] for _ in range(n_groups)]
    before = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        groups[before * n_groups // total].append(place)
        before += lengths[place]
    return (group for group in groups if group)


def spelled(tokens: Sequence[int], vocabulary: Sequence[str]) -> list[str]:
    return [vocabulary[token] for token in tokens]
