"""What int8 is judged by, whoever computes it: rounding moves every score a little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.interop.proof import Proof
from headway.interop.proof_inputs import Reading

MOST_OFF = {"logits": 0.12, "vectors": 0.16}
"""The most that all scores together may be off, as a share of their spread. Set after measuring:
models in int8 are off by 0.02 to 0.10 in scores and by 0.11 to 0.13 in vectors; with a matrix of
zeros in one layer by 0.15 and more, and by 0.32 and more."""

ROW = 2
"""A single vector may be off by as many times that."""

LEAST_EQUAL = 0.85
"""The least share of rows (next tokens, tags, texts) with the same best choice."""

SMALLEST = 1e-12
"""Spread, of a model that says the same of everything."""

WAY_OUT = "int8 is too coarse for this model, or the export is broken. Leave --int8 out: fp32."


@dataclass(frozen=True, kw_only=True)
class Int8Proof(Proof):
    """The largest difference is judged loosely: one of thousands of scores may be far off, most of
    all in a small model, and nobody sees it. All scores together may not."""

    off: float | None
    """The root mean square of all differences, as a share of that of the scores themselves, each
    taken from the mean of its row; None where they cannot be compared."""

    most_off: float

    @property
    def passed(self) -> bool:
        return super().passed and self.off is not None and self.off <= self.most_off

    def text(self) -> str:
        share = "no number" if self.off is None else f"{self.off:.1%}"
        off = f"  all {self.what}: off by {share} of their spread (allowed {self.most_off:.0%})"
        first, *rest = super().text().split("\n")
        return "\n".join([first, off, *rest, *([] if self.passed else [f"  {WAY_OUT}"])])


def judged_as_int8(
    proof: Proof, ours: Sequence[Reading], theirs: Sequence[NDArray[Any]]
) -> Int8Proof:
    """The same proof with the limits of int8, and with outputs counted row by row.

    No number is a choice, alone or in a vector: a text's vector counts as equal where it is off by
    no more than `ROW` times what all of them together may be.
    """
    tables = [reading.scores for reading in ours]
    facts = asdict(proof) | {
        "tolerance": max(float(np.abs(table).max()) for table in tables),
        "equal_outputs": 0.0,
        "least_equal": LEAST_EQUAL,
        "most_off": MOST_OFF[proof.what],
        "notes": [*proof.notes, "int8: equal outputs are counted row by row, not by sentence"],
    }
    if not np.isfinite(proof.max_difference):
        return Int8Proof(**facts, off=None)
    # Tables may have other widths: CTC has one symbol more than the decoder beside it.
    pairs = [(a.astype(np.float64), b) for a, b in zip(tables, theirs, strict=True)]
    single = all(a.shape[-1] == 1 for a, _ in pairs)  # a number, which has no others beside it
    centre = np.concatenate([a for a, _ in pairs]).mean() if single else None
    squares = [
        np.square(a - (a.mean(-1, keepdims=True) if centre is None else centre)).ravel()
        for a, _ in pairs
    ]
    spread = max(np.concatenate(squares).mean(), SMALLEST)
    off_R = np.concatenate([np.sqrt(np.square(a - b).mean(-1) / spread) for a, b in pairs])
    same_R = np.concatenate([a.argmax(-1) == b.argmax(-1) for a, b in pairs])
    if proof.what == "vectors" or single:
        same_R = off_R <= ROW * MOST_OFF["vectors"]
    facts["equal_outputs"] = float(same_R.mean())
    return Int8Proof(**facts, off=float(np.sqrt(np.square(off_R).mean())))
