"""Sampling of tokens, with temperature, top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headway.decode.search.job import TokenChooser, top_k
from headway.settings.decode import DecodeSettings

FEW = 512
"""Maximum `top_k` for which only the k most probable tokens are computed, instead of all
probabilities."""

NUCLEUS = 1024
"""Number of most probable tokens that top-p examines before it falls back to sorting the whole
vocabulary."""


def sampler(settings: DecodeSettings, numbers: Sequence[Sequence[int]], room: int) -> TokenChooser:
    """Create the `TokenChooser` for sampling.

    `numbers`: keys that identify the sources. The draws of a source depend only on its keys and the
    seed, so they are the same in any batch.
    """
    chances_NWT, draw = make_random_numbers(settings, numbers, room), make_token_drawer(settings)

    def pick(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
        chance_R = chances_NWT[list(sources), :, at].flatten().to(scores_RV.device)
        return draw(scores_RV, chance_R)

    return pick


def make_random_numbers(
    settings: DecodeSettings, numbers: Sequence[Sequence[int]], room: int
) -> Tensor:
    """Return uniform random numbers in [0, 1) for each source, output and token (N W T)."""
    draws = [
        [np.random.default_rng([settings.seed, *number, w]).random(room) for number in numbers]
        for w in range(settings.n_best)
    ]
    return torch.from_numpy(np.array(draws)).transpose(0, 1)


def make_token_drawer(settings: DecodeSettings) -> Callable[[Tensor, Tensor], Tensor]:
    """Create a function that samples one token per row, given log-probabilities (R V) and one
    random number per row."""
    rest = replace(settings, top_k=0)

    def draw(scores_RV: Tensor, chance_R: Tensor) -> Tensor:
        few = None
        if 0 < settings.top_k <= min(FEW, scores_RV.shape[1]):
            few = top_k(scores_RV, settings.top_k)
        elif not settings.top_k and settings.top_p < 1.0:
            few = nucleus(scores_RV, settings)
        if few is None:
            return draw_tokens(probabilities(scores_RV, settings), chance_R)
        tokens_RC, order_RC = few[1].sort(1)  # robust to rounding of near-equal scores
        values_RC = few[0].gather(1, order_RC)
        left = rest if settings.top_k else replace(rest, top_p=1.0)
        place_R = draw_tokens(probabilities(values_RC, left), chance_R)
        return tokens_RC.gather(1, place_R[:, None]).squeeze(1)

    return draw


def nucleus(scores_RV: Tensor, settings: DecodeSettings) -> tuple[Tensor, Tensor] | None:
    """Return the scores and the tokens that top-p keeps, without sorting the whole vocabulary.

    Returns None if more than `NUCLEUS` tokens may be needed, and on a GPU, where this check would
    synchronize with the device.
    """
    if scores_RV.is_cuda or scores_RV.shape[1] <= 4 * NUCLEUS:
        return None
    values_RC, tokens_RC = top_k(scores_RV, NUCLEUS)
    total_R1 = (scores_RV / settings.temperature).logsumexp(-1, keepdim=True)
    probs_RC = (values_RC / settings.temperature - total_R1).exp().double()
    enough_RC = probs_RC.cumsum(-1) - probs_RC >= settings.top_p  # without this token already
    if not enough_RC[:, -1].all():
        return None
    return values_RC.masked_fill(enough_RC, -torch.inf), tokens_RC


def probabilities(scores_RV: Tensor, settings: DecodeSettings) -> Tensor:
    """Return the probabilities to sample from, after temperature, top-k, top-p and min-p.

    They have double precision, so that rounding of the scores almost never changes the sampled
    token.
    """
    return filter_scores(scores_RV / settings.temperature, settings).softmax(-1).double()


def draw_tokens(probs_RV: Tensor, chance_R: Tensor) -> Tensor:
    """Sample one token per row by inverting the cumulative distribution at `chance_R`, from 0 to
    1."""
    total_RV = probs_RV.cumsum(-1)
    place_R1 = chance_R[:, None] * total_RV[:, -1:]
    token_R1 = torch.searchsorted(total_RV, place_R1, right=True)
    return token_R1.squeeze(1).clamp(max=probs_RV.shape[1] - 1)


def filter_scores(scores_RV: Tensor, settings: DecodeSettings) -> Tensor:
    """Set the scores of tokens that top-k, top-p or min-p excludes to −∞.

    The filters are applied in this order, each to the renormalized result of the previous one.
    """
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
