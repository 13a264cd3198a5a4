"""Inputs and outputs of a search, as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.tokens.tokenizer import Tokenizer


class SpecialTokens(NamedTuple):
    bos: int
    eos: int
    unk: int
    target_begin: int | None = None
    """First token of every output, if the model fixes one."""

    banned: tuple[int, ...] = ()
    """Tokens that never occur in an output."""

    never_first: tuple[int, ...] = ()
    """Tokens with which no output starts (after `target_begin`)."""

    writes_bos: bool = False
    """Whether outputs may contain `bos`, as in `generate` of Hugging Face Transformers."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, end: int | None = None) -> SpecialTokens:
        """`end`: the token that ends an output instead of the end of text."""
        return cls(
            bos=tokenizer.bos,
            eos=tokenizer.eos if end is None else end,
            unk=tokenizer.unk,
            target_begin=tokenizer.target_begin,
            banned=(*tokenizer.banned, *tokenizer.unwritten),
            never_first=tokenizer.never_first,
            writes_bos=tokenizer.roles is not None and tokenizer.roles.before is not None,
        )


@dataclass(frozen=True)
class Hypothesis:
    """One output. `tokens` excludes the end token; `token_log_probs` includes it last."""

    tokens: list[int]
    log_prob: float
    score: float
    """Log P with penalties, by which the outputs of a source are ranked."""

    token_log_probs: list[float]
    finished: bool
    """False if the length limit was reached before the end token."""


Phrase = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TokenConstraints:
    """Constraints on the output of one line."""

    prefix: Phrase = ()
    """Tokens with which the output starts."""

    required: tuple[Phrase, ...] = ()
    """Phrases that the output must contain, without overlap."""

    banned: tuple[Phrase, ...] = ()
    """Phrases that the output must not contain."""

    def __post_init__(self) -> None:
        if () in self.required or () in self.banned:
            raise ValueError("required and banned phrases must contain at least one token")


NO_CONSTRAINTS = TokenConstraints()
