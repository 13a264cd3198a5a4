"""Beam search on tensors, as in the code of the Transformer paper.

Each source has k alive hypotheses. Each step takes their 2k best continuations. Continuations that
end join the set of the k best finished hypotheses, ranked by penalized score. The k best of the
others stay alive. A source is done when its best finished score exceeds what its best alive
hypothesis could still reach: log P / lp(maximum length).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from headway.decode.search.job import BeamStep, Hypothesis, Job, Observer, Penalty, top_k
from headway.decode.steps import DecodingSteps


def beam_search(
    steps: DecodingSteps, job: Job, observer: Observer | None = None
) -> list[list[Hypothesis]]:
    """Return the best outputs of each source.

    Diverse beam search uses several groups. Each group has a beam of its own, and avoids tokens
    that earlier groups chose at this step (Vijayakumar et al. 2016).
    """
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
    """Return the 2W best continuations of each source. `price_BV`: penalty on tokens that earlier
    groups chose."""
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
    """Remove finished sources from the batch and return their best outputs."""
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
    """Remove duplicate outputs, which occur if groups of diverse beam search find the same text."""
    first: dict[tuple[int, ...], Hypothesis] = {}
    for h in found:
        first.setdefault((*h.tokens, h.finished), h)
    return list(first.values())


class Coverage:
    """Sum of the attention of each hypothesis on each source token, for the coverage penalty."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.got_BWS: Tensor | None = None

    def add(self, steps: DecodingSteps) -> Tensor | None:
        """Add the attention of the last step. Return the coverage penalty of ending now, or None if
        the penalty is disabled."""
        if not self.weight:
            return None
        attention_BWS = steps.attention_BWS
        self.got_BWS = attention_BWS if self.got_BWS is None else self.got_BWS + attention_BWS
        # Padding is exactly where attention is 0, because softmax gives every source token a
        # positive weight.
        return coverage_penalty(self.got_BWS, attention_BWS > 0, self.weight)

    def reorder(self, parents_BW: Tensor) -> None:
        if self.got_BWS is not None:
            self.got_BWS = self.got_BWS.gather(1, parents_BW[:, :, None].expand_as(self.got_BWS))

    def keep(self, index_B: Tensor) -> None:
        if self.got_BWS is not None:
            self.got_BWS = self.got_BWS[index_B]


def coverage_penalty(attention_S: Tensor, real_S: Tensor, weight: float) -> Tensor:
    """Return the coverage penalty of GNMT, at most 0: `weight` · Σ log min(attention on a source
    token, 1).

    `attention_S`: attention summed over target tokens. `real_S`: False for padding.
    """
    # Clamp, because the logarithm of 0 (a token without attention) is not finite.
    lack_S = attention_S.clamp(1e-9, 1.0).log().masked_fill(~real_S, 0.0)
    return weight * lack_S.sum(-1)


@dataclass(frozen=True)
class Beams:
    """State of a beam search: B sources with W hypotheses each, of at most T tokens. Unused slots
    have log-probability −∞."""

    tokens_BWT: Tensor
    token_log_probs_BWT: Tensor
    log_prob_BW: Tensor
    ended_tokens_BWT: Tensor
    ended_token_log_probs_BWT: Tensor
    ended_log_prob_BW: Tensor
    ended_score_BW: Tensor
    """Penalized scores of finished hypotheses, best first."""

    ended_length_BW: Tensor
    """Lengths of finished hypotheses, including the end token."""

    limit_B: Tensor
    """Maximum number of tokens of an output of each source, including the end token."""

    done_B: Tensor
    length_B: Tensor
    """Number of tokens of the alive hypotheses. It no longer changes once the source is done."""

    @classmethod
    def start(cls, limit_B: Tensor, width: int, room: int) -> Beams:
        n_sources, device = len(limit_B), limit_B.device
        shape = (n_sources, width)
        log_prob_BW = torch.full(shape, -torch.inf, device=device)
        log_prob_BW[:, 0] = 0.0  # all start the same, so only one is alive
        nothing_BW = torch.full(shape, -torch.inf, device=device)
        return cls(
            tokens_BWT=torch.zeros(*shape, room, dtype=torch.long, device=device),
            token_log_probs_BWT=torch.zeros(*shape, room, device=device),
            log_prob_BW=log_prob_BW,
            ended_tokens_BWT=torch.zeros(*shape, room, dtype=torch.long, device=device),
            ended_token_log_probs_BWT=torch.zeros(*shape, room, device=device),
            ended_log_prob_BW=nothing_BW,
            ended_score_BW=nothing_BW.clone(),
            ended_length_BW=torch.zeros(shape, dtype=torch.long, device=device),
            limit_B=limit_B,
            done_B=torch.zeros(n_sources, dtype=torch.bool, device=device),
            length_B=torch.zeros(n_sources, dtype=torch.long, device=device),
        )

    def keep(self, index_B: Tensor) -> Beams:
        return Beams(**{field.name: getattr(self, field.name)[index_B] for field in fields(self)})

    def cpu(self) -> Beams:
        return Beams(**{field.name: getattr(self, field.name).cpu() for field in fields(self)})


@dataclass(frozen=True)
class BeamCandidates:
    """The C = 2W best continuations of each source, best first."""

    parent_BC: Tensor
    token_BC: Tensor
    token_log_prob_BC: Tensor
    log_prob_BC: Tensor

    @classmethod
    def of(
        cls,
        log_prob_BW: Tensor,
        candidates_BWC: Tensor,
        tokens_BWC: Tensor,
        price_BWC: Tensor | None,
    ) -> BeamCandidates:
        """Choose the best continuations from the best next tokens of each hypothesis.

        `price_BWC`: penalty that affects the choice only, not the stored log-probabilities.
        """
        n_candidates = candidates_BWC.shape[2]
        total_BN = (log_prob_BW[:, :, None] + candidates_BWC).flatten(1)
        rank_BN = total_BN if price_BWC is None else total_BN - price_BWC.flatten(1)
        chosen_BC = rank_BN.topk(min(2 * log_prob_BW.shape[1], rank_BN.shape[1])).indices
        return cls(
            parent_BC=chosen_BC // n_candidates,
            token_BC=tokens_BWC.flatten(1).gather(1, chosen_BC),
            token_log_prob_BC=candidates_BWC.flatten(1).gather(1, chosen_BC),
            log_prob_BC=total_BN.gather(1, chosen_BC),
        )


def grow(
    beams: Beams, found: BeamCandidates, at_1: Tensor, *, eos: int, penalty: Penalty,
    bonus_BC: Tensor | None = None, stop_at: int = 1,
) -> tuple[Beams, Tensor]:  # fmt: skip
    """Advance the beams by one step. Return the new beams, and the index of each alive hypothesis'
    parent.

    `at_1`: number of tokens of the alive hypotheses before this step, as a tensor on the device.
    `bonus_BC`: added to the score of a continuation that ends. `stop_at`: a source is done when
    this many finished hypotheses can no longer be beaten.
    """
    going_B = ~beams.done_B
    ends_BC = (found.token_BC == eos) & found.log_prob_BC.isfinite() & going_B[:, None]
    ended = _ended(beams, found, ends_BC, at_1, penalty, bonus_BC)
    width = beams.log_prob_BW.shape[1]
    alive_index = _first_alive(found, eos, width)
    alive_BW = found.log_prob_BC.masked_fill(found.token_BC == eos, -torch.inf).gather(
        1, alive_index
    )
    # If the rules ban every token, the hypothesis is finished as it is.
    stuck_B = alive_BW[:, 0].isneginf() & ended.ended_score_BW[:, 0].isneginf()
    going_B = going_B & ~stuck_B
    stays_BW = torch.arange(width, device=at_1.device).expand_as(beams.log_prob_BW)
    going_B1 = going_B[:, None]
    parents_BW = found.parent_BC.gather(1, alive_index).where(going_B1, stays_BW)
    log_prob_BW = alive_BW.where(going_B1, beams.log_prob_BW)
    length_B = beams.length_B + going_B
    limit_B = beams.limit_B
    safe_B = ended.ended_score_BW[:, stop_at - 1] > log_prob_BW[:, 0] / penalty(limit_B)
    return (
        replace(
            ended,
            tokens_BWT=_extended(
                beams.tokens_BWT, parents_BW, found.token_BC.gather(1, alive_index), at_1
            ),
            token_log_probs_BWT=_extended(
                beams.token_log_probs_BWT,
                parents_BW,
                found.token_log_prob_BC.gather(1, alive_index),
                at_1,
            ),
            log_prob_BW=log_prob_BW,
            length_B=length_B,
            done_B=beams.done_B
            | stuck_B
            | safe_B
            | (length_B >= limit_B)
            | log_prob_BW[:, 0].isneginf(),
        ),
        parents_BW,
    )


def _ended(
    beams: Beams, found: BeamCandidates, ends_BC: Tensor, at_1: Tensor, penalty: Penalty,
    bonus_BC: Tensor | None,
) -> Beams:  # fmt: skip
    """Add the continuations that end at this step to the set of finished hypotheses."""
    if not ends_BC.is_cuda and not ends_BC.any():  # on a GPU this check would synchronise
        return beams
    score_BC = found.log_prob_BC / penalty(at_1 + 1)
    if bonus_BC is not None:
        score_BC = score_BC + bonus_BC
    score_BC = score_BC.masked_fill(~ends_BC, -torch.inf)
    width = beams.log_prob_BW.shape[1]
    best = torch.cat([beams.ended_score_BW, score_BC], dim=1).topk(width)

    def of_both(old_BW: Tensor, new_BC: Tensor) -> Tensor:
        both = torch.cat([old_BW, new_BC], dim=1)
        if both.ndim == 2:
            return both.gather(1, best.indices)
        return both.gather(1, best.indices[:, :, None].expand(-1, -1, both.shape[2]))

    length_BC = (at_1 + 1).expand_as(found.token_BC)
    tokens_BCT = _extended(beams.tokens_BWT, found.parent_BC, found.token_BC, at_1)
    token_log_probs_BCT = _extended(
        beams.token_log_probs_BWT, found.parent_BC, found.token_log_prob_BC, at_1
    )
    return replace(
        beams,
        ended_tokens_BWT=of_both(beams.ended_tokens_BWT, tokens_BCT),
        ended_token_log_probs_BWT=of_both(beams.ended_token_log_probs_BWT, token_log_probs_BCT),
        ended_log_prob_BW=of_both(beams.ended_log_prob_BW, found.log_prob_BC),
        ended_length_BW=of_both(beams.ended_length_BW, length_BC),
        ended_score_BW=best.values,
    )


def _first_alive(found: BeamCandidates, eos: int, width: int) -> Tensor:
    """Return the indices of the first W continuations that do not end, in order.

    With a tiny vocabulary there may be fewer than W. Ended continuations with log-probability −∞
    then fill the rest.
    """
    n_found = found.token_BC.shape[1]
    place_C = torch.arange(n_found, device=found.token_BC.device)
    rank_BC = place_C + n_found * (found.token_BC == eos)
    order_BW = rank_BC.topk(min(width, n_found), largest=False).indices
    return torch.nn.functional.pad(order_BW, (0, width - order_BW.shape[1]))


def _extended(past_BWT: Tensor, parent_BC: Tensor, new_BC: Tensor, at_1: Tensor) -> Tensor:
    """Copy the values of each hypothesis' parent and append one value."""
    index_BCT = parent_BC[:, :, None].expand(-1, -1, past_BWT.shape[2])
    return past_BWT.gather(1, index_BCT).index_copy_(2, at_1, new_BC[:, :, None])


def hypotheses(beams: Beams, number: int, n_best: int, penalty: Penalty) -> list[Hypothesis]:
    """Return the best hypotheses of a source: finished ones first, then alive ones if there are too
    few."""
    found = []
    for w, score in enumerate(beams.ended_score_BW[number].tolist()):
        if score > -torch.inf:
            length = int(beams.ended_length_BW[number, w])
            found.append(
                Hypothesis(
                    tokens=beams.ended_tokens_BWT[number, w, : length - 1].tolist(),
                    log_prob=float(beams.ended_log_prob_BW[number, w]),
                    score=score,
                    token_log_probs=beams.ended_token_log_probs_BWT[number, w, :length].tolist(),
                    finished=True,
                )
            )
    if len(found) >= n_best:
        return found[:n_best]
    length = int(beams.length_B[number])
    divisor = float(penalty(beams.length_B[number].clamp(min=1)))
    for w, log_prob in enumerate(beams.log_prob_BW[number].tolist()):
        if log_prob > -torch.inf:
            found.append(
                Hypothesis(
                    tokens=beams.tokens_BWT[number, w, :length].tolist(),
                    log_prob=log_prob,
                    score=log_prob / divisor,
                    token_log_probs=beams.token_log_probs_BWT[number, w, :length].tolist(),
                    finished=False,
                )
            )
    return found[:n_best]
