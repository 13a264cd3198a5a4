"""What comes out of a completer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Output:
    """What follows a prompt."""

    text: str
    """Without the prompt, and up to a stop string where there is one."""

    score: float
    """What outputs are ranked by: log P with the length penalty."""

    log_prob: float
    """Of all its tokens, by the model alone: temperature and top-k do not count."""

    tokens: list[str]
    """Readable pieces, those of a stop string too. The end is not among them ..."""

    token_log_probs: list[float]
    """... but its log-probability is here, last, where the text is finished."""

    finished: bool
    """It came to its end by itself; False where a limit or a stop string ended it."""

    stopped_by: str | None = None
    """The stop string that ended it."""


@dataclass(frozen=True)
class Completion:
    prompt: str
    outputs: list[Output]
    """From the best down, as many as were asked for."""

    @property
    def text(self) -> str:
        return self.outputs[0].text

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class Summary:
    """What a completer has done so far."""

    prompts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    unfinished: int = 0
    """Outputs that a length limit ended."""

    shared: int = 0
    """Prompt tokens that were not read again, since others begin with them too."""

    proposed: int = 0
    accepted: int = 0
    """Tokens of the draft model."""

    def text(self) -> str:
        rate = self.tokens / self.seconds if self.seconds else 0.0
        many = "s" * (self.prompts != 1)
        parts = [f"{self.prompts:,} prompt{many}", f"{self.tokens:,} tokens, {rate:,.1f} a second"]
        if self.shared:
            parts.append(f"{self.shared:,} prompt tokens read once for all")
        if self.proposed:
            share = self.accepted / self.proposed
            parts.append(f"{share:.0%} of {self.proposed:,} drafted tokens accepted")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} stopped by the length limit")
        return "; ".join(parts)
