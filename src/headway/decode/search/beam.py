"""Beam search: compute scores, choose continuations, remove finished sources."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.decode.search.beam_step import BeamCandidates, Beams, grow, hypotheses
from headway.decode.search.hypothesis import Hypothesis
from headway.decode.search.job import Job
from headway.decode.search.observer import BeamStep, Observer
from headway.decode.search.top_k import top_k
from headway.decode.steps import DecodingSteps


def beam_search(
    steps: DecodingSteps, job: Job, observer: Observer | None = None
) -> list[list[Hypothesis]]:
    """Return the best outputs of each source. With several groups (diverse beam search), each has
    its own beam and avoids the tokens that earlier groups chose (Vijayakumar et al. 2016)."""
    settings, eos = job.settings, job.specials.eos
    room, width = max(job.limits), settings.beam // settings.groups
    device = steps.device
    sources = list(range(len(job.limits)))
    limit_B = torch.tensor(job.limits, device=device)
    groups = [Beams.start(limit_B, width, room) for _ in range(settings.groups)]
    tokens_BW = torch.full((len(sources), settings.beam), job.specials.bos, device=device)
    coverage = Coverage(settings.coverage)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for at in range(room):
        job.between_steps()
        scores_RV = steps.step(tokens_BW)
        past_RT = torch.cat([beams.tokens_BWT[:, :, :at] for beams in groups], 1).flatten(0, 1)
        job.logits_processors(scores_RV, past_RT, sources)
        bonus_BW = coverage.add(steps)
        scores_BWV = scores_RV.unflatten(0, (len(sources), -1))
        parents: list[Tensor] = []
        chosen: list[Tensor] = []
        price_BV = torch.zeros_like(scores_BWV[:, 0]) if len(groups) > 1 else None
        for number, beams in enumerate(groups):
            mine = slice(number * width, (number + 1) * width)
            going_B = ~beams.done_B
            found = _continuations(beams, scores_BWV[:, mine], price_BV)
            bonus_BC = None if bonus_BW is None else bonus_BW[:, mine].gather(1, found.parent_BC)
            beams, parents_BW = grow(
                beams, found, torch.tensor([at], device=device), eos=eos, penalty=job.penalty,
                bonus_BC=bonus_BC, stop_at=min(settings.n_best, width),
            )  # fmt: skip
            if observer is not None:
                observer.on_beam_step(BeamStep(at, number, sources, groups[number], scores_BWV[:,
                mine],
                                     price_BV, bonus_BC, found, beams))  # fmt: skip
            groups[number] = beams
            parents.append(parents_BW + number * width)
            chosen.append(beams.tokens_BWT[:, :, at])
            if price_BV is not None:
                paid_BW = beams.log_prob_BW.isfinite() & going_B[:, None]
                price_BV.scatter_add_(1, chosen[-1], settings.diversity * paid_BW)
        parents_BW, tokens_BW = torch.cat(parents, 1), torch.cat(chosen, 1)
        done_B = torch.stack([beams.done_B for beams in groups]).all(0)
        leaving = job.finished_sources(done_B, at, sources)
        if leaving:
            for place, found_here in zip(leaving, _take(groups, leaving, job), strict=True):
                results[sources[place]] = found_here
        staying = [place for place in range(len(sources)) if place not in set(leaving)]
        if not staying:
            break
        steps.reorder(parents_BW)
        coverage.reorder(parents_BW)
        if leaving:
            sources = [sources[place] for place in staying]
            index = torch.tensor(staying, device=device)
            groups = [beams.keep(index) for beams in groups]
            tokens_BW = tokens_BW[index]
            steps.keep(staying)
            coverage.keep(index)
    return results


def _continuations(beams: Beams, scores_BWV: Tensor, price_BV: Tensor | None) -> BeamCandidates:
    """The 2W best continuations of each source; `price_BV` penalises tokens that earlier groups
    chose."""
    width, vocab_size = scores_BWV.shape[1:]
    k = min(2 * width, vocab_size)
    if price_BV is None:
        candidates = top_k(scores_BWV.flatten(0, 1), k)
        values_BWC, tokens_BWC = (x.unflatten(0, (-1, width)) for x in candidates)
        return BeamCandidates.of(beams.log_prob_BW, values_BWC, tokens_BWC, None)
    tokens_BWC = (scores_BWV - price_BV[:, None]).topk(k).indices
    price_BWC = price_BV[:, None].expand_as(scores_BWV).gather(2, tokens_BWC)
    return BeamCandidates.of(
        beams.log_prob_BW, scores_BWV.gather(2, tokens_BWC), tokens_BWC, price_BWC
    )


def _take(groups: list[Beams], leaving: list[int], job: Job) -> list[list[Hypothesis]]:
    """The best outputs of the sources that leave."""
    index = torch.tensor(leaving, device=groups[0].done_B.device)
    taken = [beams.keep(index).cpu() for beams in groups]
    n_best = job.settings.n_best
    results = []
    for place in range(len(leaving)):
        found = [h for beams in taken for h in hypotheses(beams, place, n_best, job.penalty)]
        if len(groups) > 1:
            found.sort(key=lambda h: (not h.finished, -h.score))
        results.append(_different(found)[:n_best])
    return results


def _different(found: list[Hypothesis]) -> list[Hypothesis]:
    """Remove duplicates, which several groups may find."""
    first: dict[tuple[int, ...], Hypothesis] = {}
    for h in found:
        first.setdefault((*h.tokens, h.finished), h)
    return list(first.values())


class Coverage:
    """Attention of each hypothesis on each source token so far, for the coverage penalty."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.got_BWS: Tensor | None = None

    def add(self, steps: DecodingSteps) -> Tensor | None:
        """Add the attention of the last step; return the penalty for ending now (None if
        disabled)."""
        if not self.weight:
            return None
        attention_BWS = steps.attention_BWS
        self.got_BWS = attention_BWS if self.got_BWS is None else self.got_BWS + attention_BWS
        # Softmax gives every real token a positive weight; padding has exactly 0.
        return coverage_penalty(self.got_BWS, attention_BWS > 0, self.weight)

    def reorder(self, parents_BW: Tensor) -> None:
        if self.got_BWS is not None:
            self.got_BWS = self.got_BWS.gather(1, parents_BW[:, :, None].expand_as(self.got_BWS))

    def keep(self, index_B: Tensor) -> None:
        if self.got_BWS is not None:
            self.got_BWS = self.got_BWS[index_B]


def coverage_penalty(attention_S: Tensor, real_S: Tensor, weight: float) -> Tensor:
    """Coverage penalty of GNMT: `weight` · Σ log min(attention on a source token, 1), at most 0.

    `attention_S` is summed over target tokens; `real_S` is True where there is a source token.
    """
    # The clamp keeps the penalty of a token without attention finite.
    lack_S = attention_S.clamp(1e-9, 1.0).log().masked_fill(~real_S, 0.0)
    return weight * lack_S.sum(-1)
