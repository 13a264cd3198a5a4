"""How text is generated from a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import check_values
from headway.settings.made import Made
from headway.settings.value_types import check_least, check_positive


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(Made):
    """The defaults are the paper's search: beam 4, GNMT's length penalty with 0.6."""

    beam: int = 4
    """Hypotheses kept; 1 is greedy."""

    length_penalty: Literal["gnmt", "power", "none"] = "gnmt"
    """What log P is divided by: ((5+n)/6)^alpha, n^alpha, or nothing; n counts the end token."""

    alpha: float = 0.6
    """See `length_penalty`."""

    coverage: float = 0.0
    """GNMT's coverage penalty: weight of Σ log min(attention a source token got, 1)."""

    n_best: int = 1
    """Outputs a line; at most `beam`, unless they are drawn."""

    extra_len: int = 50
    """An output has at most this many tokens more than its source, end token included."""

    max_len: int | None = None
    """At most this many tokens, end token included, whatever the source."""

    min_len: int = 0
    """At least this many tokens before the end token."""

    sample: bool = False
    """Draw tokens instead of searching; `n_best` draws independent ones."""

    temperature: float = 1.0
    """Of the draws: below 1 the likely become likelier."""

    top_k: int = 0
    """Draw from so many likeliest tokens; 0: from all."""

    top_p: float = 1.0
    """Draw from the likeliest that have this probability together."""

    min_p: float = 0.0
    """Draw from tokens with at least this share of the likeliest one's probability."""

    seed: int = 1
    """Of the draws."""

    groups: int = 1
    """Diverse beam search: the beam is cut into this many groups ..."""

    diversity: float = 0.5
    """... each of which pays this for every token that an earlier group chose at the same step."""

    repetition_penalty: float = 1.0
    """A token that came before costs its log-probability times this."""

    no_repeat_ngram: int = 0
    """No sequence of this many tokens comes twice; 0: no ban."""

    unknown: Literal["keep", "ban", "copy"] = "ban"
    """What becomes of the unknown token: written out, never produced, or replaced by the source
    word it attends to most."""

    stop: tuple[str, ...] = ()
    """Text that ends an output; it is not part of it."""

    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """What weights are held in, made so once: `bf16` halves what a GPU reads for every token,
    `int8` quarters what a CPU reads. Tokens of nearly equal probability may change places."""

    batch_tokens: int = 4096
    """Source tokens decoded together, times the beam."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 1, "beam", "n_best", "groups", "batch_tokens")
        check_least(
            self, 0, "alpha", "coverage", "extra_len", "min_len", "top_k", "no_repeat_ngram"
        )
        check_least(self, 1, "max_len")
        if self.temperature <= 0:
            raise ConfigError(
                f"temperature={self.temperature:g} must be positive. For the most likely token "
                "every time use sample=false beam=1."
            )
        if not 0.0 < self.top_p <= 1.0 or not 0.0 <= self.min_p <= 1.0:
            raise ConfigError(
                f"top_p={self.top_p:g} must be above 0 and at most 1, and min_p={self.min_p:g} "
                "from 0 to 1."
            )
        check_positive(self, "repetition_penalty")
        if self.beam % self.groups:
            raise ConfigError(
                f"beam={self.beam} does not divide into groups={self.groups}. "
                f"Try beam={self.groups * max(2, self.beam // self.groups)}."
            )
        if self.n_best > self.beam and not self.sample:
            raise ConfigError(
                f"n_best={self.n_best} hypotheses need a beam of at least that many; "
                f"beam={self.beam}. Set beam={self.n_best} too, or a lower n_best."
            )

    @property
    def width(self) -> int:
        """Hypotheses of a source."""
        return self.n_best if self.sample else self.beam

    @property
    def walks(self) -> bool:
        """Whether each hypothesis goes its own way: greedy decoding or sampling, no beam search."""
        return self.sample or self.beam == 1
