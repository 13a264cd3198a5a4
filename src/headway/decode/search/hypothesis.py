"""What a search is asked and what it answers, in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.tokens.tokenizer import Tokenizer


class Specials(NamedTuple):
    bos: int
    eos: int
    unk: int
    target_begin: int | None = None
    """The first token of every output about a source, which has no choice."""

    banned: tuple[int, ...] = ()
    """Tokens that no output has."""

    never_first: tuple[int, ...] = ()
    """Tokens that no output begins with, behind `target_begin`."""

    writes_bos: bool = False
    """Outputs may have `bos`, as `generate` lets published language models write it."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, end: int | None = None) -> Specials:
        """`end`: the token that ends an output instead of the text's end."""
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
    """One output. Tokens are without the end token; their log-probabilities count it last."""

    tokens: list[int]
    log_prob: float
    score: float
    """What outputs of one source are ranked by: log P with penalties."""

    token_log_probs: list[float]
    finished: bool
    """False where the length limit came before the end token."""


Phrase = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What one line asks of its output."""

    prefix: Phrase = ()
    """It begins with these tokens."""

    required: tuple[Phrase, ...] = ()
    """Each of these comes in it, each in a place of its own."""

    banned: tuple[Phrase, ...] = ()
    """None of these comes in it."""

    def __post_init__(self) -> None:
        if () in self.required or () in self.banned:
            raise ValueError("a phrase without tokens is in every output and in none")


NO_WISH = Wish()
