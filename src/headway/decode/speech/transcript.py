"""What was said in a recording, window by window, and how much work it was."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from headway.decode.speech.word_times import Word


@dataclass(frozen=True)
class Heard:
    """What was said in one window."""

    text: str
    log_prob: float = 0.0
    """The mean over its tokens."""

    words: tuple[Word, ...] = ()
    """From the beginning of the window; empty where times were not asked for."""

    tries: int = 1
    is_silent: bool = False
    is_doubtful: bool = False
    """All ways to transcribe it looped, or were unlikely."""


@dataclass(frozen=True)
class Segment:
    """One window of a recording, in its time."""

    start: float
    end: float
    heard: Heard


@dataclass
class Transcript:
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(part.heard.text for part in self.segments if part.heard.text)

    @property
    def words(self) -> list[Word]:
        return [
            replace(word, start=word.start + part.start, end=word.end + part.start)
            for part in self.segments
            for word in part.heard.words
        ]

    @property
    def seconds(self) -> float:
        return self.segments[-1].end if self.segments else 0.0

    @property
    def log_prob(self) -> float:
        """The mean over windows with speech, weighed by their length in characters."""
        spoken = [part.heard for part in self.segments if part.heard.text]
        weights = [len(heard.text) for heard in spoken]
        return float(np.average([h.log_prob for h in spoken], weights=weights)) if spoken else 0.0


@dataclass
class Summary:
    recordings: int = 0
    seconds: float = 0.0
    windows: int = 0
    silent: int = 0
    doubtful: int = 0
    took: float = 0.0

    def text(self) -> str:
        unit = "recording" if self.recordings == 1 else "recordings"
        said = f"{self.recordings:,} {unit}, {self.seconds:,.1f} s of sound"
        if self.windows > self.recordings:
            said += f" in {self.windows:,} windows"
        for n, what in ((self.silent, "silent"), (self.doubtful, "doubtful")):
            said += f", {n:,} {what}" if n else ""
        return f"{said}, {self.took:.1f} s ({self.seconds / max(self.took, 1e-9):,.1f}× real time)"
