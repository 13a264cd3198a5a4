"""Answers for media files that cannot be read, and notes on silent audio."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.tasks.answers import Answer, JsonDict, PlainPrinted, Printed, PrintOptions
from headway.tasks.media_inputs import LoadedInput

FIRST_WINDOW = 16
"""Number of items that are read before the first prediction."""


def unreadable_answer(name: str, error: str) -> Answer:
    return Answer(place=name, error=error, printed=PlainPrinted("", {"file": name}))


@dataclass(frozen=True)
class _Silent:
    """Printed form of an answer, with a `silent` key in JSON."""

    printed: Printed

    def lines(self, show: PrintOptions, number: int) -> str:
        return self.printed.lines(show, number)

    def facts(self) -> JsonDict:
        return {**self.printed.facts(), "silent": True}


def note_silence(answer: Answer, one: LoadedInput) -> Answer:
    """The answer, with a note if the audio is silent."""
    if not one.is_silent or answer.printed is None:
        return answer
    note = f"{one.name} is silent, so its prediction is meaningless."
    return replace(answer, notes=(note,), printed=_Silent(answer.printed))
