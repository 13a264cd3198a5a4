"""Inputs and outputs of a search, as tokens."""

from __future__ import annotations

from dataclasses import dataclass


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
