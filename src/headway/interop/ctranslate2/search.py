"""Translation and text generation by CTranslate2's own search, with the interface of headway's
search.

Settings of `decode.*` are converted to options of CTranslate2. Settings without an equivalent raise
an error that names them, unless their value has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from headway.decode.engine import SearchedBatch, TokenLists
from headway.decode.logits_processors import (
    NO_CONSTRAINTS,
    Phrase,
    SpecialTokens,
    TokenConstraints,
    always_banned,
)
from headway.decode.search.greedy import TokenCallback
from headway.decode.search.job import Hypothesis, Job, length_penalty
from headway.decode.search.searcher import SharedPrefix, check_prompted, check_prompts, with_begin
from headway.errors import ConfigError, Option, UserError
from headway.settings.decode import DecodeSettings

FIRST = 64
"""Initial number of entries in the table of length penalties. The table grows for longer
outputs."""


class Ranking:
    """Converts CTranslate2 outputs to hypotheses, and ranks them with headway's length penalty."""

    def __init__(
        self, settings: DecodeSettings, specials: SpecialTokens, vocabulary: Sequence[str]
    ) -> None:
        self.settings, self.end = settings, vocabulary[specials.eos]
        self.number = {token: number for number, token in enumerate(vocabulary)}
        self.power, self.divisors = power(settings), divisors(settings, FIRST)

    def hypotheses(self, found: Sequence[list[str]], scores: Sequence[float]) -> list[Hypothesis]:
        """Return the `n_best` best hypotheses. Finished ones precede unfinished ones, as in
        headway's search."""
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
        """Return the hypothesis with the given log-probabilities of its tokens, and with its scores
        recomputed from them."""
        log_prob = sum(token_log_probs)
        score = log_prob / self._divisor(len(token_log_probs))
        return replace(h, log_prob=log_prob, score=score, token_log_probs=token_log_probs)

    def _divisor(self, length: int) -> float:
        if length >= len(self.divisors):
            self.divisors = divisors(self.settings, 2 * length)
        return self.divisors[length]


class SearchRequest(NamedTuple):
    """Sources of one call of the search, with the constraints and the maximum length of each
    output."""

    texts: list[list[str]]
    wishes: Sequence[TokenConstraints]
    limits: Sequence[int]


class Ctranslate2Searcher:
    """Translation search by CTranslate2, which implements `decode.engine.Search`.

    All batches are queued at once, and CTranslate2's workers process them in parallel. The longest
    come first, so that no worker is left with a long batch at the end.
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
        """Prepare the search; raise an error for unsupported settings.

        Args:
            runner: A `ctranslate2.Translator`.
            vocabularies: Tokens of the source and of the target, in the order of their ids.
            reach: Maximum number of positions of the model; None means no limit.
            detail: Whether to return the log-probability of each token.
        """
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
        # CTranslate2's scores omit forced prefixes. If phrases are banned, it renormalizes the
        # probabilities.
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
        """Yield each batch as soon as it is finished, as indices of sources and their hypotheses.

        An output that exceeds its own length limit is searched for again. Such outputs come last,
        together with those whose scores must be recomputed.
        """
        last: dict[int, list[Hypothesis]] = {}
        late: list[int] = []
        for group, results in zip(groups, waiting, strict=True):
            done: dict[int, list[Hypothesis]] = {}
            for i, one in zip(group, results, strict=True):
                result = one.result()
                hypotheses, scores = result.hypotheses, result.scores
                # A batch has the length limit of its longest source, so outputs of shorter sources
                # may exceed theirs.
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
        """Submit a batch to CTranslate2's queue, and return its pending results."""
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
        """Yield batches of sources of similar length, as indices.

        CTranslate2 bans phrases for a whole batch, so only sources with equal banned phrases share
        one.
        """
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
    """Return groups of indices of similar length, longest first.

    Groups have about equal numbers of tokens, at most about `room`. The number of groups is a
    multiple of `workers`, so that all workers are busy.
    """
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


class Ctranslate2PromptSearcher:
    """Implementation of `decode.engine.Search` for language models that run in CTranslate2."""

    def __init__(
        self,
        runner: Any,
        settings: DecodeSettings,
        specials: SpecialTokens,
        vocabulary: list[str],
        context: int | None,
        detail: bool,
    ) -> None:
        """Prepare the search; raise an error for unsupported settings.

        Args:
            runner: A `ctranslate2.Generator`.
            context: Maximum number of tokens of the model; None means no limit.
        """
        check_prompted(settings)
        check_options(settings)
        self.runner, self.settings, self.specials = runner, settings, specials
        self.vocabulary, self.context = vocabulary, context
        # Tokens after a stop string must not count in the score, so the log-probability of every
        # token is needed.
        self.detail = detail or bool(settings.stop)
        self.ranking = Ranking(settings, specials, vocabulary)
        self.options = {
            **search_options(settings, specials, vocabulary),
            "min_length": settings.min_len,
            "include_prompt_in_result": False,
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
        check_prompts(sources, self.context)
        limits = Job.completing(self.settings, self.specials, sources, self.context).limits
        texts = [spelled(prompt, self.vocabulary) for prompt in sources]
        found: dict[int, list[Hypothesis]] = {}
        for group in _alike(texts, limits):
            results = self.runner.generate_batch(
                [texts[i] for i in group],
                max_length=limits[group[0]],
                callback=None if watch is None else _callback(watch, group),
                **self.options,
            )
            for i, one in zip(group, results, strict=True):
                found[i] = self.ranking.hypotheses(one.sequences, one.scores)
        outputs = [found[i] for i in range(len(texts))]
        return self._scored(texts, outputs) if self.detail else outputs

    def _scored(
        self, texts: list[list[str]], outputs: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        end = self.vocabulary[self.specials.eos]
        whole = [
            [*text, *spelled(h.tokens, self.vocabulary), *([end] if h.finished else [])]
            for text, of_text in zip(texts, outputs, strict=True)
            for h in of_text
        ]
        results = iter(
            self.runner.score_batch(
                whole, max_batch_size=self.settings.batch_tokens, batch_type="tokens",
                max_input_length=0,
            )
        )  # fmt: skip
        return [
            [self.ranking.detailed(h, next(results).log_probs[len(text) - 1 :]) for h in of_text]
            for text, of_text in zip(texts, outputs, strict=True)
        ]


def _alike(texts: Sequence[list[str]], limits: Sequence[int]) -> list[list[int]]:
    """Return groups of prompts that can share a batch, as indices.

    All prompts of a group have the same length limit, so that no output exceeds the context of the
    model. Prompts of one token form their own groups: in a batch with such a prompt, CTranslate2
    repeats tokens of longer prompts.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, (text, limit) in enumerate(zip(texts, limits, strict=True)):
        groups.setdefault((limit, len(text) == 1), []).append(i)
    return list(groups.values())


def _callback(watch: TokenCallback, group: Sequence[int]) -> Callable[[Any], bool]:
    """Return a callback that passes each new token to `watch`.

    CTranslate2 calls it only for greedy search and sampling, as headway's search does.
    """
    return lambda step: watch(group[step.batch_id], step.hypothesis_id, step.token_id)


MAPPED = {
    "beam": "beam_size",
    "n_best": "num_hypotheses",
    "length_penalty": "length_penalty: `power` is built in; outputs of `gnmt` are re-ranked",
    "length_penalty_alpha": "length_penalty",
    "coverage": "coverage_penalty",
    "extra_len": "max_decoding_length",
    "max_len": "max_decoding_length, max_length",
    "min_len": "min_decoding_length, min_length",
    "sample": "beam_size=1 with sampling_topk, sampling_topp",
    "temperature": "sampling_temperature",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "seed": "set_random_seed: the same input in the same order gives the same text",
    "repetition_penalty": "repetition_penalty, before the softmax; tokens of a prompt are not "
    "penalised",
    "no_repeat_ngram": "no_repeat_ngram_size; n-grams of a prompt are not counted",
    "unknown": "disable_unk; `copy` uses return_attention",
    "stop": "callback, or cut off afterwards",
    "batch_tokens": "size of the batches that headway makes",
}
"""CTranslate2's option for each of headway's decoding settings.

Constraints are converted as well: prefixes become `target_prefix`, banned phrases
`suppress_sequences`. Alignments use `return_attention`.
"""

UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "groups": (1, "CTranslate2 has no diverse beam search"),
    "min_p": (
        0.0,
        "CTranslate2 cannot filter tokens by their probability relative to the best one",
    ),
    "precision": ("fp32", "the precision of the weights is set by `headway export --int8`"),
}
"""Settings without an equivalent in CTranslate2, each with the value that has no effect and the
reason.

`diversity` is not listed because it has an effect only with `groups`. Required phrases, which are
not a setting, are not supported either.
"""

RERANKING_NOTE = (
    "CTranslate2 has no gnmt length penalty: it searches with its own (n^alpha), and its outputs "
    "are re-ranked by gnmt. With decode.length_penalty=power nothing is re-ranked."
)


def check_options(settings: DecodeSettings) -> None:
    for name, (nothing, reason) in UNSUPPORTED.items():
        value = getattr(settings, name)
        if value != nothing:
            raise ConfigError(
                f"decode.{name}={value} is not supported by {Option('engine', 'ctranslate2')}: "
                f"{reason}. Set decode.{name}={nothing}, or use {Option('engine', 'torch')} with "
                "the run."
            )


def searches(settings: DecodeSettings) -> bool:
    """Return whether decoding is a beam search. Only a beam search uses the length penalty."""
    return not settings.sample and settings.beam > 1


def reranks(settings: DecodeSettings) -> bool:
    return (
        searches(settings)
        and settings.length_penalty == "gnmt"
        and settings.length_penalty_alpha > 0
    )


def power(settings: DecodeSettings) -> float:
    """Return the exponent of CTranslate2's length penalty, which divides the log-probability of an
    output by (number of tokens)^exponent."""
    return 0.0 if settings.length_penalty == "none" else settings.length_penalty_alpha


def divisors(settings: DecodeSettings, longest: int) -> list[float]:
    """Return the divisors of the log-probability in headway's length penalty, indexed by the number
    of tokens (0 to `longest`)."""
    found: list[float] = length_penalty(settings)(torch.arange(longest + 1)).tolist()
    return found


def search_options(
    settings: DecodeSettings, specials: SpecialTokens, tokens: Sequence[str]
) -> dict[str, Any]:
    """Return the options for `translate_batch` and `generate_batch`. `tokens` is the target
    vocabulary."""
    width, n_found = 1, 1
    if searches(settings):
        # All finished hypotheses are needed for re-ranking. Without a length penalty, CTranslate2's
        # first hypothesis is the best.
        width, n_found = settings.beam, settings.beam if power(settings) else settings.n_best
    elif settings.sample and settings.top_k != 1:  # with top_k=1 all samples would be equal
        n_found = settings.n_best
    banned = set(always_banned(settings, specials)) - {specials.unk}
    told: dict[str, Any] = {
        "beam_size": width,
        "num_hypotheses": n_found,
        "length_penalty": power(settings),
        "repetition_penalty": settings.repetition_penalty,
        "no_repeat_ngram_size": settings.no_repeat_ngram,
        "disable_unk": specials.unk in always_banned(settings, specials),
        "suppress_sequences": [[tokens[token]] for token in sorted(banned)],
        "end_token": tokens[specials.eos],
        "return_end_token": True,
        "return_scores": True,
    }
    if settings.sample:
        told |= {
            "sampling_topk": settings.top_k,
            "sampling_topp": settings.top_p,
            "sampling_temperature": settings.temperature,
        }
    return told
