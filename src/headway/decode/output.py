"""What comes out of whatever writes: texts with their scores, and what was done on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.decode.align import Pair

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels of the picture as the model saw it."""


@dataclass(frozen=True)
class Look:
    """What a word of a caption attended to."""

    word: str
    box: Box
    """The patch that got most ..."""

    frames: tuple[int, int]
    """... and the frames of a video that it is of, the second one outside."""

    share: float
    """How much of the attention it got."""

    grid_TYX: NDArray[np.float32]
    """What every patch got; it sums up to 1."""


@dataclass(frozen=True)
class Output:
    """One text for a line, a picture or a prompt; of a line that was split, the sums."""

    text: str
    """What follows a prompt is without it, and up to a stop string where there is one."""

    score: float = 0.0
    """What outputs are ranked by: log P with the length penalty."""

    log_prob: float = 0.0
    """Of all its tokens, by the model alone: temperature and top-k do not count."""

    tokens: list[str] = field(default_factory=list)
    """Readable pieces; a space is `▁`. The end is not among them ..."""

    token_log_probs: list[float] = field(default_factory=list)
    """... but its log-probability is here, last of each part that is finished."""

    finished: bool = True
    """It came to its end by itself; False where a limit or a stop string ended it."""

    alignment: list[Pair] | None = None
    looks: list[Look] | None = None
    """For every word about a picture, where that was asked for."""

    stopped_by: str | None = None
    """The stop string that ended it."""


@dataclass(frozen=True)
class Written:
    source: str
    """The line or the prompt; of media nothing."""

    outputs: list[Output]
    """From the best down, as many as were asked for and found."""

    parts: int = 1
    """Into how many the line was split for its length."""

    cut: bool = False
    """Its end was left out."""

    @property
    def text(self) -> str:
        return self.outputs[0].text


@dataclass(frozen=True)
class Score:
    """Of a source and a text about it; the end of the text counts as a token."""

    log_prob: float
    token_log_probs: list[float]

    @property
    def n_tokens(self) -> int:
        return len(self.token_log_probs)

    @property
    def per_token(self) -> float:
        return self.log_prob / self.n_tokens

    def facts(self) -> dict[str, float | list[float]]:
        found = {"log_prob": self.log_prob, "per_token": self.per_token, "tokens": self.n_tokens}
        return {**found, "token_log_probs": self.token_log_probs}


@dataclass
class WritingSummary:
    """What was written so far."""

    sources: int = 0
    empty: int = 0
    split: int = 0
    cut: list[int] = field(default_factory=list)
    """Numbers of the lines, from 1."""

    unfinished: int = 0
    """Outputs that the length limit ended."""

    tokens: int = 0
    seconds: float = 0.0
    shared: int = 0
    """Prompt tokens that were not read again, since others begin with them too."""

    proposed: int = 0
    accepted: int = 0
    """Tokens of a draft model."""

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def text(self, unit: str = "line", digits: int = 0, failed: int = 0) -> str:
        """`unit`: what a source is, and `failed`: how many could not be read."""
        n = self.sources + failed
        parts = [f"{n:,} {unit}{'s' * (n != 1)}"]
        parts.append(f"{self.tokens:,} tokens, {self.rate:,.{digits}f} a second")
        if self.shared:
            parts.append(f"{self.shared:,} prompt tokens read once for all")
        if self.proposed:
            share = self.accepted / self.proposed
            parts.append(f"{share:.0%} of {self.proposed:,} drafted tokens accepted")
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.split:
            parts.append(f"{self.split:,} too long for the model and split")
        if self.cut:
            shown = ", ".join(f"{number:,}" for number in self.cut[:5])
            more = " ..." if len(self.cut) > 5 else ""
            parts.append(f"{len(self.cut):,} too long for the model and cut (lines {shown}{more})")
        if failed:
            parts.append(f"{failed:,} could not be read")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} stopped by the length limit")
        return "; ".join(parts)
