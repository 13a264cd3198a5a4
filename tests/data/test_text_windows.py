"""Readings of texts, pairs and words against lists put together by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headway.data.text_windows import TextReader, WordReader, word_windows
from headway.data.token_store import TokenStore
from headway.errors import DataError
from tests.facts import naming

BOS, EOS = 1, 2


def reader(texts: list[list[int]], others: list[list[int]] | None, max_len: int) -> TextReader:
    other = None if others is None else TokenStore.of(others)
    return TextReader(text=TokenStore.of(texts), other=other, bos=BOS, eos=EOS, max_len=max_len)


def read(found: TextReader) -> list[tuple[int, list[int], list[int]]]:
    """Of all readings: the example, the tokens, the segments."""
    flat = found.read(np.arange(len(found.lengths)))
    assert flat.lengths.tolist() == found.lengths.tolist()
    ends = np.cumsum(flat.lengths)[:-1]
    parts = zip(np.split(flat.tokens, ends), np.split(flat.segments, ends), strict=True)
    return [
        (int(example), tokens.tolist(), segments.tolist())
        for example, (tokens, segments) in zip(found.example, parts, strict=True)
    ]


def test_texts_are_enclosed_in_special_tokens() -> None:
    assert read(reader([[7, 8], [], [9]], None, 10)) == [
        (0, [1, 7, 8, 2], [0] * 4),
        (1, [1, 2], [0] * 2),
        (2, [1, 9, 2], [0] * 3),
    ]


def test_pairs_have_an_end_each_and_two_segments() -> None:
    assert read(reader([[7, 8], []], [[9], [5]], 10)) == [
        (0, [1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1]),
        (1, [1, 2, 5, 2], [0, 0, 1, 1]),
    ]


def test_windows_do_not_depend_on_the_selection() -> None:
    found = reader([[7, 8, 9], [5], [3, 4]], None, 4)
    everything = read(found)
    for rows in ([2, 0], [1], [3, 1, 2]):
        flat = found.read(np.array(rows))
        assert flat.tokens.tolist() == [t for row in rows for t in everything[row][1]]


def test_long_texts_become_windows_that_overlap_by_half_and_end_with_the_text() -> None:
    found = read(reader([list(range(10, 21)), [9]], None, 6))
    assert [tokens for example, tokens, _ in found if example == 0] == [
        [1, 10, 11, 12, 13, 2],
        [1, 12, 13, 14, 15, 2],
        [1, 14, 15, 16, 17, 2],
        [1, 16, 17, 18, 19, 2],
        [1, 17, 18, 19, 20, 2],
    ]
    assert found[-1] == (1, [1, 9, 2], [0, 0, 0])


@pytest.mark.parametrize("swapped", [False, True])
def test_the_longer_text_of_a_long_pair_is_cut(swapped: bool) -> None:
    long, short = [list(range(10, 16))], [[5, 6]]
    pair = (short, long) if swapped else (long, short)
    found = [tokens for _, tokens, _ in read(reader(*pair, 9))]
    windows = [[10, 11, 12, 13], [12, 13, 14, 15]]
    expected = [[1, 5, 6, 2, *w, 2] if swapped else [1, *w, 2, 5, 6, 2] for w in windows]
    assert found == expected


def test_a_pair_of_two_long_texts_is_an_error() -> None:
    with pytest.raises(DataError, match=naming(2, 12, 16, "model.max_len")):
        reader([[5], [5] * 20], [[6], [6] * 12], 16).windows  # noqa: B018


def test_needed_lengths_are_known() -> None:
    assert reader([[5] * 40, [5]], None, 10).full_lengths.tolist() == [42, 3]
    assert reader([[5] * 4], [[5]], 10).full_lengths.tolist() == [8]


def words(sentences: list[list[list[int]]], max_len: int) -> WordReader:
    """Sentences of words of pieces."""
    return WordReader(
        text=TokenStore.of([[p for word in s for p in word] for s in sentences]),
        pieces=TokenStore.of([[len(word) for word in s] for s in sentences]),
        bos=BOS,
        eos=EOS,
        max_len=max_len,
    )


def test_words_are_found_at_their_first_piece() -> None:
    found = words([[[5], [6, 7], [8]], [[9, 3]], []], 40)
    flat, rows, counts = found.read(np.arange(3))
    assert flat.tokens.tolist() == [1, 5, 6, 7, 8, 2, 1, 9, 3, 2, 1, 2]
    assert counts.tolist() == [3, 1, 0]
    assert flat.tokens[rows].tolist() == [5, 6, 8, 9]
    assert found.words.tokens.tolist() == [0, 1, 2, 3]
    flat, rows, _ = found.read(np.array([1, 0]))
    assert flat.tokens[rows].tolist() == [9, 5, 6, 8]


def test_long_sentences_are_cut_between_words_and_each_word_is_answered_for_once() -> None:
    random = np.random.default_rng(4)
    sentences = [
        [[1000 * s + 10 * w + p for p in range(random.integers(1, 4))] for w in range(n)]
        for s, n in enumerate([30, 3, 50], 1)
    ]
    found = words(sentences, 20)
    flat, rows, counts = found.read(np.arange(len(found.lengths)))
    assert flat.lengths.max() <= 20
    assert flat.lengths.tolist() == found.lengths.tolist()
    firsts = [word[0] for sentence in sentences for word in sentence]
    assert flat.tokens[rows].tolist() == firsts
    assert found.words.tokens.tolist() == list(range(83))
    assert counts.sum() == 83
    # Inside a long sentence every word has neighbours on both sides.
    starts = np.cumsum(flat.lengths) - flat.lengths
    ends = np.cumsum(flat.lengths)
    reading = np.repeat(np.arange(len(counts)), counts)
    room = np.minimum(rows - starts[reading], ends[reading] - rows)
    inner = [i for i, first in enumerate(firsts) if first % 1000 not in (0, 290, 490, 10, 280, 480)]
    assert min(room[i] for i in inner if firsts[i] // 1000 != 2) >= 3


def test_a_word_of_very_many_pieces_is_read_by_its_first_ones() -> None:
    found = words([[[5], list(range(100, 150)), [6]]], 10)
    flat, rows, _ = found.read(np.array([0]))
    assert flat.tokens.tolist() == [1, 5, 100, 101, 6, 2]
    assert flat.tokens[rows].tolist() == [5, 100, 6]
    assert found.cut_words == 1


def test_windows_of_words_continue_after_a_word_that_fills_one() -> None:
    sizes = np.full(5, 4)
    cut = word_windows(sizes, 4)
    assert [own for *_, own, _ in cut] == [0, 1, 2, 3, 4]
    assert all(end > own for *_, own, end in cut)


def test_two_ends_between_a_pair_take_the_place_of_segments() -> None:
    def roberta(texts: list[list[int]], others: list[list[int]], max_len: int) -> TextReader:
        return TextReader(
            text=TokenStore.of(texts), other=TokenStore.of(others), bos=BOS, eos=EOS,
            max_len=max_len, pair_ends=2,
        )  # fmt: skip

    found = roberta([[7, 8], []], [[9], [5]], 10)
    assert read(found) == [(0, [1, 7, 8, 2, 2, 9, 2], [0] * 7), (1, [1, 2, 2, 5, 2], [0] * 5)]
    assert found.full_lengths.tolist() == [7, 5]
    windows = read(roberta([list(range(10, 20))], [[9]], 9))
    assert all(len(tokens) <= 9 and tokens[-4:] == [2, 2, 9, 2] for _, tokens, _ in windows)
    assert {t for _, tokens, _ in windows for t in tokens} == {1, 2, 9, *range(10, 20)}
