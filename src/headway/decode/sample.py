"""Tokens drawn at random: from everything, or from what is likely enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headway.config.decode import DecodeSettings
from headway.decode.walk import Pick


def sampler(settings: DecodeSettings, numbers: Sequence[Sequence[int]], room: int) -> Pick:
    """Draw from the distribution. What a source gets depends on its number and the seed alone.

    `numbers` tells the sources apart; a line has the same ones whatever stands around it.
    """
    draws = [
        [np.random.default_rng([settings.seed, *number, w]).random(room) for number in numbers]
        for w in range(settings.n_best)
    ]
    chances_NWT = torch.from_numpy(np.array(draws)).transpose(0, 1)

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
