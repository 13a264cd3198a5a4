"""Spans by hand, and against what seqeval 1.2.2 gave for the same tags."""

from __future__ import annotations

import pytest

from headway.metrics.spans import (
    TagSpan,
    span_f1_interval,
    span_scores,
    spans,
    tag_accuracy,
    tag_accuracy_interval,
)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-a I-a O", [TagSpan("a", 1, 2)]),
        ("B-a B-a I-a", [TagSpan("a", 0, 0), TagSpan("a", 1, 2)]),
        ("B-a I-b", [TagSpan("a", 0, 0), TagSpan("b", 1, 1)]),
        ("I-a I-a", [TagSpan("a", 0, 1)]),  # IOB1, or broken BIO: it begins all the same
        ("O I-a B-a", [TagSpan("a", 1, 1), TagSpan("a", 2, 2)]),
        ("B-a I-a E-a S-b", [TagSpan("a", 0, 2), TagSpan("b", 3, 3)]),
        ("E-a E-a I-a", [TagSpan("a", 0, 0), TagSpan("a", 1, 1), TagSpan("a", 2, 2)]),
        ("B-a-b I-a-b", [TagSpan("a-b", 0, 1)]),
        ("O O", []),
        ("", []),
    ],
)
def test_where_spans_begin_and_end(tags: str, found: list[TagSpan]) -> None:
    assert spans(tags.split()) == found


SEQEVAL = [
    (
        ["I-a B-a B-b O O", "I-b O I-a I-b"],
        ["I-b O O I-b I-b", "B-a O I-a I-b"],
        (0.4, 1 / 3, 4 / 11),
    ),
    (
        ["E-a O B-a O S-a", "B-a I-a E-a B-a"],
        ["E-a O B-a O S-a", "B-a S-a E-a B-a"],
        (4 / 7, 0.8, 2 / 3),
    ),
    (
        ["I-a I-b I-b B-a I-b", "I-b B-a B-a I-a"],
        ["I-a I-b B-a B-a I-b", "I-b O I-b B-a"],
        (0.5, 4 / 7, 8 / 15),
    ),
]


@pytest.mark.parametrize(("truths", "guesses", "expected"), SEQEVAL)
def test_scores_are_seqevals(
    truths: list[str], guesses: list[str], expected: tuple[float, float, float]
) -> None:
    whole, _ = span_scores([t.split() for t in truths], [g.split() for g in guesses])
    assert (whole.precision, whole.recall, whole.f1) == pytest.approx(expected)


def test_scores_of_each_type() -> None:
    truths = [["B-a", "I-a", "O", "B-b"], ["I-a", "I-b", "B-b"]]
    guesses = [["B-a", "O", "O", "B-b"], ["B-a", "I-b", "I-b"]]
    whole, types = span_scores(truths, guesses)
    assert whole.support == 5
    assert whole.f1 == pytest.approx(4 / 9)
    assert types["a"].f1 == pytest.approx(0.5)
    assert (types["b"].precision, types["b"].recall) == pytest.approx((1 / 2, 1 / 3))


def test_a_type_that_is_only_guessed_is_shown_with_no_support() -> None:
    _, types = span_scores([["O"]], [["B-new"]])
    assert types["new"].support == 0
    assert types["new"].f1 == 0


def test_the_same_span_in_another_sentence_does_not_count() -> None:
    whole, _ = span_scores([["B-a"], ["O"]], [["O"], ["B-a"]])
    assert whole.f1 == 0


def test_intervals_hold_the_value_and_are_the_same_again() -> None:
    truths = [["B-a", "O"], ["B-b", "I-b"], ["O", "O"]] * 40
    guesses = [["B-a", "O"], ["B-b", "O"], ["O", "O"]] * 40
    found = span_f1_interval(truths, guesses)
    assert found.value == span_scores(truths, guesses)[0].f1 == 0.5
    assert 0.35 < found.low < 0.5 < found.high < 0.65
    assert found == span_f1_interval(truths, guesses)


def test_accuracy_of_plain_tags_is_by_word() -> None:
    truths, guesses = [["N", "V", "N"], ["D"]], [["N", "N", "N"], ["D"]]
    assert tag_accuracy(truths, guesses) == 0.75
    assert tag_accuracy_interval(truths, guesses).low < 0.75


def test_tags_that_do_not_belong_together_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match=r"\b1\b.*\b2\b"):
        span_scores([["O", "O"]], [["O"]])
