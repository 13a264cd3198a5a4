"""CIDEr-D against numbers worked out by hand, and against what its definition demands."""

from __future__ import annotations

import math

import pytest

from headway.metrics.captions import DocumentFrequencies, cider, ciders, match_interval, words_of
from headway.metrics.translation import bleu, chrf, exact_match


def test_words_are_lower_cased_and_without_punctuation() -> None:
    assert words_of("A dog's red ball, top-left.") == ["a", "dog's", "red", "ball", "top", "left"]


def test_an_output_that_is_its_reference_gets_ten() -> None:
    references = ["a red circle above a square", "the small dog runs fast", "two birds sit there"]
    assert ciders(references, references) == pytest.approx([10.0, 10.0, 10.0])


def test_texts_of_two_words_computed_by_hand() -> None:
    """Both words of `red cat` stand once in two images' references, so all weights are ln 2.

    Output `red dog`, first image: orders 1: vectors (1, 1) and (1, 1) in units of ln 2 share one
    coordinate: cosine 1/2. Order 2 shares nothing, 3 and 4 do not exist: (1/2) / 4 · 10.
    """
    references = ["red cat", "blue bird"]
    assert ciders(["red dog", "blue bird"], references) == pytest.approx([1.25, 5.0])


def test_the_variant_d_is_there() -> None:
    """`red red red cat` against `red cat`: counts are clipped to the reference, and the two words
    too many cost exp(-2² / 72)."""
    references = ["red cat", "blue bird"]
    first = (1 * 1 + 1 * 1) / (math.sqrt(9 + 1) * math.sqrt(2))
    second = 1 / math.sqrt(4 + 1)  # red red (twice), red cat; the reference: red cat
    expected = 10 * math.exp(-4 / 72) * (first + second) / 4
    found = ciders(["red red red cat", "blue bird"], references)
    # What stands in no reference weighs as much as what stands in one: ln 2 here, it cancels out.
    assert found[0] == pytest.approx(expected)


def test_words_in_every_reference_score_nothing() -> None:
    references = ["a cat", "a bird"]
    assert ciders(["a", "a bird"], references)[0] == 0.0
    alone = DocumentFrequencies.of(["a cat"])
    assert alone.weight(("a",)) == 0.0  # of one image everything is common
    assert cider(["a cat"], ["a cat"]).value == 0.0


def test_several_references_are_averaged_and_counted_once_per_image() -> None:
    references = [["red cat", "grey mouse", "red mouse"], ["blue bird"]]
    frequencies = DocumentFrequencies.of(references)
    assert frequencies.counts[("red",)] == 1
    assert frequencies.n_images == 2
    one = [ciders(["red cat", "x"], [r, "y"], frequencies)[0] for r in references[0]]
    assert ciders(["red cat", "x"], references)[0] == pytest.approx(sum(one) / 3)
    assert one[1] == 0.0


def test_empty_outputs_get_nothing() -> None:
    assert ciders(["", "bird"], ["red cat", "bird"]).tolist() == [0.0, pytest.approx(2.5)]


def test_an_output_may_be_any_of_its_references() -> None:
    outputs = ["a b c d", "w x y z"]
    references = [["q r s t", "a b c d"], ["w x y z"]]
    assert exact_match(outputs, references).value == 100.0
    assert bleu(outputs, references).value == pytest.approx(100.0)
    assert chrf(outputs, references).value == pytest.approx(100.0)
    first = [these[0] for these in references]
    assert exact_match(outputs, first).value == 50.0
    assert bleu(outputs, first).value < 90.0
    assert bleu(outputs, [[text] for text in first]).value == bleu(outputs, first).value


def test_the_range_of_exact_match_holds_its_value() -> None:
    found = match_interval(80.0, 100)
    assert found.value == 80.0
    assert 70 < found.low < 80 < found.high < 90
