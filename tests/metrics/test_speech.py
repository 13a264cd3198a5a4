"""Error rates against jiwer, equal error rates against what one can work out."""

from __future__ import annotations

import math

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.metrics.speech import (
    EditCounts,
    character_errors,
    det_points,
    equal_error,
    without_case_and_punctuation,
    word_errors,
)

TEXTS = st.lists(
    st.sampled_from(["a", "b", "c", " ", "  ", "\t", "dd ", "é", ""]), max_size=24
).map("".join)


def as_errors(output: jiwer.WordOutput | jiwer.CharacterOutput) -> EditCounts:
    return EditCounts(output.hits, output.substitutions, output.deletions, output.insertions)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4))
def test_counts_and_rates_are_those_of_jiwer(pairs: list[tuple[str, str]]) -> None:
    right, found = [a for a, _ in pairs], [b for _, b in pairs]
    by_words, by_characters = (
        jiwer.process_words(right, found),
        jiwer.process_characters(right, found),
    )
    assert word_errors(right, found) == as_errors(by_words)
    assert character_errors(right, found) == as_errors(by_characters)
    assert word_errors(right, found).rate == pytest.approx(by_words.wer)
    assert character_errors(right, found).rate == pytest.approx(by_characters.cer)


@pytest.mark.parametrize("n", [300, 2_500, 4_100])
def test_long_texts_too_are_counted_as_jiwer_does(n: int) -> None:
    """The longest are cut in two on the way."""
    draw = np.random.default_rng(n)
    letters = list("abcde ")
    right = draw.choice(letters, n)
    found = right[draw.random(n) > 0.1]
    found = np.where(draw.random(len(found)) > 0.2, found, draw.choice(letters, len(found)))
    texts = ["".join(right)], ["".join(found)]
    assert character_errors(*texts) == as_errors(jiwer.process_characters(*texts))


def test_each_error_is_counted_by_its_kind() -> None:
    assert word_errors(["a b c d"], ["a x c d e"]) == EditCounts(3, 1, 0, 1)
    assert word_errors(["a b c d"], ["a d"]) == EditCounts(2, 0, 2, 0)
    assert word_errors(["a b c d"], ["a d"]).rate == 0.5
    assert word_errors([""], ["a b"]).rate == 2.0
    assert word_errors([], []).rate == 0.0
    with pytest.raises(ValueError, match="zip"):
        word_errors(["a"], [])


def test_texts_without_case_and_punctuation() -> None:
    clean = without_case_and_punctuation
    assert clean("  Don’t stop — NOW! ") == "dont stop now"
    assert clean("Well-known: 3,5 µm…") == "wellknown 3 5 μm"
    assert clean("Größe, ça!") == "größe ça"
    assert clean("?!") == ""


def test_equal_error_of_scores_one_can_count() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1])
    apart = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    assert equal_error(scores, apart) == (0.0, 0.6)
    one_each = np.array([1, 1, 1, 0, 1, 0, 0, 0], dtype=bool)
    assert equal_error(scores, one_each) == (0.25, 0.6)
    assert equal_error(-scores, apart).rate == 1.0
    assert equal_error(np.zeros(8), apart).rate == 0.5
    with pytest.raises(ValueError, match="speakers"):
        equal_error(scores, np.ones(8, dtype=bool))


def test_equal_error_of_two_bells_is_their_overlap() -> None:
    """Gaussians a distance d apart: the rate is Φ(−d / 2), the threshold halfway."""
    draw = np.random.default_rng(0)
    n = 200_000
    for d in (1.0, 2.0):
        scores = np.concatenate([draw.normal(d, 1, n), draw.normal(0, 1, 2 * n)])
        same = np.arange(3 * n) < n
        rate, threshold = equal_error(scores, same)
        assert rate == pytest.approx(0.5 * math.erfc(d / 2 / math.sqrt(2)), abs=0.003)
        assert threshold == pytest.approx(d / 2, abs=0.02)


def test_det_points_count_those_below_and_above_each_threshold() -> None:
    draw = np.random.default_rng(1)
    scores, same = draw.integers(0, 9, 60) / 4, draw.random(60) < 0.4
    points = det_points(scores, same)
    assert (np.diff(points.threshold) > 0).all()
    for threshold, accept, reject in zip(*points, strict=True):
        assert accept == pytest.approx((scores[~same] >= threshold).mean())
        assert reject == pytest.approx((scores[same] < threshold).mean())
    assert (points.false_accept[0], points.false_reject[0]) == (1, 0)
    assert (points.false_accept[-1], points.false_reject[-1]) == (0, 1)
