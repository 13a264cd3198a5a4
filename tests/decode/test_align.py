"""Alignments from attention, on attention made by hand and on a model that copies."""

from __future__ import annotations

import torch

from headway.decode.align import align_words, attention_of, pharaoh, word_numbers

from . import copying
from .copying import BOS, copier


def test_pieces_know_their_word() -> None:
    assert word_numbers(["▁Hel", "lo", ",", "▁wor", "ld"]) == [0, 0, 0, 1, 1]
    assert word_numbers(["a", "b", "▁", "c", "▁", "▁", "d"]) == [0, 0, 0, 1, 1, 1, 2]
    assert word_numbers(["▁", "▁a"]) == [0, 0]
    assert word_numbers(["▁a▁b", "c"]) == [1, 1]
    assert word_numbers([]) == []


def test_a_word_is_aligned_with_the_word_that_its_tokens_see_most() -> None:
    # Three target tokens (two words) and the end, five source tokens (three words) and the end.
    attention_TS = torch.tensor(
        [
            [0.3, 0.1, 0.2, 0.1, 0.0, 0.3],
            [0.0, 0.0, 0.1, 0.8, 0.0, 0.1],
            [0.0, 0.1, 0.0, 0.1, 0.2, 0.6],  # most on the end, which is no word
            [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        ]
    )
    pairs = align_words(attention_TS, [0, 0, 1, 1, 2], [0, 0, 1])
    assert pairs == [(1, 0), (2, 1)]
    assert pharaoh(pairs) == "1-0 2-1"
    assert align_words(attention_TS, [], [0]) == []
    assert pharaoh([]) == ""


def test_a_model_that_copies_aligns_every_word_with_itself() -> None:
    model = copier(250)
    sources = [source for source in copying.sources(30, seed=4) if len(set(source)) == len(source)]
    targets = [source[:-1] for source in sources]
    right = total = 0
    for source, attention_TS in zip(
        sources, attention_of(model, sources, targets, BOS), strict=True
    ):
        assert attention_TS.shape == (len(source), len(source))
        torch.testing.assert_close(attention_TS.sum(1), torch.ones(len(source)))
        numbers = list(range(len(source) - 1))
        pairs = align_words(attention_TS, numbers, numbers)
        right += sum(a == b for a, b in pairs)
        total += len(numbers)
    assert right > 0.9 * total
