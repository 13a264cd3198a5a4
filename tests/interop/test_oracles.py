"""Values that transformers' own tests expect of parts: rotary rates, sinusoids, rules of search.

They were computed there from other code, some of it from the models' authors. Values, not code.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.decode.logits_processors import (
    ban_phrases,
    ban_repeated,
    min_length,
    penalise_repetition,
)
from headway.decode.search.sample import probabilities
from headway.interop.foreign_config import ForeignConfig
from headway.interop.hf.llama import rope_settings
from headway.nn.positions import rope_rates, sinusoids
from headway.settings.decode import DecodeSettings

PLAIN = """1.0000e+00 8.6596e-01 7.4989e-01 6.4938e-01 5.6234e-01 4.8697e-01 4.2170e-01 3.6517e-01
3.1623e-01 2.7384e-01 2.3714e-01 2.0535e-01 1.7783e-01 1.5399e-01 1.3335e-01 1.1548e-01 1.0000e-01
8.6596e-02 7.4989e-02 6.4938e-02 5.6234e-02 4.8697e-02 4.2170e-02 3.6517e-02 3.1623e-02 2.7384e-02
2.3714e-02 2.0535e-02 1.7783e-02 1.5399e-02 1.3335e-02 1.1548e-02 1.0000e-02 8.6596e-03 7.4989e-03
6.4938e-03 5.6234e-03 4.8697e-03 4.2170e-03 3.6517e-03 3.1623e-03 2.7384e-03 2.3714e-03 2.0535e-03
1.7783e-03 1.5399e-03 1.3335e-03 1.1548e-03 1.0000e-03 8.6596e-04 7.4989e-04 6.4938e-04 5.6234e-04
4.8697e-04 4.2170e-04 3.6517e-04 3.1623e-04 2.7384e-04 2.3714e-04 2.0535e-04 1.7783e-04 1.5399e-04
1.3335e-04 1.1548e-04"""
LLAMA3 = """1.3335e-02 1.0730e-02 7.7785e-03 5.6009e-03 3.9991e-03 2.8248e-03 1.9675e-03 1.3449e-03
8.9549e-04 5.7363e-04 3.4539e-04 2.7384e-04 2.3714e-04 2.0535e-04 1.7783e-04 1.5399e-04 1.3335e-04
1.1548e-04 1.0000e-04 8.6596e-05 7.4989e-05 6.4938e-05 5.6234e-05 4.8697e-05 4.2170e-05 3.6517e-05
3.1623e-05 2.7384e-05 2.3714e-05 2.0535e-05 1.7783e-05 1.5399e-05 1.3335e-05 1.1548e-05"""
"""From number 30 on; before that it is plain."""

DYNAMIC = """1.0000e+00 8.0931e-01 6.5498e-01 5.3008e-01 4.2900e-01 3.4720e-01 2.8099e-01 2.2741e-01
1.8404e-01 1.4895e-01 1.2055e-01 9.7558e-02 7.8955e-02 6.3899e-02 5.1714e-02 4.1853e-02 3.3872e-02
2.7413e-02 2.2185e-02 1.7955e-02 1.4531e-02 1.1760e-02 9.5176e-03 7.7027e-03 6.2339e-03 5.0451e-03
4.0831e-03 3.3045e-03 2.6744e-03 2.1644e-03 1.7517e-03 1.4176e-03 1.1473e-03 9.2852e-04 7.5146e-04
6.0817e-04 4.9220e-04 3.9834e-04 3.2238e-04 2.6091e-04 2.1115e-04 1.7089e-04 1.3830e-04 1.1193e-04
9.0585e-05 7.3312e-05 5.9332e-05 4.8018e-05 3.8861e-05 3.1451e-05 2.5453e-05 2.0600e-05 1.6672e-05
1.3492e-05 1.0920e-05 8.8374e-06 7.1522e-06 5.7883e-06 4.6845e-06 3.7912e-06 3.0683e-06 2.4832e-06
2.0097e-06 1.6265e-06"""


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def rates(parameters: dict[str, Any]) -> list[float]:
    """Of a Llama with heads 128 wide, as its configuration is read."""
    rope = rope_settings(ForeignConfig({"rope_parameters": {"rope_theta": 10_000.0, **parameters}}))
    found = rope_rates(128, rope.base, rope.scaling, rope.factor, rope.trained_len)
    return found.tolist()


def test_plain_and_linear_rotary_rates() -> None:
    assert rates({"rope_type": "default"}) == pytest.approx(numbers(PLAIN), rel=1e-4)
    slowed = [rate / 10 for rate in numbers(PLAIN)]
    assert rates({"rope_type": "linear", "factor": 10.0}) == pytest.approx(slowed, rel=1e-4)


def test_llama3_rotary_rates() -> None:
    expected = numbers(PLAIN)[:30] + numbers(LLAMA3)
    kind = {"rope_type": "llama3", "factor": 10.0, "low_freq_factor": 1, "high_freq_factor": 4}
    found = rates({**kind, "original_max_position_embeddings": 2048})
    assert found == pytest.approx(expected, rel=1e-4)


def test_dynamic_rates_at_one_length_are_our_ntk() -> None:
    """Factor 10 for 16,384 tokens of a model for 2,048: 10 · 16384 / 2048 - 9 = 71."""
    found = rope_rates(128, 10_000.0, "ntk", factor=71.0).tolist()
    assert found == pytest.approx(numbers(DYNAMIC), rel=1e-4)


def test_sinusoids_are_those_of_marian() -> None:
    expected = [
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [0.84147096, 0.82177866, 0.80180490, 0.78165019, 0.76140374],
        [0.90929741, 0.93651021, 0.95829457, 0.97505713, 0.98720258],
    ]
    table_PD = sinusoids(512, 512, halves=True)
    torch.testing.assert_close(table_PD[:3, :5], torch.tensor(expected), atol=1e-3, rtol=0)
    assert table_PD[1, 0].item() == pytest.approx(0.84147096)


@pytest.mark.parametrize(
    ("length", "tokens", "banned"),
    [
        (2, [[1, 1, 2, 1], [0, 1, 0, 1]], [[1, 2], [0]]),
        (3, [[1, 1, 2, 1], [0, 1, 0, 1]], [[], [0]]),
        (3, [[1, 2, 5, 7, 8, 5, 1, 2]], [[5]]),
        (3, [[1, 2], [0, 1]], [[], []]),
    ],
)
def test_no_ngram_comes_twice(
    length: int, tokens: list[list[int]], banned: list[list[int]]
) -> None:
    scores_RV = torch.zeros(len(tokens), 10)
    ban_repeated(length)(scores_RV, torch.tensor(tokens), range(len(tokens)))
    assert [row.isinf().nonzero().flatten().tolist() for row in scores_RV] == banned


def test_banned_phrases() -> None:
    phrases = ((1,), (1, 0), (0, 1, 2), (1, 3, 1, 3))
    scores_RV = torch.zeros(2, 5)
    tokens_RT = torch.tensor([[0, 1, 3, 1], [0, 1, 0, 1]])
    ban_phrases([phrases, phrases])(scores_RV, tokens_RT, [0, 1])
    assert [row.isinf().nonzero().flatten().tolist() for row in scores_RV] == [[0, 1, 3], [0, 1, 2]]


def test_no_end_before_the_least_length() -> None:
    """New tokens: with a least of 3 the end is banned at 0, 1 and 2 of them, and free at 3."""
    for n_tokens, expected in ((0, True), (1, True), (2, True), (3, False), (10, False)):
        scores_RV = torch.zeros(4, 20)
        min_length(3, 0)(scores_RV, torch.zeros(4, n_tokens, dtype=torch.long), range(4))
        assert bool(scores_RV[:, 0].isinf().all()) is expected
        assert not scores_RV[:, 1:].isinf().any()


def test_repetition_is_penalised_in_log_probabilities() -> None:
    """As `normalize=True` has it in transformers."""
    scores_RV = torch.full((2, 10), 0.1)
    scores_RV[0, 0], scores_RV[1, 5] = -0.1, 0.4
    logs_RV = scores_RV.log_softmax(-1)
    found_RV = logs_RV.clone()
    penalise_repetition(2.0)(found_RV, torch.tensor([[0, 1], [5, 0]]), [0, 1])
    assert found_RV[0, 0].item() == pytest.approx(2 * logs_RV[0, 0].item())
    assert found_RV[0, 1].item() == pytest.approx(2 * logs_RV[0, 1].item())
    assert found_RV[1, 5].item() == pytest.approx(2 * logs_RV[1, 5].item())
    assert found_RV[0, 2] == logs_RV[0, 2]


@pytest.mark.parametrize(
    ("settings", "given", "kept"),
    [
        # Theirs have 0.8 here, which is 0.3 + 0.5: whether that is reached is a matter of rounding.
        ({"top_p": 0.79}, [0.3, 0.1, 0.1, 0.5], [0.3, 0.0, 0.0, 0.5]),
        ({"top_p": 0.8}, [0.15, 0.3, 0.3, 0.25], [0.0, 0.3, 0.3, 0.25]),
        ({"min_p": 0.05}, [0.9, 0.0274, 0.047, 0.0274], [0.9, 0.0, 0.047, 0.0]),
        ({"min_p": 0.05}, [0.15, 0.3, 0.3, 0.25], [0.15, 0.3, 0.3, 0.25]),
        ({"min_p": 0.05}, [0.97, 0.01, 0.01, 0.01], [0.97, 0.0, 0.0, 0.0]),
        ({"top_k": 3}, [i / 45 for i in range(10)], [0.0] * 7 + [7 / 45, 8 / 45, 9 / 45]),
    ],
)
def test_what_is_drawn_from(settings: Any, given: list[float], kept: list[float]) -> None:
    """They leave what is kept as it is; ours sums to one."""
    found = probabilities(torch.tensor([given]).log(), DecodeSettings(sample=True, **settings))
    expected = torch.tensor([kept]) / sum(kept)
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=0)
