"""Observers see every step of a search and change nothing; `top_k` agrees with torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from headway.decode.logits_processors import SpecialTokens, TokenConstraints
from headway.decode.search.job import BeamStep, top_k
from headway.decode.search.searcher import Searcher
from headway.settings.decode import DecodeSettings

from . import copying, writing
from .copying import BOS, EOS, UNK, copier


class Notes:
    """`Observer` that writes down what it sees."""

    def __init__(self) -> None:
        self.growths: list[BeamStep] = []
        self.picks: list[tuple[list[int], list[int]]] = []

    def on_beam_step(self, growth: BeamStep) -> None:
        total_BWV = growth.before.log_prob_BW[:, :, None] + growth.scores_BWV
        going_B = ~growth.before.done_B
        best_B = total_BWV.flatten(1).amax(1)
        if growth.price_BV is None:
            assert torch.equal(best_B[going_B], growth.found.log_prob_BC[going_B, 0])
        self.growths.append(growth)

    def on_token_step(self, scores_RV: Tensor, sources: Sequence[int], token_R: Tensor) -> None:
        self.picks.append((list(sources), token_R.tolist()))


@pytest.mark.parametrize(
    "settings",
    [
        DecodeSettings(beam=3, n_best=3, max_len=9),
        DecodeSettings(beam=4, groups=2, n_best=2, max_len=9),
        DecodeSettings(beam=2, coverage=0.4, max_len=9),
        DecodeSettings(beam=1, max_len=9),
        DecodeSettings(sample=True, n_best=3, max_len=9),
    ],
)
def test_a_watched_search_finds_the_same_to_the_last_bit(settings: DecodeSettings) -> None:
    sources = copying.sources(12)
    search = Searcher([copier()], settings, SpecialTokens(BOS, EOS, UNK))
    notes = Notes()
    assert search(sources, observer=notes) == search(sources)
    if settings.sample or settings.beam == 1:
        tokens: dict[int, list[int]] = {}
        for numbers, chosen in notes.picks:
            for number, token in zip(numbers, chosen[:: settings.n_best], strict=True):
                tokens.setdefault(number, []).append(token)
        assert tokens.keys() == set(range(len(sources)))
    else:
        groups = {growth.group for growth in notes.growths}
        assert groups == set(range(settings.groups))
        first = [growth for growth in notes.growths if growth.group == 0]
        assert [growth.at for growth in first] == list(range(len(first)))
        assert list(first[0].sources) == list(range(len(sources)))
        assert len(first[-1].sources) < len(sources)  # those that were done have left


def test_language_models_are_watched_too() -> None:
    tokenizer = writing.tokenizer()
    prompts = [[tokenizer.bos, *tokenizer.encode(text)] for text in ("the", "one two")]
    for beam in (1, 3):
        settings = DecodeSettings(beam=beam, max_len=8)
        search = Searcher([writing.writer()], settings, SpecialTokens.of(tokenizer), 96)
        notes = Notes()
        assert search(prompts, observer=notes) == search(prompts)
        assert bool(notes.growths) == (beam == 3)
        assert bool(notes.picks) == (beam == 1)


def test_an_observed_search_does_not_use_the_recorded_steps() -> None:
    class Recorded:
        free = True

        def search(self, *given: object, **more: object) -> NoReturn:
            raise AssertionError("recorded")

    sources = copying.sources(3)
    search = Searcher([copier()], DecodeSettings(beam=2, max_len=9), SpecialTokens(BOS, EOS, UNK))
    search.graph_searcher = Recorded()  # type: ignore[assignment]
    notes = Notes()
    search(sources, [TokenConstraints()] * 3, observer=notes)
    assert notes.growths
    with pytest.raises(AssertionError, match="recorded"):
        search(sources)


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
