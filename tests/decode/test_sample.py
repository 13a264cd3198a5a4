"""Draws follow the distribution, and depend on nothing but the seed and the line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.decode.search.sample import (
    draw_tokens,
    filter_scores,
    make_token_drawer,
    nucleus,
    probabilities,
    sampler,
)
from headway.decode.search.searcher import search
from headway.settings.decode import DecodeSettings

from . import copying
from .copying import BOS, EOS, UNK, copier

SCORES_V = torch.tensor([0.0, 1.0, -0.5, 2.0, 0.3, -torch.inf, 1.4])


def frequencies(settings: DecodeSettings, n: int = 4000) -> Tensor:
    """How often each token is drawn for so many lines."""
    pick = sampler(settings, [[number] for number in range(n)], room=3)
    tokens_N = pick(SCORES_V.expand(n, -1), 2, range(n))
    return torch.bincount(tokens_N, minlength=len(SCORES_V)).double()


@pytest.mark.parametrize(
    "settings",
    [
        DecodeSettings(sample=True),
        DecodeSettings(sample=True, temperature=0.5),
        DecodeSettings(sample=True, temperature=3.0, top_k=4),
        DecodeSettings(sample=True, top_p=0.7),
        DecodeSettings(sample=True, min_p=0.2),
    ],
)
def test_draws_follow_the_distribution(settings: DecodeSettings) -> None:
    """Chi-square with at most 6 degrees of freedom: above 22.5 once in a thousand times."""
    expected_V = 4000 * expected(SCORES_V.double(), settings)
    found_V = frequencies(settings)
    possible_V = expected_V > 0
    assert found_V[~possible_V].sum() == 0
    apart = (found_V - expected_V)[possible_V] ** 2 / expected_V[possible_V]
    assert apart.sum() < 22.5
    other = frequencies(replace(settings, seed=2))
    assert not torch.equal(found_V, other)


def expected(scores_V: Tensor, settings: DecodeSettings) -> Tensor:
    """The definition, a token at a time."""
    probs = (scores_V / settings.temperature).softmax(0)
    order = sorted(range(len(probs)), key=lambda token: -float(probs[token]))
    kept = order[: settings.top_k] if settings.top_k else order
    probs = _only(probs, kept)
    if settings.top_p < 1.0:
        total, count = 0.0, 0
        while total < settings.top_p and count < len(kept):
            total, count = total + float(probs[kept[count]]), count + 1
        kept = kept[:count]
        probs = _only(probs, kept)
    most = float(probs.max())
    kept = [token for token in kept if float(probs[token]) >= settings.min_p * most]
    return _only(probs, kept)


def _only(probs: Tensor, kept: list[int]) -> Tensor:
    out = torch.zeros_like(probs)
    out[kept] = probs[kept]
    return out / out.sum()


@settings(deadline=None)
@given(
    st.lists(st.integers(-60, 60), min_size=1, max_size=12, unique=True),
    st.integers(0, 12),
    st.sampled_from([1.0, 0.95, 0.6, 0.2]),
    st.sampled_from([0.0, 0.05, 0.4, 1.0]),
)
def test_what_is_allowed_is_what_the_definitions_say(
    tenths: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    scores_V = torch.tensor(tenths).double() / 10
    settings = DecodeSettings(sample=True, top_k=top_k, top_p=top_p, min_p=min_p)
    ours_V = filter_scores(scores_V[None], settings)[0].softmax(0)
    torch.testing.assert_close(ours_V, expected(scores_V, settings))


def test_a_line_samples_the_same_whatever_is_around_it() -> None:
    sources = copying.sources(11)
    numbers = [(number, 0) for number in range(11)]
    settings = DecodeSettings(sample=True, n_best=2, max_len=10, temperature=1.3)

    def draws(places: list[int], seed: int = 1) -> list[list[list[int]]]:
        found = search(
            [copier()], [sources[i] for i in places], replace(settings, seed=seed),
            bos=BOS, eos=EOS, unk=UNK, numbers=[numbers[i] for i in places],
        )  # fmt: skip
        return [[h.tokens for h in of_source] for of_source in found]

    together = draws(list(range(11)))
    assert together == [draws([i])[0] for i in range(11)]
    assert together[3:7] == draws([3, 4, 5, 6])
    assert together != draws(list(range(11)), seed=2)
    assert any(first != second for first, second in together)  # draws of a line differ


def test_the_log_probability_of_a_draw_is_the_models_own() -> None:
    """Temperature and what was left out change what is drawn, not how likely the model holds it."""
    settings = DecodeSettings(sample=True, temperature=2.0, top_k=5, max_len=6)
    sources = copying.sources(5)
    drawn = search([copier()], sources, settings, bos=BOS, eos=EOS, unk=UNK)
    from headway.decode.writer import token_log_probs

    for source, [h] in zip(sources, drawn, strict=True):
        [logs] = token_log_probs([copier()], [source], [h.tokens], bos=BOS, eos=EOS)
        assert h.token_log_probs == pytest.approx(logs[: len(h.token_log_probs)], abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"top_k": 7}, {"top_p": 0.8}, {"top_p": 0.999}, {"top_p": 0.6, "min_p": 0.02}, {"top_k": 0}],
)
def test_a_short_cut_draws_what_the_whole_vocabulary_would(changes: dict[str, Any]) -> None:
    """Peaked rows and flat ones: those of the nucleus that is small, and of one that is not."""
    draw = torch.Generator().manual_seed(3)
    way = DecodeSettings(sample=True, temperature=0.7, **changes)
    for sharpness in (6.0, 0.05):
        scores_RV = (sharpness * torch.randn(40, 5000, generator=draw)).log_softmax(-1)
        chance_R = torch.rand(40, generator=draw, dtype=torch.double)
        whole = draw_tokens(probabilities(scores_RV, way), chance_R)
        assert torch.equal(make_token_drawer(way)(scores_RV, chance_R), whole)
        if way.top_p == 0.8:
            assert (nucleus(scores_RV, way) is None) == (sharpness < 1)
