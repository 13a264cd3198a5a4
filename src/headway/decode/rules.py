"""What may not come next, or only at a price: small functions that change scores, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headway.config.decode import DecodeSettings
from headway.decode.hypothesis import Phrase, Specials, Wish

Rule = Callable[[Tensor, Tensor, Sequence[int]], None]
"""Changes log-probabilities (R V) in place, given the tokens so far (R T) and the numbers of the
sources, whose hypotheses are R / B rows each."""


class Rules:
    """All rules of a batch. A forced prefix comes before everything that is banned."""

    def __init__(
        self, settings: DecodeSettings, specials: Specials, wishes: Sequence[Wish]
    ) -> None:
        never = [specials.bos] + [specials.unk] * (settings.unknown == "ban")
        self.rules = [ban_tokens(never)]
        if settings.min_len:
            self.rules.append(min_length(settings.min_len, specials.eos))
        if settings.repetition_penalty != 1.0:
            self.rules.append(penalise_repetition(settings.repetition_penalty))
        if settings.no_repeat_ngram:
            self.rules.append(ban_repeated(settings.no_repeat_ngram))
        if any(wish.banned for wish in wishes):
            self.rules.append(ban_phrases([wish.banned for wish in wishes]))
        self.prefixes = [wish.prefix for wish in wishes]
        self.longest_prefix = max(map(len, self.prefixes), default=0)

    def __call__(self, scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        """`Rule`."""
        forced = list(self._forced(scores_RV, tokens_RT, sources))
        for rule in self.rules:
            rule(scores_RV, tokens_RT, sources)
        for rows, token, kept_W in forced:
            scores_RV[rows] = -torch.inf
            scores_RV[rows, token] = kept_W

    def _forced(
        self, scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]
    ) -> Iterator[tuple[slice, int, Tensor]]:
        """Rows, the one token they may go on with, and the log-probabilities it has there."""
        at = tokens_RT.shape[1]
        if at >= self.longest_prefix:
            return
        width = len(tokens_RT) // len(sources)
        for place, number in enumerate(sources):
            if at < len(self.prefixes[number]):
                rows, token = slice(place * width, (place + 1) * width), self.prefixes[number][at]
                yield rows, token, scores_RV[rows, token].clone()


def ban_tokens(tokens: Sequence[int]) -> Rule:
    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        for token in tokens:
            scores_RV[:, token] = -torch.inf

    return rule


def min_length(length: int, eos: int) -> Rule:
    """No end before this many tokens."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] < length:
            scores_RV[:, eos] = -torch.inf

    return rule


def penalise_repetition(penalty: float) -> Rule:
    """The log-probability of a token that was used is multiplied by the penalty."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        used_RT = scores_RV.gather(1, tokens_RT)
        scores_RV.scatter_(1, tokens_RT, used_RT * penalty)

    return rule


def ban_repeated(length: int) -> Rule:
    """No sequence of this many tokens comes twice."""

    def rule(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
        if tokens_RT.shape[1] < length:
            return
        seen_RNL = tokens_RT.unfold(1, length, 1)
        last_R1L = tokens_RT[:, None, tokens_RT.shape[1] - length + 1 :]
        row, place = (seen_RNL[:, :, :-1] == last_R1L).all(-1).nonzero(as_tuple=True)
        scores_RV[row, seen_RNL[row, place, -1]] = -torch.inf

    return rule


def ban_phrases(phrases: Sequence[Sequence[Phrase]]) -> Rule:
    """Per source: sequences of tokens that never become complete."""

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
