"""A draft model changes the time it takes, and nothing else."""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.sample import probabilities
from headway.decode.search.searcher import Searcher, SharedPrefix
from headway.decode.search.speculative import SpeculativeSearcher
from headway.errors import ConfigError, UserError
from headway.models.decoder import Decoder
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from tests.models.variants import EVERY, tiny

BOS, EOS, UNK = 1, 2, 0
SPECIALS = SpecialTokens(BOS, EOS, UNK)
PROMPTS = [[5, 9, 17, 33], [BOS], [8, 8, 3]]


def model(seed: int, variant: str = "as-published", **more: Any) -> Decoder:
    torch.manual_seed(seed)
    made = tiny("decoder", variant, **more)
    assert isinstance(made, Decoder)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim > 1:
                weight.mul_(1.0 if "front" in name else 2.0)
                weight.add_(0.3 * weight.std() * torch.randn(weight.shape))
    return made


def near(one: Decoder, noise: float, seed: int = 0) -> Decoder:
    """A draft that is often right."""
    torch.manual_seed(seed)
    other = deepcopy(one)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(noise * weight.std().nan_to_num() * torch.randn(weight.shape))
    return other


@pytest.mark.parametrize("variant", EVERY)
def test_greedy_tokens_are_those_of_the_model_alone(variant: str) -> None:
    """With a draft that is often wrong, several tokens ahead, and one that is seldom wrong."""
    big = model(len(variant), variant)
    settings = DecodeSettings(beam=1, max_len=16, no_repeat_ngram=3)
    plain = Searcher([big], settings, SPECIALS)(PROMPTS)
    for noise, ahead in ((0.5, 4), (0.05, 1)):
        draft = near(big, noise)
        searcher = SpeculativeSearcher(big, draft, settings, SPECIALS, ahead=ahead)
        found = searcher(PROMPTS)
        assert [h.tokens for [h] in found] == [h.tokens for [h] in plain]
        for [h], [g] in zip(found, plain, strict=True):
            assert h.finished == g.finished
            assert h.token_log_probs == pytest.approx(g.token_log_probs, abs=1e-4)
        assert searcher.proposed >= searcher.accepted > 0


def test_a_perfect_draft_is_always_right_and_a_context_is_filled_to_its_end() -> None:
    big = model(3)
    settings = DecodeSettings(beam=1, min_len=99)
    searcher = SpeculativeSearcher(big, deepcopy(big), settings, SPECIALS)
    long = [[7] * 32, [7] * 29, [8, 9]]
    found = searcher(long)
    assert searcher.accepted == searcher.proposed
    assert [len(h.tokens) for [h] in found] == [1, 4, 31]
    assert [h.tokens for [h] in found] == [
        h.tokens for [h] in Searcher([big], settings, SPECIALS)(long)
    ]


def test_a_prefix_and_stops_serve_here_too() -> None:
    big = model(4)
    settings = DecodeSettings(beam=1, max_len=12)
    prompts = [[5, 9, 17, 33, *prompt] for prompt in PROMPTS]
    plain = Searcher([big], settings, SPECIALS)(prompts)
    searcher = SpeculativeSearcher(big, near(big, 0.2), settings, SPECIALS)
    found = searcher(prompts, prefix=SharedPrefix([big], [5, 9, 17, 33]))
    assert [h.tokens for [h] in found] == [h.tokens for [h] in plain]
    seen: list[int] = []
    [[h]] = searcher(prompts[:1], watch=lambda place, w, token: len(seen.append(token) or seen) > 4)
    assert h.tokens == plain[0][0].tokens[:5] == seen


def soft(seed: int) -> Decoder:
    """Seven words, all of them likely enough to be drawn."""
    made = model(seed, vocab_size=7, n_layers=1, tie=False, head_bias=True)
    assert made.head is not None
    with torch.no_grad():
        made.head.linear.weight.copy_(0.15 * torch.randn(7, 32))
        made.head.linear.bias.copy_(0.5 * torch.randn(7))
    return made


def distribution(one: Decoder, prompt: list[int], settings: DecodeSettings) -> torch.Tensor:
    """Exactly, of all texts of two tokens (V V), the end included."""

    def following(text: list[int]) -> torch.Tensor:
        with torch.no_grad():
            x_ND = one(torch.tensor(text), Layout.of([len(text)]))
            scores_1V = one.scores(x_ND)[-1:].log_softmax(-1)
        scores_1V[0, [BOS, UNK]] = -torch.inf
        return probabilities(scores_1V, settings)[0]

    first_V = following(prompt)
    size = len(first_V)
    both_VV = torch.zeros(size, size, dtype=torch.double)
    for token in range(size):
        if token == EOS:
            both_VV[token, 0] = first_V[token]
        elif first_V[token] > 0:
            both_VV[token] = first_V[token] * following([*prompt, token])
    return both_VV


@pytest.mark.parametrize(
    "changes",
    [{}, {"top_k": 3}, {"top_p": 0.7, "temperature": 1.4}, {"temperature": 0.6, "min_p": 0.1}],
)
def test_drawn_texts_have_the_distribution_of_the_model(changes: dict[str, Any]) -> None:
    """By a chi-square test at one in ten thousand, with a draft that is often wrong."""
    n = 500
    big, draft = soft(6), soft(7)
    settings = replace(DecodeSettings(sample=True, n_best=n, max_len=2), **changes)
    exact_VV = distribution(big, [4, 5], settings)
    searcher = SpeculativeSearcher(big, draft, settings, SPECIALS, ahead=2)
    [found] = searcher([[4, 5]])
    count_VV = torch.zeros_like(exact_VV)
    for h in found:
        count_VV[tuple([*h.tokens, *([EOS, 0] if h.finished else [])][:2])] += 1
    assert float(exact_VV.sum()) == pytest.approx(1.0)
    assert not count_VV[exact_VV == 0].any()
    assert 0.1 < searcher.accepted / searcher.proposed < 0.95
    expected, seen = _pooled(exact_VV.flatten() * n, count_VV.flatten())
    statistic = float(((seen - expected) ** 2 / expected).sum())
    assert statistic < chi_square_limit(len(expected) - 1)
    # The draft alone would draw other texts.
    assert float((distribution(draft, [4, 5], settings) - exact_VV).abs().sum()) > 0.2


def _pooled(expected: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rare texts together, so that the test holds."""
    common = expected >= 6
    rest = ~common & (expected > 0)
    e = torch.cat([expected[common], expected[rest].sum()[None].clamp(min=1e-9)])
    s = torch.cat([seen[common], seen[rest].sum()[None]])
    return (e, s) if float(e[-1]) >= 1 else (e[:-1], s[:-1])


def chi_square_limit(freedom: int) -> float:
    """The value that one in ten thousand exceeds (Wilson and Hilferty's approximation)."""
    return float(freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3)


def test_draws_depend_on_the_seed_and_the_number_alone() -> None:
    big = model(7)
    draft = near(big, 0.3)
    settings = DecodeSettings(sample=True, n_best=2, max_len=9)
    searcher = SpeculativeSearcher(big, draft, settings, SPECIALS)
    together = [[h.tokens for h in found] for found in searcher(PROMPTS)]
    alone = [
        [h.tokens for h in searcher([prompt], None, [[number]])[0]]
        for number, prompt in enumerate(PROMPTS)
    ]
    assert together == alone
    assert len({tuple(t) for t in itertools.chain(*together)}) == 6


def test_a_draft_that_does_not_fit_is_an_error() -> None:
    big, settings = model(1), DecodeSettings(beam=1)
    with pytest.raises(UserError, match=r"\bvocabulary\b.*\b23\b.*\b41\b"):
        SpeculativeSearcher(big, model(1, vocab_size=23), settings, SPECIALS)
    with pytest.raises(UserError, match=r"\b16\b.*\b32\b.*\bmax_len\b"):
        SpeculativeSearcher(big, model(1, max_len=16), settings, SPECIALS)
    with pytest.raises(ConfigError, match=r"decode\.beam=3"):
        SpeculativeSearcher(big, deepcopy(big), DecodeSettings(beam=3), SPECIALS)
