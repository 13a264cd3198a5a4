"""Notes on silent audio, and error answers for media files that cannot be read."""

from __future__ import annotations

from dataclasses import replace

from headway.tasks.answers import Answer
from headway.tasks.media_inputs import LoadedInput

FIRST_WINDOW = 16
"""Number of media inputs that are read before the first prediction, so that they share a batch."""


def unreadable_answer(name: str, error: str) -> Answer:
    return Answer(place=name, error=error)


def note_silence(answer: Answer, one: LoadedInput) -> Answer:
    """Return the answer, with a note if the audio is silent."""
    if not one.is_silent:
        return answer
    note = f"{one.name} is silent, so its prediction is meaningless."
    return replace(answer, notes=(note,), silent=True)
