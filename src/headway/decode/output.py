"""Results of text generation: outputs with scores, and statistics of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.decode.align import AlignmentLink

PixelBox = tuple[int, int, int, int]
"""Left, top, right and bottom edge in pixels, in the image as the model received it."""


@dataclass(frozen=True)
class AttendedRegion:
    """Part of an image or video to which a word of a caption attended."""

    word: str
    box: PixelBox
    """Pixel box of the patch with the most attention."""

    frames: tuple[int, int]
    """First frame of the patch with the most attention, and the frame after its last."""

    share: float
    """Fraction of the attention that falls on the patch with the most attention."""

    grid_TYX: NDArray[np.float32]
    """Attention on every patch (frames, rows, columns); sums to 1."""


@dataclass(frozen=True)
class Output:
    """One generated text. If a long line was split, numbers are summed over its parts."""

    text: str
    """Generated text without the prompt. A stop string and everything after it are removed."""

    score: float = 0.0
    """Log-probability after the length penalty, by which outputs are ranked."""

    log_prob: float = 0.0
    """Log-probability of all tokens under the model, before temperature, top-k and similar
    settings."""

    tokens: list[str] = field(default_factory=list)
    """Readable tokens without the end token, in which `▁` marks a space."""

    token_log_probs: list[float] = field(default_factory=list)
    """Log-probability of each token and of the end token, if there is one. For a split line, the
    values of its parts are concatenated."""

    finished: bool = True
    """Whether the model generated the end token. False if a limit or a stop string ended the
    text."""

    alignment: list[AlignmentLink] | None = None
    attended_regions: list[AttendedRegion] | None = None
    """Image region to which each word attended; None if not requested."""

    stopped_by: str | None = None
    """Stop string that ended the text; None if there was none."""


@dataclass(frozen=True)
class GenerationResult:
    source: str
    """Source line or prompt; empty for images and other media."""

    outputs: list[Output]
    """Outputs, best first. There may be fewer than requested if fewer were found."""

    parts: int = 1
    """Number of parts into which a long line was split."""

    cut: bool = False
    """Whether a long line was truncated."""

    @property
    def text(self) -> str:
        return self.outputs[0].text


@dataclass(frozen=True)
class TargetScore:
    """Log-probability of a text given its source, including the end token."""

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
    """Running statistics of a writer or completer."""

    sources: int = 0
    empty: int = 0
    split: int = 0
    cut: list[int] = field(default_factory=list)
    """Line numbers, counted from 1, of the lines that were truncated."""

    unfinished: int = 0
    """Number of outputs that were ended by the length limit."""

    tokens: int = 0
    seconds: float = 0.0
    shared: int = 0
    """Number of prompt tokens whose computation was shared with other prompts."""

    proposed: int = 0
    accepted: int = 0
    """Number of tokens proposed by the draft model and accepted by the target model."""

    @property
    def rate(self) -> float:
        """Number of generated tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def text(self, unit: str = "line", digits: int = 0, failed: int = 0) -> str:
        """Return the summary line. `unit`: noun for one source, such as `line`. `failed`: number of
        sources that could not be read."""
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
