"""Continuation of prompts by CTranslate2's own search, with the interface of our search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headway.decode.engine import TokenLists
from headway.decode.search.greedy import TokenCallback
from headway.decode.search.hypothesis import Hypothesis, SpecialTokens, TokenConstraints
from headway.decode.search.job import Job
from headway.decode.search.searcher import SharedPrefix, check_prompted, check_prompts
from headway.interop.ctranslate2.options import check_options, search_options
from headway.interop.ctranslate2.searcher import Ranking, spelled
from headway.settings.decode import DecodeSettings


class Ctranslate2PromptSearcher:
    """Language model search by CTranslate2; an implementation of `decode.engine.Search`."""

    def __init__(
        self,
        runner: Any,
        settings: DecodeSettings,
        specials: SpecialTokens,
        vocabulary: list[str],
        context: int | None,
        detail: bool,
    ) -> None:
        """`runner`: a `ctranslate2.Generator`; `context`: its maximum number of tokens."""
        check_prompted(settings)
        check_options(settings)
        self.runner, self.settings, self.specials = runner, settings, specials
        self.vocabulary, self.context = vocabulary, context
        # Tokens after a stop string must not count in the score, so each token needs its own.
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
    """Indices of prompts that can share a batch.

    All have the same length limit, so that no output exceeds the context of the model. Prompts of
    one token are separate: next to one, CTranslate2 repeats tokens of longer prompts.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, (text, limit) in enumerate(zip(texts, limits, strict=True)):
        groups.setdefault((limit, len(text) == 1), []).append(i)
    return list(groups.values())


def _callback(watch: TokenCallback, group: Sequence[int]) -> Callable[[Any], bool]:
    """Callback that passes each new token to `watch`. CTranslate2 calls it for greedy search and
    sampling only, as in our search."""
    return lambda step: watch(group[step.batch_id], step.hypothesis_id, step.token_id)
