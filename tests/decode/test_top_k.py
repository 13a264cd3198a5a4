"""The largest of each row, against torch's own."""

from __future__ import annotations

import pytest
import torch

from headway.decode.search.top_k import top_k


@pytest.mark.parametrize("size", [3, 100, 128, 2000, 3000, 5120, 5121])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_the_best_are_those_of_a_full_sort(size: int, k: int) -> None:
    torch.manual_seed(size + k)
    scores_RV = torch.randn(5, size)
    scores_RV[1, : size // 2] = -torch.inf
    scores_RV[2] = scores_RV[2].sort().values  # all of the best in one block
    values, where = top_k(scores_RV, k)
    expected = scores_RV.topk(min(k, size))
    assert torch.equal(values, expected.values)
    assert torch.equal(scores_RV.gather(1, where), values)
    assert torch.equal(where, expected.indices)
