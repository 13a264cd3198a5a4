"""Results of text generation: outputs with scores, and a summary of the work."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.decode.align import AlignmentLink

PixelBox = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels of the image as the model received it."""


@dataclass(frozen=True)
class AttendedRegion:
    """The part of an image or video that a word of a caption attended to."""

    word: str
    box: PixelBox
    """The patch with the most attention."""

    frames: tuple[int, int]
    """First frame of that patch in a video, and the frame after its last."""

    share: float
    """Share of the attention on that patch."""

    grid_TYX: NDArray[np.float32]
    """Attention on every patch; sums to 1."""


@dataclass(frozen=True)
class Output:
    """One generated text. For a line that was split, the values are sums over its parts."""

    text: str
    """The text without the prompt, up to the stop string if there is one."""

    score: float = 0.0
    """Log P with the length penalty; outputs are ranked by it."""

    log_prob: float = 0.0
    """Log P of all tokens under the model, before temperature, top-k and similar settings."""

    tokens: list[str] = field(default_factory=list)
    """Readable tokens, without the end token; a space is `▁`."""

    token_log_probs: list[float] = field(default_factory=list)
    """Log-probabilities of the tokens. Each finished part ends with that of its end token."""

    finished: bool = True
    """Whether the model wrote the end token; False if a limit or a stop string ended the text."""

    alignment: list[AlignmentLink] | None = None
    attended_regions: list[AttendedRegion] | None = None
    """Attended image regions of each word, if requested."""

    stopped_by: str | None = None
    """Stop string that ended the text; None if none did."""


@dataclass(frozen=True)
class GenerationResult:
    source: str
    """Source line or prompt; empty for media."""

    outputs: list[Output]
    """Outputs from best to worst; fewer than requested if fewer were found."""

    parts: int = 1
    """Number of parts that a long line was split into."""

    cut: bool = False
    """Whether the end of a long line was cut off."""

    @property
    def text(self) -> str:
        return self.outputs[0].text


@dataclass(frozen=True)
class TargetScore:
    """Log-probability of a text given its source; the end token counts."""

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
    """Running totals of a writer or completer."""

    sources: int = 0
    empty: int = 0
    split: int = 0
    cut: list[int] = field(default_factory=list)
    """Numbers of the lines that were cut, counted from 1."""

    unfinished: int = 0
    """Outputs that were ended by the length limit."""

    tokens: int = 0
    seconds: float = 0.0
    shared: int = 0
    """Prompt tokens that were reused because other prompts share them."""

    proposed: int = 0
    accepted: int = 0
    """Proposed tokens of a draft model that the model accepted."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def text(self, unit: str = "line", digits: int = 0, failed: int = 0) -> str:
        """Summary line. `unit` names a source; `failed` counts those that could not be read."""
        n = self.sources + failed
        parts = [f"{n:,} {unit}{'s' * (n != 1)}"]
        parts.append(f"{self.tokens:,} tokens, {self.rate:,.{digits}f} per second")
        if self.shared:
            parts.append(f"{self.shared:,} shared prompt tokens computed once")
        if self.proposed:
            share = self.accepted / self.proposed
            parts.append(f"{share:.0%} of {self.proposed:,} drafted tokens accepted")
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.split:
            parts.append(f"{self.split:,} longer than the model allows, split")
        if self.cut:
            shown = ", ".join(f"{number:,}" for number in self.cut[:5])
            more = " ..." if len(self.cut) > 5 else ""
            parts.append(
                f"{len(self.cut):,} longer than the model allows, cut (lines {shown}{more})"
            )
        if failed:
            parts.append(f"{failed:,} could not be read")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} ended by the length limit")
        return "; ".join(parts)
