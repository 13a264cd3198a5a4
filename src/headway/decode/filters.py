"""Logits processors: functions that ban or penalise tokens before the next one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headway.decode.search.hypothesis import Phrase, Specials, Wish
from headway.settings.decode import DecodeSettings

Filter = Callable[[Tensor, Tensor, Sequence[int]], None]
"""Changes log-probabilities (R V) in place, given the tokens so far (R T) and the numbers of the
sources, whose hypotheses are R / B rows each."""


class Filters:
    """All logits processors of a batch. A forced prefix overrides every ban."""

    def __init__(
        self,
        settings: DecodeSettings,
        specials: Specials,
        wishes: Sequence[Wish],
        prompts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`prompts` precede the outputs; the rules against repetition count their tokens as
        used."""
        self.filters = [ban_tokens(never(settings, specials))]
        if settings.min_len:
            self.filters.append(min_length(settings.min_len, specials.eos))
        if specials.never_first:
            begun = 0 if specials.target_begin is None else 1
            self.filters.append(only_at(begun, ban_tokens(specials.never_first)))
        before = Before(prompts)
        if settings.repetition_penalty != 1.0:
            self.filters.append(before.counted(penalise_repetition(settings.repetition_penalty)))
        if settings.no_repeat_ngram:
            self.filters.append(before.counted(ban_repeated(settings.no_repeat_ngram)))
        if any(wish.banned for wish in wishes):
            self.filters.append(ban_phrases([wish.banned for wish in wishes]))
        self.first = specials.target_begin
        self.prefixes = [wish.prefix for wish in wishes]
        self.longest_prefix = max(map(len, self.prefixes), default=0)

    def __call__(self, scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        """`Filter`."""
        forced = list(self._forced(scores_RV, tokens_RT, sources))
        for one in self.filters:
            one(scores_RV, tokens_RT, sources)
        for rows, token, kept_W in forced:
            scores_RV[rows] = -torch.inf
            scores_RV[rows, token] = kept_W

    def _forced(
        self, scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]
    ) -> Iterator[tuple[slice, int, Tensor]]:
        """Yield rows with a forced token, that token, and its log-probabilities there."""
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


NOTHING = -1
"""Padding of prompts that are shorter than the longest; not a token id."""


class Before:
    """Prepends the prompts to the tokens that a logits processor sees."""

    def __init__(self, prompts: Sequence[Sequence[int]] | None) -> None:
        self.prompts_BP: Tensor | None = None
        if prompts:
            longest = max(map(len, prompts))
            rows = [[NOTHING] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
            self.prompts_BP = torch.tensor(rows)

    def counted(self, inner: Filter) -> Filter:
        if self.prompts_BP is None:
            return inner
        prompts_BP = self.prompts_BP

        def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
            mine_BP = prompts_BP[list(sources)].to(tokens_RT.device)
            mine_RP = mine_BP.repeat_interleave(len(tokens_RT) // len(sources), 0)
            inner(scores_RV, torch.cat([mine_RP, tokens_RT], 1), sources)

        return rule


def never(settings: DecodeSettings, specials: Specials) -> list[int]:
    """Tokens that no output may contain. The end token is allowed even if it is also `bos` and
    `unk`
    (as in GPT-2)."""
    found = set(specials.banned) if specials.writes_bos else {specials.bos, *specials.banned}
    found |= {specials.unk} if settings.unknown == "ban" else set()
    return sorted(found - {specials.eos})


def ban_tokens(tokens: Sequence[int]) -> Filter:
    index_K = torch.tensor(tokens, dtype=torch.long)

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        nonlocal index_K
        index_K = index_K.to(scores_RV.device)
        scores_RV.index_fill_(1, index_K, -torch.inf)

    return rule


def only_at(place: int, inner: Filter) -> Filter:
    """Apply a rule only to the token at this position, counted from 0."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] == place:
            inner(scores_RV, tokens_RT, sources)

    return rule


def min_length(length: int, eos: int) -> Filter:
    """Ban the end token before this many tokens."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] < length:
            scores_RV[:, eos] = -torch.inf

    return rule


def penalise_repetition(penalty: float) -> Filter:
    """Multiply the log-probability of every token that was used by the penalty."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        # Replace padding by the last token, which counts once however often it occurs.
        tokens_RT = tokens_RT.where(tokens_RT != NOTHING, tokens_RT[:, -1:])
        used_RT = scores_RV.gather(1, tokens_RT)
        scores_RV.scatter_(1, tokens_RT, used_RT * penalty)

    return rule


def ban_repeated(length: int) -> Filter:
    """Ban tokens that would repeat an n-gram of this length."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] < length:
            return
        seen_RNL = tokens_RT.unfold(1, length, 1)
        last_R1L = tokens_RT[:, None, tokens_RT.shape[1] - length + 1 :]
        again_RN = (seen_RNL[:, :, :-1] == last_R1L).all(-1) & (seen_RNL != NOTHING).all(-1)
        row, place = again_RN.nonzero(as_tuple=True)
        scores_RV[row, seen_RNL[row, place, -1]] = -torch.inf

    return rule


def ban_phrases(phrases: Sequence[Sequence[Phrase]]) -> Filter:
    """Ban the last token of each phrase wherever the rest of it was just written, per source."""

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
