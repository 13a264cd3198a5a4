"""Special tokens, constraints and logits processors for generated text.

Logits processors ban or penalize tokens before the next token is chosen. Constraints are given as
text: a prefix, required phrases and banned phrases. A word can often be tokenized in several ways,
so bans cover all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from headway.errors import UserError
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer


class SpecialTokens(NamedTuple):
    bos: int
    eos: int
    unk: int
    target_begin: int | None = None
    """First token of every output; None if the model chooses it."""

    banned: tuple[int, ...] = ()
    """Tokens that never occur in an output."""

    never_first: tuple[int, ...] = ()
    """Tokens that cannot come first in an output (after `target_begin`)."""

    writes_bos: bool = False
    """Whether outputs may contain `bos`, as in `generate` of Hugging Face Transformers."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, end: int | None = None) -> SpecialTokens:
        """Return the special tokens of a tokenizer. `end`: token that ends an output, instead of
        the end-of-text token."""
        return cls(
            bos=tokenizer.bos,
            eos=tokenizer.eos if end is None else end,
            unk=tokenizer.unk,
            target_begin=tokenizer.target_begin,
            banned=(*tokenizer.banned, *tokenizer.unwritten),
            never_first=tokenizer.never_first,
            writes_bos=tokenizer.roles is not None and tokenizer.roles.before is not None,
        )


Phrase = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TokenConstraints:
    """Constraints on the outputs of one source, as tokens."""

    prefix: Phrase = ()
    """Tokens with which the output starts."""

    required: tuple[Phrase, ...] = ()
    """Phrases that the output must contain, without overlapping each other."""

    banned: tuple[Phrase, ...] = ()
    """Phrases that the output must not contain."""

    def __post_init__(self) -> None:
        if () in self.required or () in self.banned:
            raise ValueError("required and banned phrases must contain at least one token")


NO_CONSTRAINTS = TokenConstraints()


@dataclass(frozen=True, kw_only=True)
class TextConstraints:
    """Constraints on the outputs of one source, as text."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()

    def tokenize(self, target: Tokenizer) -> TokenConstraints:
        if self == NO_TEXT_CONSTRAINTS:
            return NO_CONSTRAINTS
        phrases = [tuple(target.encode(phrase)) for phrase in self.required]
        return TokenConstraints(
            prefix=tuple(target.encode(self.prefix)) if self.prefix else (),
            required=tuple(phrase for phrase in phrases if phrase),
            banned=banned_phrases(self.banned, target),
        )


NO_TEXT_CONSTRAINTS = TextConstraints()


def next_constraints(
    wishes: Iterator[TextConstraints] | None, n_lines: int, first: int
) -> list[TextConstraints]:
    if wishes is None:
        return [NO_TEXT_CONSTRAINTS] * n_lines
    found = list(islice(wishes, n_lines))
    if len(found) < n_lines:
        raise UserError(
            f"prefixes or constraints are given for only {first + len(found):,} lines, but the "
            "input has more. Give one per input line, and an empty one for lines without a "
            "constraint."
        )
    return found


def banned_phrases(phrases: Sequence[str], target: Tokenizer) -> tuple[Phrase, ...]:
    """Return the usual tokenization of each banned phrase. Other tokenizations are found by
    `violated_bans` when they occur."""
    found = [tuple(target.encode(phrase)) for phrase in phrases]
    return tuple(dict.fromkeys(tokens for tokens in found if tokens))


def violated_bans(
    tokens: Sequence[int], phrases: Sequence[str], target: Tokenizer
) -> tuple[Phrase, ...]:
    """Return the token sequences in this output that spell a banned phrase and must be banned as
    well."""
    return tuple(
        _span(tokens, way, target)
        for way in (_as_words(target.normalise(phrase)) for phrase in phrases if phrase.strip())
        if way.search(target.decode(tokens))
    )


def _as_words(phrase: str) -> re.Pattern[str]:
    """Return a pattern that matches a phrase as whole words, so that "cat" does not match
    "category"."""
    words = r"\s+".join(re.escape(word) for word in phrase.split())
    return re.compile(rf"(?<!\w){words}(?!\w)")


def _span(tokens: Sequence[int], way: re.Pattern[str], target: Tokenizer) -> Phrase:
    """Return the shortest token sequence that contains the first occurrence of the phrase."""
    end = next(n for n in range(1, len(tokens) + 1) if _writes(tokens[:n], tokens, way, target))
    start = max((n for n in range(end) if way.search(target.decode(tokens[n:end]))), default=0)
    return tuple(tokens[start:end])


def _writes(
    head: Sequence[int], tokens: Sequence[int], way: re.Pattern[str], target: Tokenizer
) -> bool:
    """Return whether these tokens contain the whole phrase as words, not as the start of a longer
    word."""
    found = way.search(target.decode(head))
    whole = way.search(target.decode(tokens))
    return found is not None and whole is not None and found.start() == whole.start()


LogitsProcessor = Callable[[Tensor, Tensor, Sequence[int]], None]
"""Function that changes log-probabilities (R V) in place.

Arguments: the log-probabilities, the tokens generated so far (R T), and the indices of the B
sources. Each source has R / B consecutive rows, one per hypothesis.
"""


class LogitsProcessors:
    """All logits processors of a batch, combined into one. A forced prefix overrides every ban."""

    def __init__(
        self,
        settings: DecodeSettings,
        specials: SpecialTokens,
        wishes: Sequence[TokenConstraints],
        prompts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Create the processors for these settings.

        `prompts`: texts before the outputs, whose tokens count as used in the rules against
        repetition.
        """
        self.processors = [ban_tokens(always_banned(settings, specials))]
        if settings.min_len:
            self.processors.append(min_length(settings.min_len, specials.eos))
        if specials.never_first:
            begun = 0 if specials.target_begin is None else 1
            self.processors.append(only_at(begun, ban_tokens(specials.never_first)))
        before = PromptHistory(prompts)
        if settings.repetition_penalty != 1.0:
            self.processors.append(
                before.with_history(penalise_repetition(settings.repetition_penalty))
            )
        if settings.no_repeat_ngram:
            self.processors.append(before.with_history(ban_repeated(settings.no_repeat_ngram)))
        if any(wish.banned for wish in wishes):
            self.processors.append(ban_phrases([wish.banned for wish in wishes]))
        self.first = specials.target_begin
        self.prefixes = [wish.prefix for wish in wishes]
        self.longest_prefix = max(map(len, self.prefixes), default=0)

    def __call__(self, scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        """Apply all processors to the log-probabilities in place, as a `LogitsProcessor`."""
        forced = list(self._forced(scores_RV, tokens_RT, sources))
        for one in self.processors:
            one(scores_RV, tokens_RT, sources)
        for rows, token, kept_W in forced:
            scores_RV[rows] = -torch.inf
            scores_RV[rows, token] = kept_W

    def _forced(
        self, scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]
    ) -> Iterator[tuple[slice, int, Tensor]]:
        """Yield the rows with a forced token, that token, and its log-probabilities in these
        rows."""
        at = tokens_RT.shape[1]
        if at >= self.longest_prefix:
            return
        width = len(tokens_RT) // len(sources)
        for place, number in enumerate(sources):
            if at < len(self.prefixes[number]):
                rows, token = slice(place * width, (place + 1) * width), self.prefixes[number][at]
                kept_W = scores_RV[rows, token].clone()
                # The begin token is the same in every output, so its probability is 1.
                yield rows, token, kept_W.zero_() if at == 0 and token == self.first else kept_W


NO_TOKEN = -1
"""Padding value for prompts that are shorter than the longest one. It is not a valid token id."""


class PromptHistory:
    """Logits processor that passes the prompts and the outputs to another processor as one text."""

    def __init__(self, prompts: Sequence[Sequence[int]] | None) -> None:
        self.prompts_BP: Tensor | None = None
        if prompts:
            longest = max(map(len, prompts))
            rows = [[NO_TOKEN] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
            self.prompts_BP = torch.tensor(rows)

    def with_history(self, inner: LogitsProcessor) -> LogitsProcessor:
        if self.prompts_BP is None:
            return inner
        prompts_BP = self.prompts_BP

        def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
            mine_BP = prompts_BP[list(sources)].to(tokens_RT.device)
            mine_RP = mine_BP.repeat_interleave(len(tokens_RT) // len(sources), 0)
            inner(scores_RV, torch.cat([mine_RP, tokens_RT], 1), sources)

        return rule


def always_banned(settings: DecodeSettings, specials: SpecialTokens) -> list[int]:
    """Return the tokens that no output may contain. The end token is allowed even if it doubles as
    `bos` and `unk`, as in GPT-2."""
    found = set(specials.banned) if specials.writes_bos else {specials.bos, *specials.banned}
    found |= {specials.unk} if settings.unknown == "ban" else set()
    return sorted(found - {specials.eos})


def ban_tokens(tokens: Sequence[int]) -> LogitsProcessor:
    index_K = torch.tensor(tokens, dtype=torch.long)

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        nonlocal index_K
        index_K = index_K.to(scores_RV.device)
        scores_RV.index_fill_(1, index_K, -torch.inf)

    return rule


def only_at(place: int, inner: LogitsProcessor) -> LogitsProcessor:
    """Make a logits processor that applies the processor `inner` only at output position `place`,
    counted from 0."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] == place:
            inner(scores_RV, tokens_RT, sources)

    return rule


def min_length(length: int, eos: int) -> LogitsProcessor:
    """Make a logits processor that bans the end token until the output has this number of
    tokens."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] < length:
            scores_RV[:, eos] = -torch.inf

    return rule


def penalise_repetition(penalty: float) -> LogitsProcessor:
    """Make a logits processor that multiplies the log-probability of every used token by a
    repetition penalty."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        # Replace padding by the last token. Repeating it has no effect, because each token is
        # penalized once.
        tokens_RT = tokens_RT.where(tokens_RT != NO_TOKEN, tokens_RT[:, -1:])
        used_RT = scores_RV.gather(1, tokens_RT)
        scores_RV.scatter_(1, tokens_RT, used_RT * penalty)

    return rule


def ban_repeated(length: int) -> LogitsProcessor:
    """Make a logits processor that bans tokens that would repeat an n-gram of this length."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] < length:
            return
        seen_RNL = tokens_RT.unfold(1, length, 1)
        last_R1L = tokens_RT[:, None, tokens_RT.shape[1] - length + 1 :]
        again_RN = (seen_RNL[:, :, :-1] == last_R1L).all(-1) & (seen_RNL != NO_TOKEN).all(-1)
        row, place = again_RN.nonzero(as_tuple=True)
        scores_RV[row, seen_RNL[row, place, -1]] = -torch.inf

    return rule


def ban_phrases(phrases: Sequence[Sequence[Phrase]]) -> LogitsProcessor:
    """Make a logits processor that bans the last token of a phrase when the output ends with the
    rest of that phrase. Each source has its own phrases."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        width, length = len(tokens_RT) // len(sources), tokens_RT.shape[1]
        for place, number in enumerate(sources):
            rows = slice(place * width, (place + 1) * width)
            for *before, last in phrases[number]:
                if len(before) > length:
                    continue
                tail_WL = tokens_RT[rows, length - len(before) :]
                begun_W = (tail_WL == tail_WL.new_tensor(before)).all(-1)
                scores_RV[rows, last].masked_fill_(begun_W, -torch.inf)

    return rule
