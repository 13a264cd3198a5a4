"""Greedy and beam search against definitions written out, whatever the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from headway.decode.logits_processors import SpecialTokens, TokenConstraints
from headway.decode.search.beam import beam_search
from headway.decode.search.job import Hypothesis, Job
from headway.decode.search.searcher import search
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from tests.models.variants import EVERY

from . import copying, reference
from .copying import copier
from .reference import BOS, EOS, UNK, next_given, small_model

SOURCES = [[5, 6, 7, EOS], [3, EOS], [8, 8, 4, 3, 5, EOS], [7, 3, EOS], [EOS]]
SHORT = DecodeSettings(max_len=8)


def find(
    models: Seq2Seq | Sequence[Seq2Seq],
    sources: Sequence[Sequence[int]] = SOURCES,
    settings: DecodeSettings = SHORT,
    wishes: Sequence[TokenConstraints] | None = None,
) -> list[list[Hypothesis]]:
    models = [models] if isinstance(models, Seq2Seq) else models
    return search(models, sources, settings, bos=BOS, eos=EOS, unk=UNK, wishes=wishes)


def outputs(found: list[list[Hypothesis]]) -> list[list[tuple[tuple[int, ...], float, float]]]:
    """With the end token; rounded."""
    return [
        [
            ((*h.tokens, EOS) if h.finished else tuple(h.tokens), h.log_prob, h.score)
            for h in of_source
        ]
        for of_source in found
    ]


def check_equal(found: list[list[Hypothesis]], expected: list[list[reference.Found]]) -> None:
    for ours, theirs in zip(outputs(found), expected, strict=True):
        assert [tokens for tokens, _, _ in ours] == [one.tokens for one in theirs]
        for (_, log_prob, score), one in zip(ours, theirs, strict=True):
            assert log_prob == pytest.approx(one.log_prob, abs=1e-4)
            assert score == pytest.approx(one.score, abs=1e-4)


def test_width_one_is_greedy() -> None:
    model = copier()
    given = copying.sources(12)
    expected = [[reference.greedy(next_given([model], source), 8)] for source in given]
    check_equal(find(model, given, replace(SHORT, beam=1)), expected)
    assert len({one[0].tokens for one in expected}) > 6


@pytest.mark.parametrize("variant", EVERY)
def test_beam_search_is_its_definition_for_every_kind_of_model(variant: str) -> None:
    """So cached decoding with hypotheses that change places is decoding in one pass."""
    model = small_model(13, variant)
    expected = [reference.beam(next_given([model], source), 3, 7) for source in SOURCES]
    check_equal(find(model, settings=DecodeSettings(beam=3, max_len=7)), expected)


@pytest.mark.parametrize("width", [2, 4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_beam_search_is_its_definition_at_any_width(width: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = small_model(9 + seed)
    with torch.no_grad():
        model.head.linear.weight.mul_(0.3 + 0.3 * seed)  # from flat to peaked
    n_best = min(width, 3)
    expected = [reference.beam(next_given([model], source), width, 9, n_best) for source in SOURCES]
    settings = DecodeSettings(beam=width, max_len=9, n_best=n_best)
    check_equal(find(model, settings=settings), expected)


def test_a_beam_that_holds_everything_is_brute_force() -> None:
    model = small_model(6)
    limit = 5
    for source in ([5, 4, 3, EOS], [3, EOS], [EOS]):
        log_probs = next_given([model], source)
        best = reference.everything(log_probs, 6, limit)
        settings = DecodeSettings(beam=300, max_len=limit, n_best=20)
        [found] = find(model, [source], settings)
        check_equal([found], [best[:20]])


def test_a_source_that_never_ends_gives_its_best_alive_hypothesis() -> None:
    model = small_model()
    with torch.no_grad():
        model.head.linear.bias[EOS] = -torch.inf
    for width in (1, 4):
        found = find(model, settings=replace(SHORT, beam=width))
        assert all(len(h.tokens) == 8 and not h.finished for [h] in found)
    expected = [reference.beam(next_given([model], source), 4, 8) for source in SOURCES]
    check_equal(find(model), expected)


def test_outputs_do_not_depend_on_the_batch() -> None:
    model, sources = copier(), copying.sources(24)
    for width in (1, 4):
        settings = replace(SHORT, beam=width, max_len=12)
        alone = [find(model, [source], settings)[0] for source in sources]
        together = find(model, sources, settings)
        assert [h.tokens for [h] in alone] == [h.tokens for [h] in together]
        for [one], [other] in zip(alone, together, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
        lengths = {len(h.tokens) for [h] in together}
        assert len(lengths) > 3  # some leave the batch early


def test_sources_at_their_limit_do_not_change_until_they_leave() -> None:
    """One of twelve is too few to move the others for: it waits, unfinished, while they go on."""
    model = small_model()
    with torch.no_grad():
        model.head.linear.bias[EOS] = -torch.inf
    sources = [[3 + n % 6] * n + [EOS] for n in range(12)]
    settings = DecodeSettings(beam=3, n_best=3, extra_len=1)
    together = find(model, sources, settings)
    for source, found in zip(sources, together, strict=True):
        [alone] = find(model, [source], settings)
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-4)


class OneWay:
    """Steps of a language of two sentences: nothing, or `a` and then eleven times `b`."""

    device = torch.device("cpu")
    attention_BWS = torch.empty(0)

    def __init__(self) -> None:
        self.at = 0

    def step(self, tokens_BW: torch.Tensor) -> torch.Tensor:
        probs_V = torch.full((6,), 1e-6)
        if self.at == 0:
            probs_V[EOS], probs_V[3] = math.exp(-1.0), math.exp(-1.3)
        else:
            probs_V[EOS if self.at == 12 else 4] = 0.999
        self.at += 1
        return probs_V.log().repeat(tokens_BW.numel(), 1)

    def reorder(self, parents_BW: torch.Tensor) -> None:
        pass

    def keep(self, sources: Sequence[int]) -> None:
        pass


def test_a_search_continues_while_a_live_hypothesis_could_still_win() -> None:
    """The empty output ends first and is likelier, but the long one has the better score: only
    the penalty of the longest length says that it is worth waiting for."""
    job = Job.of(
        DecodeSettings(beam=2, max_len=20),
        SpecialTokens(BOS, EOS, UNK),
        [4],
        [TokenConstraints()],
        None,
    )
    [[h]] = beam_search(OneWay(), job)
    assert h.tokens == [3] + [4] * 11
    short = Job.of(
        DecodeSettings(beam=2, max_len=3),
        SpecialTokens(BOS, EOS, UNK),
        [4],
        [TokenConstraints()],
        None,
    )
    steps = OneWay()
    [[h]] = beam_search(steps, short)
    assert h.tokens == []
    assert steps.at == 1  # and it stops as soon as nothing can


def test_token_log_probs_add_up_and_count_the_end() -> None:
    for width in (1, 4):
        for [h] in find(small_model(), settings=replace(SHORT, beam=width)):
            assert len(h.token_log_probs) == len(h.tokens) + h.finished
            assert sum(h.token_log_probs) == pytest.approx(h.log_prob, abs=1e-4)


def test_twice_the_same_model_is_that_model_and_two_are_their_mean() -> None:
    one, other = small_model(9), small_model(9, "pre-learned-all-biases")
    alone, twice = find(one), find([one, one])
    assert [h.tokens for [h] in alone] == [h.tokens for [h] in twice]
    for [h], [g] in zip(alone, twice, strict=True):
        assert h.score == pytest.approx(g.score, abs=1e-4)
    expected = [reference.beam(next_given([one, other], source), 4, 8) for source in SOURCES]
    check_equal(find([one, other]), expected)


@pytest.mark.parametrize(
    ("settings", "divisor"),
    [
        (
            DecodeSettings(beam=3, max_len=6, length_penalty="gnmt", length_penalty_alpha=0.6),
            ((5 + 4) / 6) ** 0.6,
        ),
        (
            DecodeSettings(beam=3, max_len=6, length_penalty="power", length_penalty_alpha=0.5),
            4**0.5,
        ),
        (DecodeSettings(beam=3, max_len=6, length_penalty="none"), 1.0),
    ],
)
def test_length_penalties_equal_their_formulas(settings: DecodeSettings, divisor: float) -> None:
    model = small_model()
    with torch.no_grad():
        model.head.linear.bias[EOS] = -torch.inf
    for [h] in find(model, settings=replace(settings, max_len=4)):
        assert h.score == pytest.approx(h.log_prob / divisor, rel=1e-5)


def test_limits_follow_the_source_or_are_set() -> None:
    model = small_model()
    with torch.no_grad():
        model.head.linear.bias[EOS] = -torch.inf
    found = find(model, settings=DecodeSettings(extra_len=2))
    assert [len(h.tokens) for [h] in found] == [len(source) + 2 for source in SOURCES]
    found = find(model, settings=DecodeSettings(extra_len=2, max_len=5))
    assert [len(h.tokens) for [h] in found] == [min(len(source) + 2, 5) for source in SOURCES]


def test_learned_positions_end_an_output_instead_of_the_program() -> None:
    model = small_model(9, "pre-learned-all-biases", max_len=10)
    with torch.no_grad():
        model.head.linear.bias[EOS] = -torch.inf
    found = find(model, settings=DecodeSettings())
    assert all(len(h.tokens) == 10 for [h] in found)


def test_a_minimum_length_is_kept() -> None:
    model = small_model()
    for width in (1, 4):
        settings = replace(SHORT, beam=width, min_len=5, max_len=9)
        assert all(len(h.tokens) >= 5 for [h] in find(model, settings=settings))
        forced = replace(SHORT, beam=width, min_len=6, max_len=6)
        assert all(len(h.tokens) == 6 for [h] in find(model, settings=forced))


def test_a_model_in_training_decodes_without_dropout_and_returns_to_training() -> None:
    model = small_model(9, dropout=0.5).train()
    assert outputs(find(model)) == outputs(find(model))
    assert model.training


def test_no_sources_give_no_outputs() -> None:
    assert find(small_model(), []) == []
