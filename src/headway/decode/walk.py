"""Greedy decoding and sampling: each hypothesis goes its own way, a token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headway.config.decode import DecodeSettings
from headway.decode.hypothesis import Hypothesis
from headway.decode.job import Job
from headway.decode.steps import Steps

Pick = Callable[[Tensor, int, Sequence[int]], Tensor]
"""From log-probabilities (R V), the number of tokens so far and the sources to a token a row."""


def walk(steps: Steps, job: Job, width: int, pick: Pick) -> list[list[Hypothesis]]:
    """`width` hypotheses for each source. Each step adds the token that `pick` chooses."""
    room, eos = max(job.limits), job.specials.eos
    sources, device = list(range(len(job.limits))), steps.device
    shape = (len(sources), width)
    limit_B1 = torch.tensor(job.limits, device=device)[:, None]
    tokens_BWT = torch.zeros(*shape, room, dtype=torch.long, device=device)
    log_probs_BWT = torch.zeros(*shape, room, device=device)
    length_BW = torch.zeros(shape, dtype=torch.long, device=device)
    done_BW = torch.zeros(shape, dtype=torch.bool, device=device)
    last_BW = torch.full(shape, job.specials.bos, device=device)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for at in range(room):
        scores_RV = steps.step(last_BW)
        job.rules(scores_RV, tokens_BWT[:, :, :at].flatten(0, 1), sources)
        token_R1 = pick(scores_RV, at, sources)[:, None]
        log_prob_BW = scores_RV.gather(1, token_R1).view_as(last_BW)
        last_BW = token_R1.view_as(last_BW)
        tokens_BWT[:, :, at], log_probs_BWT[:, :, at] = last_BW, log_prob_BW
        length_BW = length_BW + ~done_BW
        done_BW = done_BW | (last_BW == eos) | (length_BW >= limit_B1)
        leaving = job.leaving(done_BW.all(1), at, len(sources))
        if not leaving:
            continue
        for place in leaving:
            for w in range(width):
                n = int(length_BW[place, w])
                tokens, log_probs = tokens_BWT[place, w, :n], log_probs_BWT[place, w, :n]
                found = _hypothesis(tokens.tolist(), log_probs.tolist(), job)
                results[sources[place]].append(found)
        staying = sorted(set(range(len(sources))) - set(leaving))
        if not staying:
            break
        sources = [sources[place] for place in staying]
        steps.keep(staying)
        index = torch.tensor(staying, device=device)
        tokens_BWT, log_probs_BWT = tokens_BWT[index], log_probs_BWT[index]
        length_BW, done_BW = length_BW[index], done_BW[index]
        last_BW, limit_B1 = last_BW[index], limit_B1[index]
    return [sorted(found, key=lambda h: -h.score) for found in results]


def _hypothesis(tokens: list[int], log_probs: list[float], job: Job) -> Hypothesis:
    finished = bool(tokens) and tokens[-1] == job.specials.eos
    log_prob = sum(log_probs)
    divisor = float(job.penalty(torch.tensor(len(tokens))))
    return Hypothesis(
        tokens[:-1] if finished else tokens, log_prob, log_prob / divisor, log_probs, finished
    )


def most_likely(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
    """`Pick`: greedy decoding."""
    return scores_RV.argmax(-1)


def sampler(settings: DecodeSettings, numbers: Sequence[Sequence[int]], room: int) -> Pick:
    """Draw from the distribution. What a source gets depends on its number and the seed alone.

    `numbers` tells the sources apart; a line has the same ones whatever stands around it.
    """
    draws_NWT = np.stack(
        [
            [np.random.default_rng([settings.seed, *number, w]).random(room) for w in range(width)]
            for width in [settings.n_best]
            for number in numbers
        ]
    )
    chances_NWT = torch.from_numpy(draws_NWT)

    def pick(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
        probs_RV = allowed(scores_RV / settings.temperature, settings).softmax(-1)
        # In 64 bits, so that another rounding of the scores practically never draws another token.
        total_RV = probs_RV.double().cumsum(-1)
        chance_R1 = chances_NWT[list(sources), :, at].reshape(-1, 1).to(scores_RV.device)
        token_R1 = torch.searchsorted(total_RV, chance_R1 * total_RV[:, -1:], right=True)
        return token_R1.squeeze(1).clamp(max=scores_RV.shape[1] - 1)

    return pick


def allowed(scores_RV: Tensor, settings: DecodeSettings) -> Tensor:
    """Scores with -inf for what top-k, top-p and min-p leave out; each looks at what the one
    before it left, renormalised."""
    if settings.top_k:
        k = min(settings.top_k, scores_RV.shape[1])
        least_R1 = scores_RV.topk(k).values[:, -1:]
        scores_RV = scores_RV.masked_fill(scores_RV < least_R1, -torch.inf)
    if settings.top_p < 1.0:
        sorted_RV, order_RV = scores_RV.sort(dim=-1, descending=True)
        probs_RV = sorted_RV.softmax(-1).double()
        enough_RV = probs_RV.cumsum(-1) - probs_RV >= settings.top_p  # without this token already
        out_RV = torch.zeros_like(enough_RV).scatter_(1, order_RV, enough_RV)
        scores_RV = scores_RV.masked_fill(out_RV, -torch.inf)
    if settings.min_p:
        probs_RV = scores_RV.softmax(-1)
        too_small = probs_RV < settings.min_p * probs_RV.amax(-1, keepdim=True)
        scores_RV = scores_RV.masked_fill(too_small, -torch.inf)
    return scores_RV
