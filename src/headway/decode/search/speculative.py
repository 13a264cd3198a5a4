"""Speculative decoding: a draft model proposes tokens, and the target model verifies them in one
pass.

The result is that of the target model alone. Greedy decoding gives the same tokens, and sampling
gives tokens from the same distribution (Leviathan et al. 2022, Chen et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headway.decode.logits_processors import SpecialTokens, TokenConstraints
from headway.decode.search.greedy import TokenCallback, hypothesis
from headway.decode.search.job import Hypothesis, Job, Observer
from headway.decode.search.sample import draw_tokens, probabilities
from headway.decode.search.searcher import Searcher, SharedPrefix
from headway.decode.steps import prefill_prompts
from headway.errors import ConfigError, UserError
from headway.models.decoder import Decoder
from headway.nn.cache import Cache
from headway.nn.eval_mode import evaluating
from headway.nn.positions import max_positions
from headway.settings.decode import DecodeSettings

AHEAD = 4
"""Number of tokens that the draft model proposes per pass of the target model. With more, too many
are rejected; with fewer, less time is saved."""


class CachedModel:
    """Model with the KV cache of one text. Entries of rejected draft tokens are removed from the
    cache."""

    def __init__(self, model: Decoder, cache: Cache) -> None:
        self.model, self.cache = model, cache
        self.device = next(model.parameters()).device

    def scores(self, text: Sequence[int], n_last: int) -> Tensor:
        """Process new tokens. Return the log-probabilities after each of the last `n_last`
        tokens."""
        fresh = text[self.cache.lengths[0] :]
        assert len(fresh) >= n_last
        layout = self.cache.layout([len(fresh)], self.device)
        x_ND = self.model(torch.tensor(fresh, device=self.device), layout, self.cache)
        return self.model.scores(x_ND[-n_last:]).float().log_softmax(-1)

    def truncate(self, n_kept: int) -> None:
        """Remove all but the first `n_kept` tokens from the cache."""
        self.cache.trim([min(n_kept, self.cache.lengths[0])])


@dataclass
class WrittenTokens:
    """Tokens and log-probabilities of an output so far."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


class SpeculativeSearcher(Searcher):
    """Searcher with a draft model. It processes one text at a time, with greedy decoding or
    sampling."""

    def __init__(
        self,
        model: Decoder,
        draft: Decoder,
        settings: DecodeSettings,
        specials: SpecialTokens,
        context: int | None = None,
        draft_context: int | None = None,
        ahead: int = AHEAD,
    ) -> None:
        super().__init__([model], settings, specials, context)
        self.model, self.draft, self.ahead = model, draft, ahead
        self.proposed = self.accepted = 0
        ends = [end for end in (draft_context, max_positions(draft.front)) if end is not None]
        check_draft(model, draft, self.context, min(ends, default=None))
        if not settings.sample and settings.beam > 1:
            raise ConfigError(
                f"a draft model cannot be used with beam search (decode.beam={settings.beam}). Use "
                "decode.beam=1 or decode.sample=true."
            )

    @torch.no_grad()
    def __call__(
        self,
        sources: Sequence[Sequence[int]],
        wishes: Sequence[TokenConstraints] | None = None,
        numbers: Sequence[Sequence[int]] | None = None,
        *,
        prefix: SharedPrefix | None = None,
        watch: TokenCallback | None = None,
        observer: Observer | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode sources one after another, with the arguments of `Searcher.__call__`. `observer`
        is ignored."""
        if not sources:
            return []
        job = self.job(sources, wishes)
        numbers = [[place] for place in range(len(sources))] if numbers is None else numbers
        results = []
        with evaluating([self.model, self.draft]):
            for place, prompt in enumerate(sources):
                starts = self._starts(prompt, None if prefix is None else prefix.caches[0])
                found = []
                for w in range(self.settings.width):
                    dice = np.random.default_rng([self.settings.seed, *numbers[place], w])
                    text = _Text(self, job, place, w, dice)
                    model, draft = (CachedModel(m, start.repeated(1, 1)) for m, start in starts)
                    found.append(hypothesis(*text.write(model, draft, watch), job))
                results.append(sorted(found, key=lambda h: -h.score))
        return results

    def _starts(self, prompt: Sequence[int], prefix: Cache | None) -> list[tuple[Decoder, Cache]]:
        """Return each model with a cache that contains the prompt except its last token."""
        starts = []
        for model, known in ((self.model, prefix), (self.draft, None)):
            if len(prompt) == 1:
                cache = Cache(len(model.stack.blocks), 1, 1)  # type: ignore[arg-type]
            elif known is not None and known.lengths[0] >= len(prompt) - 1:
                cache = known.repeated(1, 1)
                cache.trim([len(prompt) - 1])
            else:
                cache = prefill_prompts(model, [prompt[:-1]], 0, known)[0]
            starts.append((model, cache))
        return starts


@dataclass
class _Text:
    """State of one output during speculative decoding."""

    owner: SpeculativeSearcher
    job: Job
    place: int
    w: int
    dice: np.random.Generator

    def write(
        self, model: CachedModel, draft: CachedModel, watch: TokenCallback | None
    ) -> tuple[list[int], list[float]]:
        assert self.job.prompts is not None
        prompt, limit = list(self.job.prompts[self.place]), self.job.limits[self.place]
        written, eos = WrittenTokens(), self.job.specials.eos
        while True:
            text = prompt + written.tokens
            guesses, guessed = self._guesses(draft, text, limit - len(written.tokens) - 1)
            scores_TV = model.scores(text + guesses, len(guesses) + 1)
            for token, log_prob in self._checked(scores_TV, guesses, guessed, written):
                written.tokens.append(token)
                written.log_probs.append(log_prob)
                stopped = watch is not None and watch(self.place, self.w, token)
                if stopped or token == eos or len(written.tokens) == limit:
                    return written.tokens, written.log_probs
            n_read = len(prompt) + len(written.tokens) - 1
            model.truncate(n_read)
            draft.truncate(n_read)

    def _guesses(
        self, draft: CachedModel, text: list[int], room: int
    ) -> tuple[list[int], list[Tensor]]:
        """Propose draft tokens. Return them with the probabilities from which they were sampled."""
        if self.owner.context is not None:
            room = min(room, self.owner.context - len(text))
        assert self.job.prompts is not None
        n_prompt = len(self.job.prompts[self.place])
        tokens: list[int] = []
        chances: list[Tensor] = []
        for _ in range(min(self.owner.ahead, room)):
            scores_1V = draft.scores(text + tokens, 1)
            self._rules(scores_1V, (text + tokens)[n_prompt:])
            probs_V = self._probabilities(scores_1V)
            tokens.append(self._pick(probs_V))
            chances.append(probs_V)
            if tokens[-1] == self.job.specials.eos:
                break
        return tokens, chances

    def _checked(
        self, scores_TV: Tensor, guesses: list[int], guessed: list[Tensor], written: WrittenTokens
    ) -> list[tuple[int, float]]:
        """Verify draft tokens. Return the accepted ones and one more token, which replaces the
        first rejected one or follows the last."""
        found: list[tuple[int, float]] = []
        past = list(written.tokens)
        for at in range(len(guesses) + 1):
            scores_1V = scores_TV[at : at + 1]
            self._rules(scores_1V, past)
            probs_V = self._probabilities(scores_1V)
            right = at < len(guesses) and self._accepts(guesses[at], probs_V, guessed[at])
            if right:
                token = guesses[at]
            elif at < len(guesses):
                rest_V = (probs_V - guessed[at]).clamp(min=0.0)
                token = self._pick(rest_V if rest_V.sum() > 0 else probs_V)
            else:
                token = self._pick(probs_V)
            found.append((token, float(scores_1V[0, token])))
            past.append(token)
            if at < len(guesses):
                self.owner.proposed += 1
                self.owner.accepted += right
            if not right:
                break
        return found

    def _accepts(self, guess: int, probs_V: Tensor, guessed_V: Tensor) -> bool:
        if not self.job.settings.sample:
            return int(probs_V.argmax()) == guess
        return bool(self.dice.random() * guessed_V[guess] < probs_V[guess])

    def _probabilities(self, scores_1V: Tensor) -> Tensor:
        """Return the probabilities to sample from. In greedy decoding the most probable token has
        probability 1."""
        if self.job.settings.sample:
            return probabilities(scores_1V, self.job.settings)[0]
        best_V = torch.zeros_like(scores_1V[0], dtype=torch.double)
        best_V[scores_1V[0].argmax()] = 1.0
        return best_V

    def _pick(self, probs_V: Tensor) -> int:
        if not self.job.settings.sample:
            return int(probs_V.argmax())
        chance_1 = torch.tensor([self.dice.random()], dtype=torch.double, device=probs_V.device)
        return int(draw_tokens(probs_V[None], chance_1))

    def _rules(self, scores_1V: Tensor, past: list[int]) -> None:
        past_1T = torch.tensor([past], dtype=torch.long, device=scores_1V.device)
        self.job.logits_processors(scores_1V, past_1T, [self.place])


def check_draft(
    model: Decoder, draft: Decoder, context: int | None, draft_context: int | None
) -> None:
    """Raise a `UserError` unless the draft model has the vocabulary and the context length of the
    target model."""
    sizes = [part.front.vocab_size for part in (model, draft)]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"the draft model has a vocabulary of {sizes[1]:,} tokens and the model one of "
            f"{sizes[0]:,}, but both need the same vocabulary. Distil a draft from the model, or "
            "train one with the model's tokenizer."
        )
    if draft_context is not None and (context is None or draft_context < context):
        reads = "has no such limit" if context is None else f"accepts {context:,}"
        raise UserError(
            f"the draft model accepts at most {draft_context:,} tokens, but the model {reads}. Use "
            "a draft that was trained with the same max_len."
        )
