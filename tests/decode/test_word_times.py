"""Times of words from attention: the best path, the heads that follow the audio, pauses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headway.decode.speech.subtitles import lines_of, srt, vtt
from headway.decode.speech.word_times import (
    WordTiming,
    alignment_heads,
    make_word_timings,
    measure_coverage,
    monotone_path,
    share_on_path,
    snap_to_pauses,
    token_rows,
)

ROWS, TOKENS = 24, 5


def following(seed: int = 0, sharp: float = 3.0) -> np.ndarray:
    """Attention (T S) of a head that follows: token t looks at its own stretch of rows."""
    draw = np.random.default_rng(seed)
    scores = draw.normal(0, 0.3, (TOKENS, ROWS))
    for token in range(TOKENS):
        scores[token, token * ROWS // TOKENS : (token + 1) * ROWS // TOKENS] += sharp
    p = np.exp(scores)
    return p / p.sum(1, keepdims=True)


def test_what_a_line_holds_is_counted_by_tokens_and_by_words() -> None:
    """Two words of two letters and the end. Each letter looks at the other one of its word: the
    line holds nothing of it, the stretches of the words all."""
    rows = [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    swapped = np.zeros((5, 10))
    for token, (first, last) in enumerate([*(rows[n] for n in (1, 0, 3, 2)), rows[4]]):
        swapped[token, first:last] = 0.5
    held = measure_coverage(rows, swapped, [0, 0, 1, 1, -1])
    assert (held.on_path, held.in_words, held.chance) == pytest.approx((0.2, 1.0, 0.4))
    assert held.follows_audio
    even = measure_coverage(rows, np.full((5, 10), 0.1), [0, 0, 1, 1, -1])
    assert (even.on_path, even.in_words, even.chance) == pytest.approx((0.2, 0.4, 0.4))
    assert not even.follows_audio


def test_heads_cannot_be_chosen_from_one_word() -> None:
    held = measure_coverage([(0, 5), (5, 9), (9, 10)], np.full((3, 10), 0.1), [0, 0, -1])
    assert held.chance == pytest.approx(0.9)
    assert not held.is_conclusive
    assert not held.follows_audio


def test_the_path_is_the_best_of_all() -> None:
    worth = np.random.default_rng(1).normal(size=(3, 7))
    path = monotone_path(worth)
    best = -np.inf
    for cuts in itertools.combinations(range(1, 7), 2):  # where the second and third begin
        tokens = np.searchsorted(np.array(cuts), np.arange(7), side="right")
        best = max(best, worth[tokens, np.arange(7)].sum())
    assert worth[path, np.arange(7)].sum() == pytest.approx(best)
    assert path[0] == 0
    assert path[-1] == 2
    assert set(np.diff(path)) <= {0, 1}


def test_more_tokens_than_rows_still_have_a_path() -> None:
    assert monotone_path(np.zeros((5, 3))).tolist() == [0, 1, 3]
    assert len(token_rows(np.random.default_rng(0).random((2, 5, 3)))) == 5


def test_a_head_that_follows_differs_from_others() -> None:
    uniform = np.full((TOKENS, ROWS), 1 / ROWS)
    fixed = np.zeros((TOKENS, ROWS))
    fixed[:, 3] = 1.0
    backwards = following()[::-1]
    assert share_on_path(uniform) == pytest.approx(1 / TOKENS)
    assert share_on_path(fixed) == pytest.approx(1 / TOKENS)
    assert share_on_path(following()) > 0.7
    assert share_on_path(backwards) < 0.5
    heads, shares = alignment_heads([np.stack([uniform, following(), fixed, backwards])] * 2)
    assert heads == [1]
    assert int(np.argmax(shares)) == 1
    # Below the last layer a head may follow better, and look at the word before.
    heads, shares = alignment_heads([np.stack([following(0, 9.0), uniform, following()])], 2)
    assert heads == [2]
    assert len(shares) == 3


def test_tokens_get_the_rows_that_their_heads_look_at() -> None:
    rows = token_rows(np.stack([following(seed) for seed in range(3)]))
    expected = [(t * ROWS // TOKENS, (t + 1) * ROWS // TOKENS) for t in range(TOKENS)]
    assert [b for _, b in rows[:-1]] == [a for a, _ in rows[1:]]
    assert np.abs(np.array(rows) - np.array(expected)).max() <= 1


def test_words_are_as_long_and_as_sure_as_their_tokens() -> None:
    rows = [(0, 2), (2, 3), (3, 4), (4, 9)]
    logs = np.log([0.5, 0.5, 0.125, 0.9]).tolist()
    found = make_word_timings(["abb", "c"], ["a", "b", "b", "c"], [0, 0, 0, 1], rows, logs, 0.02)
    assert [(word.text, word.start, word.end) for word in found] == [
        ("abb", 0.0, pytest.approx(0.08)),
        ("c", pytest.approx(0.08), pytest.approx(0.18)),
    ]
    assert found[0].confidence == pytest.approx(0.5 * 0.25 ** (1 / 3))
    assert found[1].confidence == pytest.approx(0.9)


def test_a_space_has_no_part_in_the_time_of_a_word() -> None:
    rows, logs = [(0, 2), (2, 6), (6, 9)], [0.0, 0.0, 0.0]
    found = make_word_timings(["a", "c"], ["a", "▁", "c"], [0, 0, 1], rows, logs, 1.0)
    assert [(word.start, word.end) for word in found] == [(0.0, 2.0), (6.0, 9.0)]


def test_pauses_belong_to_no_word() -> None:
    rate = 1000
    samples = np.zeros(1000, np.float32)
    for start, end in ((100, 350), (500, 800)):
        samples[start:end] = 0.3 * np.sin(np.arange(end - start))
    coarse = [WordTiming("a", 0.0, 0.44, 1.0), WordTiming("b", 0.44, 1.0, 1.0)]
    first, second = snap_to_pauses(coarse, samples, rate)
    assert (first.start, first.end) == (pytest.approx(0.1), pytest.approx(0.35))
    assert (second.start, second.end) == (pytest.approx(0.5), pytest.approx(0.8))
    # A shorter pause within a word is none between words.
    samples[180:220] = 0.0
    assert snap_to_pauses(coarse, samples, rate)[0].end == first.end
    # Without a pause between them words meet where the model put the border.
    samples[350:500] = 0.3
    first, second = snap_to_pauses(coarse, samples, rate)
    assert first.end == second.start == 0.44
    samples[640:680] = 0.0  # too far away to be the border
    assert snap_to_pauses(coarse, samples, rate)[0].end == 0.44
    assert snap_to_pauses(coarse, np.zeros(1000, np.float32), rate) == coarse


def test_subtitles_break_at_pauses_and_when_they_get_long() -> None:
    words = [
        WordTiming("so", 0.0, 0.4, 1.0),
        WordTiming("it", 0.5, 0.7, 1.0),
        WordTiming("is", 61.5, 62.0, 1.0),
    ]
    assert [len(line) for line in lines_of(words)] == [2, 1]
    assert srt(words) == (
        "1\n00:00:00,000 --> 00:00:00,700\nso it\n\n2\n00:01:01,500 --> 00:01:02,000\nis\n"
    )
    assert vtt(words).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.700\nso it\n\n")
    many = [WordTiming("word", i / 10, i / 10 + 0.1, 1.0) for i in range(30)]
    assert max(sum(len(w.text) + 1 for w in line) for line in lines_of(many)) <= 43
    assert srt([]) == ""


def with_pauses(spoken: list[tuple[float, float]], seconds: float, rate: int = 1000) -> np.ndarray:
    samples = np.zeros(round(seconds * rate), np.float32)
    for start, end in spoken:
        first, last = round(start * rate), round(end * rate)
        samples[first:last] = 0.3 * np.sin(np.arange(last - first))
    return samples


def test_words_are_between_clear_pauses_however_far_the_peaks_are() -> None:
    """CTC may say its tokens half a second too early, all of a word within a moment."""
    spoken = [(0.1, 0.7), (0.8, 1.3), (1.4, 2.0)]
    samples = with_pauses(spoken, 2.2)
    samples[1060:1090] = 0.0  # a stop within the second word, nearer to its peaks than its borders
    peaks = [
        WordTiming("a", 0.0, 0.12, 1.0),
        WordTiming("b", 0.44, 0.56, 1.0),
        WordTiming("c", 0.9, 1.0, 1.0),
    ]
    found = snap_to_pauses(peaks, samples, 1000)
    times = [time for word in found for time in (word.start, word.end)]
    assert times == pytest.approx([time for pair in spoken for time in pair])
    assert [word.text for word in found] == ["a", "b", "c"]
    [alone] = snap_to_pauses(peaks[:1], with_pauses([(0.5, 0.9)], 1.5), 1000)
    assert (alone.start, alone.end) == (pytest.approx(0.5), pytest.approx(0.9))


def test_of_clear_pauses_the_model_chooses() -> None:
    samples = with_pauses([(0.1, 0.5), (0.55, 1.0), (1.05, 1.5)], 1.6)  # two pauses for a border
    for border, pause in ((0.4, (0.5, 0.55)), (1.2, (1.0, 1.05))):
        first, second = snap_to_pauses([WordTiming("a", 0.1, border, 1.0), WordTiming("b", border,
        1.5, 1.0)],
                                samples, 1000)  # fmt: skip
        assert (first.end, second.start) == pytest.approx(pause)


def test_with_fewer_pauses_than_borders_far_ones_move_none() -> None:
    samples = with_pauses([(0.0, 0.6), (0.65, 1.5)], 1.5)
    given = [
        WordTiming("a", 0.0, 0.3, 1.0),
        WordTiming("b", 0.3, 1.0, 1.0),
        WordTiming("c", 1.0, 1.5, 1.0),
    ]
    assert snap_to_pauses(given, samples, 1000) == given
