"""Alignments from attention, on attention made by hand and on a model that copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.decode.align import (
    align_words,
    cross_attention,
    pharaoh,
    source_words,
    word_numbers,
)
from headway.settings.data import TokenizerSettings
from headway.tokens.trainer import train_vocabularies

from . import copying
from .copying import BOS, copier


def test_pieces_know_their_word() -> None:
    assert word_numbers(["▁Hel", "lo", ",", "▁wor", "ld"]) == [0, 0, 0, 1, 1]
    assert word_numbers(["a", "b", "▁", "c", "▁", "▁", "d"]) == [0, 0, 0, 1, 1, 1, 2]
    assert word_numbers(["▁", "▁a"]) == [0, 0]
    assert word_numbers(["▁a▁b", "c"]) == [1, 1]
    assert word_numbers([]) == []
    assert word_numbers(["▁a", "<unk>", "b"], "<unk>") == [0, 1, 2]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters", "bytes"])
def test_source_tokens_know_their_word_also_where_they_are_unknown(kind: Any) -> None:
    lines = ["Der alte Mann, der alte Hund.", "Ein Hund!"] * 3
    settings = TokenizerSettings(kind=kind, vocab_size=300)
    source = train_vocabularies(lines, lines, settings, 6).source
    for text in ("Der alte, Xylophon! Hund", "ö Ein Ünikum.", " Der  Hund", "Hund"):
        ids = source.encode(text)
        numbers = source_words(text, ids, source)
        words = text.split()
        assert len(numbers) == len(ids)
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(len(words)))
        if kind == "words" and "  " in text:
            continue  # two spaces are an unknown word there
        for number, word in enumerate(words):
            of_word = [token for token, n in zip(ids, numbers, strict=True) if n == number]
            if source.unk not in of_word:
                assert source.decode(of_word).strip() == word


def test_a_word_is_aligned_with_the_word_that_its_tokens_see_most() -> None:
    # Three target tokens (two words) and the end, five source tokens (three words) and the end.
    # No single token of the second source word has more than the third word's.
    attention_TS = torch.tensor(
        [
            [0.1, 0.1, 0.3, 0.0, 0.4, 0.1],
            [0.0, 0.0, 0.3, 0.3, 0.4, 0.0],
            [0.0, 0.1, 0.0, 0.1, 0.3, 0.5],  # most on the end, which is no word
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
        sources, cross_attention(model, sources, targets, BOS), strict=True
    ):
        assert attention_TS.shape == (len(source), len(source))
        torch.testing.assert_close(attention_TS.sum(1), torch.ones(len(source)))
        numbers = list(range(len(source) - 1))
        pairs = align_words(attention_TS, numbers, numbers)
        right += sum(a == b for a, b in pairs)
        total += len(numbers)
    assert right > 0.9 * total
