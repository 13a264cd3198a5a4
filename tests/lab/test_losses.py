"""Words that are right when those before them are given, of a model that is known by heart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from headway.inside.measure.truth import AlignedPair
from headway.lab.losses import score_pairs
from tests.inside.copier import SLOTS, WORDS, copier


def test_an_end_token_is_not_a_word(tmp_path: Path) -> None:
    """A copier that is made to say nothing but the end has a share of the tokens right, and of the
    words none."""
    opened = copier(tmp_path)
    run: Any = SimpleNamespace(opened=opened, model=opened.model, device=torch.device("cpu"))
    pairs = [AlignedPair(text, text, ()) for text in (" ".join(WORDS[i : i + 4]) for i in range(5))]
    assert score_pairs(run, pairs).accuracy == 1
    with torch.no_grad():
        table_VD = run.model.target_front.tokens.weight
        table_VD[opened.vocab.target.eos, SLOTS : SLOTS + 8] += 100  # wherever it stands
    assert score_pairs(run, pairs).accuracy == 0
