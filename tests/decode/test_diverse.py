"""Groups that avoid each other, and the penalty for source words that were passed over."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from headway.decode.align import cross_attention
from headway.decode.search.beam import coverage_penalty
from headway.decode.search.searcher import search
from headway.settings.decode import DecodeSettings

from . import copying, reference
from .copying import BOS, EOS, UNK, copier
from .reference import next_given


@pytest.mark.parametrize(("beam", "groups"), [(4, 2), (3, 3), (6, 2)])
def test_groups_pay_for_what_earlier_groups_chose(beam: int, groups: int) -> None:
    sources = copying.sources(8, longest=4)
    settings = DecodeSettings(beam=beam, groups=groups, n_best=beam, diversity=1.5, max_len=9)
    found = search([copier()], sources, settings, bos=BOS, eos=EOS, unk=UNK)
    for source, hypotheses in zip(sources, found, strict=True):
        log_probs = next_given([copier()], source)
        expected = reference.diverse(log_probs, beam, groups, 1.5, 9)
        ours = [(*h.tokens, EOS) for h in hypotheses if h.finished]
        assert ours == [one.tokens for one in expected][: len(ours)]
        assert len(ours) >= min(len(expected), beam)
        for h, one in zip(hypotheses, expected, strict=False):
            assert h.log_prob == pytest.approx(one.log_prob, abs=1e-4)


def test_groups_differ_more_than_one_beam() -> None:
    sources = [source for source in copying.sources(20) if len(source) > 4]
    one = DecodeSettings(beam=4, n_best=4, max_len=12)
    several = replace(one, groups=4, diversity=3.0)

    def first_tokens(settings: DecodeSettings) -> int:
        found = search([copier()], sources, settings, bos=BOS, eos=EOS, unk=UNK)
        return sum(len({h.tokens[0] for h in of_source if h.tokens}) for of_source in found)

    assert first_tokens(several) > 1.5 * first_tokens(one)


def test_the_coverage_penalty_is_its_formula() -> None:
    got_S = torch.tensor([0.5, 3.0, 1.0, 0.25, 9.0])
    real_S = torch.tensor([True, True, True, True, False])
    expected = 0.2 * (math.log(0.5) + math.log(0.25))
    assert float(coverage_penalty(got_S, real_S, 0.2)) == pytest.approx(expected)


@pytest.mark.parametrize("weight", [0.3, 3.0])
def test_coverage_counts_in_the_score_of_finished_outputs(weight: float) -> None:
    model, sources = copier(), copying.sources(8)

    settings = DecodeSettings(beam=3, coverage=weight, max_len=9)
    found = search([model], sources, settings, bos=BOS, eos=EOS, unk=UNK)
    changed = 0
    for source, [h] in zip(sources, found, strict=True):

        def bonus(tokens: tuple[int, ...], source: list[int] = source) -> float:
            attention_TS = cross_attention(model, [source], [tokens[:-1]], BOS)[0]
            return weight * float(attention_TS.sum(0).clamp(max=1).log().sum())

        log_probs = next_given([model], source)
        [expected] = reference.beam(log_probs, 3, 9, bonus=bonus)
        assert (*h.tokens, EOS)[: len(expected.tokens)] == expected.tokens
        assert h.score == pytest.approx(expected.score, abs=1e-3)
        changed += expected.tokens != reference.beam(log_probs, 3, 9)[0].tokens
    assert changed or weight < 1
