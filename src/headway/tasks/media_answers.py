"""Answers for media files that cannot be read, and notes on silent audio."""

from __future__ import annotations

from dataclasses import replace

from headway.tasks.answers import Answer
from headway.tasks.media_inputs import LoadedInput

FIRST_WINDOW = 16
"""Number of items that are read before the first prediction."""


def unreadable_answer(name: str, error: str) -> Answer:
    return Answer(place=name, error=error)


def note_silence(answer: Answer, one: LoadedInput) -> Answer:
    """The answer, with a note if the audio is silent."""
    if not one.is_silent:
        return answer
    note = f"{one.name} is silent, so its prediction is meaningless."
    return replace(answer, notes=(note,), silent=True)
