"""What comes out of a translator, or of a captioner."""

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
    """One text for a line or a picture. A line that was split has the sums over its parts."""

    text: str
    score: float = 0.0
    log_prob: float = 0.0
    tokens: list[str] = field(default_factory=list)
    """Readable pieces; a space is `▁`. The end is not among them ..."""

    token_log_probs: list[float] = field(default_factory=list)
    """... but its log-probability is here, last of each part."""

    finished: bool = True
    alignment: list[Pair] | None = None
    looks: list[Look] | None = None
    """For every word about a picture, where that was asked for."""


@dataclass(frozen=True)
class Translation:
    source: str
    outputs: list[Output]
    """From the best down, as many as were asked for and found."""

    parts: int = 1
    """Into how many the line was split for its length."""

    cut: bool = False
    """Its end was left out."""

    @property
    def text(self) -> str:
        return self.outputs[0].text


@dataclass(frozen=True, kw_only=True)
class TextWish:
    """What one line asks of its translation, as text."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """Of a pair; the end of the target counts as a token."""

    log_prob: float
    token_log_probs: list[float]

    @property
    def n_tokens(self) -> int:
        return len(self.token_log_probs)

    @property
    def per_token(self) -> float:
        return self.log_prob / self.n_tokens


@dataclass
class Summary:
    """What a translator has done so far."""

    lines: int = 0
    empty: int = 0
    split: int = 0
    cut: list[int] = field(default_factory=list)
    """Numbers of the lines, from 1."""

    unfinished: int = 0
    """Outputs that the length limit ended."""

    tokens: int = 0
    seconds: float = 0.0

    def text(self) -> str:
        rate = self.tokens / self.seconds if self.seconds else 0.0
        many = "s" * (self.lines != 1)
        parts = [f"{self.lines:,} line{many}", f"{self.tokens:,} tokens, {rate:,.0f} a second"]
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.split:
            parts.append(f"{self.split:,} too long for the model and split")
        if self.cut:
            shown = ", ".join(f"{number:,}" for number in self.cut[:5])
            more = " ..." if len(self.cut) > 5 else ""
            parts.append(f"{len(self.cut):,} too long for the model and cut (lines {shown}{more})")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} stopped by the length limit")
        return "; ".join(parts)
