"""Windows, batches and parts of lines: nothing lost, nothing out of order, nothing held back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.decode.batching import FIRST_WINDOW, batches, windows
from headway.decode.split_text import split_text


@pytest.mark.parametrize("cut", [windows, partial(windows, live=True)])
@pytest.mark.parametrize("n", [0, 1, FIRST_WINDOW, 3 * FIRST_WINDOW + 1, 5000])
def test_windows_hold_every_line_in_order(cut: type, n: int) -> None:
    found = list(cut(range(n)))
    assert [line for window in found for line in window] == list(range(n))
    assert all(found)


def test_a_live_window_does_not_wait_for_the_next_line() -> None:
    """A person who types gets an answer to each line before typing the next."""
    typed: queue.Queue[str | None] = queue.Queue()

    def lines() -> Iterator[str]:
        while (line := typed.get(timeout=120)) is not None:
            yield line

    answers = windows(lines(), live=True)
    typed.put("one")
    assert next(answers) == ["one"]
    typed.put("two")
    typed.put("three")
    assert next(answers)[0] == "two"
    typed.put(None)
    list(answers)


@pytest.mark.parametrize("cut", [windows, partial(windows, live=True)])
def test_an_error_in_reading_arrives_after_the_lines_before_it(cut: type) -> None:
    def lines() -> Iterator[str]:
        yield "one"
        raise OSError(5, "disk")

    answers = cut(lines())
    assert next(answers) == ["one"]
    with pytest.raises(OSError, match="disk"):
        next(answers)
    assert threading.active_count() < 20


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_batches_hold_every_place_once_and_keep_to_their_room(
    lengths: list[int], room: int
) -> None:
    groups = list(batches(lengths, room))
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or max(lengths[i] for i in group) * len(group) <= room


def words(texts: object) -> list[int]:
    return [len(text.split()) for text in texts]  # type: ignore[attr-defined]


def letters(texts: object) -> list[int]:
    return [len(text) for text in texts]  # type: ignore[attr-defined]


def test_a_long_text_is_cut_at_its_sentence_ends() -> None:
    text = 'Der erste Satz. Der zweite, z. B. dieser! "Der dritte?" Und 3.5 sind 4. Ende (so).'
    expected = ["Der erste Satz.", "Der zweite, z. B. dieser!", '"Der dritte?"']
    assert split_text(text, 6, words) == [*expected, "Und 3.5 sind 4. Ende (so)."]
    assert split_text(text, 100, words) == [text]
    assert split_text("一。二！三", 2, letters) == ["一。", "二！", "三"]


def test_a_long_sentence_is_cut_at_pauses_then_spaces_then_anywhere() -> None:
    assert split_text("a b, c d, e f", 4, words) == ["a b, c d,", "e f"]
    assert split_text("a b c d e f g", 3, words) == ["a b c", "d e f", "g"]
    assert split_text("abcdefgh", 3, letters) == ["ab", "cd", "ef", "gh"]


@settings(deadline=None)
@given(st.text(alphabet="ab ,.!?A ", max_size=80), st.integers(1, 8))
def test_parts_fit_and_hold_every_word(text: str, limit: int) -> None:
    parts = split_text(text, limit, words)
    assert " ".join(parts).split() == text.split()
    assert all(count <= limit for count in words(parts))
