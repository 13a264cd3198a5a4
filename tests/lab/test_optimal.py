"""E11 with a planted truth: losses and times that are known, and attention that is fixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.lab.optimal import (
    ECHO,
    EXPERIMENT,
    LAYERS,
    LETTERS,
    NAMED,
    OTHERS,
    TIMES,
    FixedAttention,
    at_equal_time,
    between,
    echoes,
    parameters_of,
)
from headway.lab.parallelism import shape, width_of
from headway.models.build import build_model
from headway.models.summary import count_parameters, meta_model
from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout
from headway.nn.tap import record


def seed(
    sha: float, headless: float = 1.5, jitter: float = 0.0, *, sha_copy: float = 0.1,
    last: float = 2.2, size: float = 1000.0, others: float = 0.4, every: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Losses of an LSTM with one head (the Transformer's is `last`, those of an LSTM and of
    convolutions so much more, that with a head in every layer so much less), and of copying."""
    curves = {arm: [[50.0, 2.8], [100.0, last]] for arm in NAMED}
    curves |= {arm: [[50.0, 2.8], [100.0, last + others]] for arm in ("lstm", "convolution")}
    curves["single"] = [[50.0, 2.8], [100.0, sha + jitter]]
    curves["every-layer"] = [[50.0, 2.8], [100.0, sha + jitter - every]]
    return {
        "curves": curves, "seconds": {"tokens": 768.0, **dict.fromkeys(NAMED, 0.1)},
        "copy": {"transformer": 1.5, "no-head": headless, "single": sha_copy, "every-layer": 1.5},
        "unigram": 3.3,
        "parameters": dict.fromkeys(NAMED, 1000.0) | {"lstm": size},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(2.1, jitter=0.01 * i) for i in range(3)], "supported"),
        ([seed(2.5, jitter=0.01 * i) for i in range(3)], "refuted"),
        ([seed(2.1, headless=0.1, jitter=0.01 * i) for i in range(3)], "refuted"),
        ([seed(2.1, jitter=0.1 * i) for i in range(3)], "undecided"),
        ([seed(2.1)], "undecided"),
        ([seed(2.1, jitter=0.01 * i, sha_copy=1.4) for i in range(3)], "undecided"),
        ([seed(2.1, jitter=0.01 * i, last=3.3) for i in range(3)], "undecided"),
        ([seed(2.1, jitter=0.01 * i, size=2000.0) for i in range(3)], "undecided"),
        ([seed(2.22, jitter=0.001 * i) for i in range(3)], "supported"),
        ([seed(2.5, jitter=0.01 * i, others=-0.3) for i in range(3)], "refuted"),
        ([seed(2.1, jitter=0.01 * i, every=0.2) for i in range(3)], "refuted"),
    ],
    ids=["better", "worse", "no head is needed", "noisy", "one seed", "no one copies",
         "nothing learns", "unequal", "as good", "only others are better",
         "a head in every layer is much better"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert all(figure.data() for figure in EXPERIMENT.figures(given))


def test_a_model_half_as_fast_gets_half_of_the_steps() -> None:
    one = seed(2.0)
    one["seconds"]["single"] = 0.2
    found = at_equal_time(one)
    assert found["transformer"] == pytest.approx(2.2)
    assert found["single"] == pytest.approx(2.8)
    assert between([[50, 3.0], [100, 2.0]], 75) == pytest.approx(2.5)


def test_echoes_repeat() -> None:
    [text] = echoes(1, 3)
    assert text == text[:ECHO] * TIMES
    assert set(text) <= set(LETTERS)


def test_fixed_attention_sees_places_and_never_what_is_written() -> None:
    torch.manual_seed(0)
    attention = FixedAttention(Attention(8, 2, scope=AttentionSpec(causal=True)))
    layout = Layout.of([12, 5])
    x_ND = torch.randn(17, 8)
    with record(attention, "weights") as seen:
        attention(x_ND, layout)
        attention(torch.randn(17, 8), layout)
    one, other = seen["weights"]
    for weights_HTS, others_HTS in zip(one, other, strict=True):
        assert torch.equal(weights_HTS, others_HTS)
        assert not weights_HTS.triu(1).any()
    # The first head looks at the letter before, the second at the one before that.
    assert one[0][0, 5:].argmax(-1).tolist() == list(range(4, 11))
    assert one[0][1, 5:].argmax(-1).tolist() == list(range(3, 10))
    # What it gives is linear in what is read.
    torch.testing.assert_close(attention(2 * x_ND, layout), 2 * attention(x_ND, layout))


def test_arms_differ_in_which_layers_have_a_head() -> None:
    heads = {}
    for arm in ("no-head", "single", "every-layer"):
        other = OTHERS[arm]
        model = build_model(shape(width=8, n_layers=LAYERS, vocab=12, **other), seed=0)
        heads[arm] = [layer for layer, block in enumerate(model.stack.blocks) if block.attention]
    assert heads == {"no-head": [], "single": [LAYERS - 2], "every-layer": list(range(LAYERS))}


@pytest.mark.parametrize("vocab", [12, 70])
def test_arms_have_as_many_parameters_to_three_percent(vocab: int) -> None:
    n = parameters_of(48, vocab)
    for arm, other in OTHERS.items():
        width = width_of(n_parameters=n, n_layers=LAYERS, vocab=vocab, by=1, **other)
        own = count_parameters(
            meta_model(shape(width=width, n_layers=LAYERS, vocab=vocab, **other))
        )
        assert own == pytest.approx(n, rel=0.03), arm
