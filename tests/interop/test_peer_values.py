"""Values that the test files of `transformers` expect, for parts that we have too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from headway.nn.positions import sinusoids

from .test_hf_encoders import BERT
from .theirs import architecture, reference, saved

ROFORMER = [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.8415, 0.0464, 0.0022, 0.5403, 0.9989, 1.0]]
ROFORMER_512 = [
    [0.0, 0.0, 0.0, 0.0, 0.0],
    [0.8415, 0.8219, 0.8020, 0.7819, 0.7617],
    [0.9093, 0.9364, 0.9581, 0.9749, 0.9870],
]


@pytest.mark.parametrize(
    ("table_PD", "expected", "tolerance"),
    [
        (sinusoids(2, 6, halves=True), ROFORMER, 1e-4),
        (sinusoids(512, 512, halves=True)[:3, :5], ROFORMER_512, 1e-4),
    ],
    ids=["six wide", "512 wide"],
)
def test_sinusoids_in_halves(
    table_PD: Tensor, expected: list[list[float]], tolerance: float
) -> None:
    """tests/models/roformer/test_modeling_roformer.py."""
    torch.testing.assert_close(table_PD, torch.tensor(expected), rtol=0, atol=tolerance)


@pytest.mark.parametrize("pad", [0, 1, 5])
def test_positions_of_roberta_begin_after_the_padding(pad: int, tmp_path: Path) -> None:
    """tests/models/roberta/test_modeling_roberta.py: the ids 0, 31, 13, padding have the positions
    padding + 1, + 2, + 3, and padding itself."""
    sizes = {**BERT, "pad_token_id": pad, "type_vocab_size": 1}
    found = architecture(saved(reference("RobertaModel", sizes), tmp_path))
    (table,) = (pair for pair in found.pairs if pair.ours == "front.positions.table.weight")
    positions = torch.arange(16)[table.their_rows]
    assert positions[:3].tolist() == [0 + pad + 1, 1 + pad + 1, 2 + pad + 1]
    assert found.model.max_len == len(positions)
