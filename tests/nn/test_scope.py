"""Who may see whom, against rules written as loops."""

from __future__ import annotations

import pytest
import torch

from headway.nn.attention.scope import AttentionSpec, allowed_TS


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 3])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(4, 4), (2, 5), (1, 3), (3, 2), (2, 0)])
def test_the_mask_equals_the_rule_written_out(
    causal: bool, window: int | None, n_queries: int, n_keys: int
) -> None:
    may_TS = allowed_TS(
        AttentionSpec(causal=causal, window=window), torch.empty(2, n_queries, n_keys)
    )
    for t in range(n_queries):
        place = n_keys - n_queries + t  # the last query stands at the last key
        for s in range(n_keys):
            wanted = (not causal or s <= place) and (window is None or abs(s - place) < window)
            assert bool(may_TS[t, s]) is wanted, (t, s)
    assert may_TS.shape == (n_queries, n_keys)


def test_a_distance_is_key_position_less_query_position() -> None:
    assert AttentionSpec.distance_TS(torch.empty(1, 2, 3)).tolist() == [[-1, 0, 1], [-2, -1, 0]]


def test_the_default_scale_is_one_over_the_root_of_the_width() -> None:
    assert AttentionSpec().scale_for(64) == 1 / 8
    assert AttentionSpec(scale=0.5).scale_for(64) == 0.5


def test_without_dropout_everything_else_stays() -> None:
    bias = torch.zeros_like
    scope = AttentionSpec(causal=True, window=3, bias=bias, dropout=0.5, scale=2.0)
    assert scope.without_dropout() == AttentionSpec(causal=True, window=3, bias=bias, scale=2.0)
    plain = AttentionSpec(causal=True)
    assert plain.without_dropout() is plain
