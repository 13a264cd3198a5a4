"""Settings of text generation (decoding)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_least, check_positive, check_values


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(TracksExplicit):
    """Text generation. The defaults are those of the 2017 paper: beam search with 4 beams and
    GNMT's length penalty with alpha 0.6."""

    beam: int = 4
    """Beam size: number of hypotheses kept at each step. 1: greedy decoding."""

    length_penalty: Literal["gnmt", "power", "none"] = "gnmt"
    """Length normalization: log-probabilities are divided by ((5+n)/6)^alpha (`gnmt`), n^alpha
    (`power`) or 1 (`none`). n counts the end token."""

    length_penalty_alpha: float = 0.6
    """Exponent alpha of the length normalization (`length_penalty`)."""

    coverage: float = 0.0
    """Weight of GNMT's coverage penalty, Σ log min(attention received by a source token, 1). 0:
    off."""

    n_best: int = 1
    """Number of outputs per input, at most `beam` unless they are sampled."""

    extra_len: int = 50
    """Maximum number of tokens by which an output may exceed its source, including the end
    token."""

    max_len: int | None = None
    """Maximum length of an output in tokens, including the end token. None: limited only by
    `extra_len`."""

    min_len: int = 0
    """Minimum number of tokens before the end token."""

    sample: bool = False
    """Sample tokens instead of using beam search. `n_best` outputs are sampled independently."""

    temperature: float = 1.0
    """Sampling temperature. Below 1, likely tokens become more likely."""

    top_k: int = 0
    """Sample only from this many of the most likely tokens. 0: from all."""

    top_p: float = 1.0
    """Nucleus sampling: sample only from the most likely tokens that together have this
    probability. 1: from all."""

    min_p: float = 0.0
    """Sample only from tokens with at least this fraction of the top token's probability. 0: from
    all."""

    seed: int = 1
    """Random seed for sampling."""

    groups: int = 1
    """Diverse beam search: number of groups into which the beam is divided. 1: ordinary beam
    search."""

    diversity: float = 0.5
    """Diverse beam search: penalty for each token that an earlier group chose at the same step."""

    repetition_penalty: float = 1.0
    """Factor applied to the log-probability of tokens that already occur in the output. 1: off."""

    no_repeat_ngram: int = 0
    """Never repeat a sequence of this many tokens. 0: off."""

    unknown: Literal["keep", "ban", "copy"] = "ban"
    """Handling of the unknown token: written as it is (`keep`), never generated (`ban`), or
    replaced by the source word with the most attention (`copy`)."""

    stop: tuple[str, ...] = ()
    """Stop sequences: generation ends before any of these texts would be completed."""

    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Number format of the weights in memory. `bf16` halves the memory traffic of a GPU, `int8`
    quarters that of a CPU. Tokens of nearly equal probability may swap ranks."""

    batch_tokens: int = 4096
    """Maximum size of a decoding batch: number of source tokens times beam size."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 1, "beam", "n_best", "groups", "batch_tokens")
        check_least(
            self,
            0,
            "length_penalty_alpha",
            "coverage",
            "extra_len",
            "min_len",
            "top_k",
            "no_repeat_ngram",
        )
        check_least(self, 1, "max_len")
        if self.temperature <= 0:
            raise ConfigError(
                f"temperature={self.temperature:g} must be positive. For greedy decoding, set "
                "sample=false beam=1."
            )
        if not 0.0 < self.top_p <= 1.0 or not 0.0 <= self.min_p <= 1.0:
            raise ConfigError(
                f"top_p={self.top_p:g} or min_p={self.min_p:g} is out of range: top_p must be "
                "above 0 and at most 1, and min_p must be from 0 to 1."
            )
        check_positive(self, "repetition_penalty")
        if self.beam % self.groups:
            raise ConfigError(
                f"beam={self.beam} must be a multiple of groups={self.groups}. "
                f"Try beam={self.groups * max(2, self.beam // self.groups)}."
            )
        if self.n_best > self.beam and not self.sample:
            raise ConfigError(
                f"n_best={self.n_best} exceeds beam={self.beam}. Set beam={self.n_best}, or lower "
                "n_best."
            )

    @property
    def width(self) -> int:
        """Number of hypotheses generated in parallel for each source: the beam size, or the number
        of samples."""
        return self.n_best if self.sample else self.beam

    @property
    def walks(self) -> bool:
        """Whether hypotheses are generated independently, by greedy decoding or sampling instead of
        beam search."""
        return self.sample or self.beam == 1
