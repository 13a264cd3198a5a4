"""Many tensors changed at once are what each becomes by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.training import tensor_lists


@pytest.fixture(params=[True, False], ids=["at once", "one after another"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_lists, "AT_ONCE", request.param)


def lists() -> tuple[list[Tensor], list[Tensor]]:
    shapes = [(2, 3), (4,), ()]
    ones = [torch.full(shape, i + 1.0) for i, shape in enumerate(shapes)]
    return ones, [x * 10 for x in ones]


def test_they_are_added_scaled_cleared_and_set_against_each_other() -> None:
    sums, more = lists()
    tensor_lists.add_(sums, more)
    assert [float(x.max()) for x in sums] == [11.0, 22.0, 33.0]
    tensor_lists.scale_(sums, torch.tensor(0.5))
    assert [float(x.min()) for x in sums] == [5.5, 11.0, 16.5]
    found = tensor_lists.differences(more, sums)
    assert [float(x.max()) for x in found] == [4.5, 9.0, 13.5]
    assert [float(x.max()) for x in more] == [10.0, 20.0, 30.0]
    tensor_lists.zero_(sums)
    assert [x.shape for x in sums] == [x.shape for x in more]
    assert not any(x.any() for x in sums)
