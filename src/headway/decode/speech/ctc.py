"""CTC decoding: best path, prefix search with CTC alone, and joint CTC/attention decoding (Watanabe
et al. 2017).

CTC gives the probability that a transcript starts with given tokens, so it can score the next token
as a decoder does. It implements `DecodingSteps`, so a search can use it alone or combined with a
decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import Searcher, StepsConfig
from headway.decode.steps import DecodingSteps, Seq2SeqSteps
from headway.models.seq2seq import Seq2Seq
from headway.nn.ctc import PrefixScorer, align
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings

RowRanges = list[tuple[int, int]]
"""For each token, its first encoder position and the position after its last."""

LEAST = -1e5
"""Finite substitute for the logarithm of zero, so that differences are defined."""


class CtcSteps:
    """`DecodingSteps` of CTC, which score the next token of W prefixes for each of B recordings."""

    def __init__(self, scorer: PrefixScorer, n_sources: int, width: int) -> None:
        self.scorer, self.width = scorer, width
        self.device = scorer.log_BTV.device
        self.chance_BTV = scorer.log_BTV[:, :, : scorer.blank].double().exp()
        every_B = torch.arange(n_sources, device=self.device)
        self.state = scorer.start(every_B.repeat_interleave(width))
        self.from_H = torch.arange(n_sources * width, device=self.device)
        """Index of the prefix state that each hypothesis extends. Beam search reorders these
        indices."""

        self.begun = False

    @property
    def attention_BWS(self) -> Tensor:
        raise NotImplementedError("CTC decoding has no cross-attention")

    def step(self, tokens_BW: Tensor) -> Tensor:
        """Score the next tokens, as `DecodingSteps.step` does. The first call gets the begin
        tokens, which CTC does not score."""
        if self.begun:
            self.state = self.scorer.advance(self.state, self.from_H, tokens_BW.flatten())
        else:
            self.state = self.scorer.start(self.state.number_H[self.from_H])
        self.from_H = torch.arange(tokens_BW.numel(), device=self.device)
        self.begun = True
        state = self.state
        next_HV = self._next(torch.logaddexp(state.symbol_HT, state.blank_HT))
        # In CTC, a token can follow itself only after a blank.
        last_H1 = state.last_H.clamp(min=0)[:, None]
        again_H1 = self.scorer.scores(state, last_H1).double()
        again_H1 = again_H1.where(state.last_H[:, None] >= 0, next_HV.gather(1, last_H1))
        next_HV.scatter_(1, last_H1, again_H1)
        next_HV[:, self.scorer.end] = self.scorer.final_scores(state)
        found_HV = next_HV - state.score_H[:, None]
        return found_HV.nan_to_num(nan=-torch.inf).clamp(max=0.0).float()

    def _next(self, ways_HT: Tensor) -> Tensor:
        """Return the log-probability of each prefix extended by each token. It is a sum over the
        positions where the token could start, computed as one matrix product."""
        ways_HT = ways_HT[:, :-1]  # no token can start after the end of a recording
        top_H1 = ways_HT.amax(1, keepdim=True).clamp(min=LEAST)
        ways_BWT = (ways_HT - top_H1).exp().unflatten(0, (-1, self.width))
        sums_BWV = ways_BWT @ self.chance_BTV[self.state.number_H[:: self.width]]
        return sums_BWV.flatten(0, 1).log() + top_H1

    def reorder(self, parents_BW: Tensor) -> None:
        first_B1 = torch.arange(len(parents_BW), device=self.device)[:, None] * self.width
        self.from_H = self.from_H[(parents_BW + first_B1).flatten()]

    def keep(self, sources: Sequence[int]) -> None:
        index_B = torch.tensor(sources, dtype=torch.long, device=self.device)
        self.from_H = self.from_H.unflatten(0, (-1, self.width))[index_B].flatten()


class JointSteps:
    """Weighted sum of the scores of two `DecodingSteps`: (1 − weight) · log P + weight · log P of
    `other`.

    `skip`: number of leading tokens that `other` does not score, such as the fixed start of every
    output of an imported model.
    """

    def __init__(
        self, steps: DecodingSteps, other: DecodingSteps, weight: float, skip: int = 0
    ) -> None:
        self.steps, self.other, self.weight, self.skip = steps, other, weight, skip
        self.device, self.at = steps.device, 0

    @property
    def attention_BWS(self) -> Tensor:
        return self.steps.attention_BWS

    def step(self, tokens_BW: Tensor) -> Tensor:
        scores_RV = self.steps.step(tokens_BW)
        self.at += 1
        if self.at <= self.skip:
            return scores_RV
        other_RV = self.other.step(tokens_BW)
        return scores_RV.mul_(1.0 - self.weight).add_(other_RV, alpha=self.weight)

    def reorder(self, parents_BW: Tensor) -> None:
        self.steps.reorder(parents_BW)
        self.other.reorder(parents_BW)

    def keep(self, sources: Sequence[int]) -> None:
        self.steps.keep(sources)
        self.other.keep(sources)


class JointSearcher(Searcher):
    """`Searcher` for a model whose encoder has a CTC head. A CTC weight of 0 disables the head."""

    def __init__(
        self, model: Seq2Seq, settings: DecodeSettings, specials: SpecialTokens, weight: float
    ) -> None:
        super().__init__([model], settings, specials)
        self.weight = weight
        if weight:
            self.graph_searcher = None  # CUDA graphs do not include CTC

    def steps(self, sources: Sequence[Any], begin: StepsConfig) -> DecodingSteps:
        steps = super().steps(sources, begin)
        if not self.weight:
            return steps
        assert isinstance(steps, Seq2SeqSteps)
        head = steps.model.ctc
        assert head is not None, "a CTC weight needs a CTC head"
        scores_MV = head(steps.memory.x_MD)
        return join_ctc_steps(
            steps, scores_MV, steps.memory.layout, self.specials, self.weight, begin.width
        )


def join_ctc_steps(
    steps: DecodingSteps,
    scores_MV: Tensor,
    rows: Layout,
    specials: SpecialTokens,
    weight: float,
    width: int,
) -> JointSteps:
    """Combine the steps of a decoder with those of CTC, given the CTC log-probabilities at each
    position."""
    scorer = PrefixScorer(scores_MV, rows, scores_MV.shape[1] - 1, specials.eos)
    other = CtcSteps(scorer, rows.n_sequences, width)
    return JointSteps(steps, other, weight, 0 if specials.target_begin is None else 1)


def best_path(logs_SV: Tensor) -> Hypothesis:
    """Return the most probable token at every position, with repeats merged and blanks removed."""
    best_S, token_S = logs_SV.max(-1)
    blank = logs_SV.shape[1] - 1
    tokens: list[int] = []
    log_probs: list[float] = []
    before = blank
    for token, log_prob in zip(token_S.tolist(), best_S.tolist(), strict=True):
        if token != before and token != blank:
            tokens.append(token)
            log_probs.append(log_prob)
        elif token != blank:
            log_probs[-1] = max(log_probs[-1], log_prob)
        before = token
    total = sum(log_probs)
    return Hypothesis(tokens, total, total, log_probs, finished=True)


def ctc_alignment(logs_SV: Tensor, tokens: Sequence[int]) -> RowRanges:
    """Return the range of encoder positions of each token, by CTC forced alignment."""
    found = align(logs_SV, tokens, logs_SV.shape[1] - 1)
    if found is None:  # more tokens than positions, which only a decoder can produce
        step = len(logs_SV) / max(1, len(tokens))
        return [(int(i * step), int((i + 1) * step)) for i in range(len(tokens))]
    return [(first, last + 1) for first, last in zip(found.first, found.last, strict=True)]
