"""Criteria for the proof of an int8 export. They are looser than in fp32, because rounding changes
every value a little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.errors import Option
from headway.interop.proof import Proof
from headway.interop.proof_inputs import ProofCase

MOST_OFF = {"logits": 0.12, "vectors": 0.16}
"""Maximum allowed root mean square error of all values, relative to their standard deviation.

Measured errors of int8 models are 0.02 to 0.10 in logits and 0.11 to 0.13 in embeddings. If the
matrix of one layer is replaced by zeros, they are at least 0.15 in logits and 0.32 in embeddings.
"""

ROW = 2
"""Maximum allowed error of a single embedding, as a multiple of the limit for all embeddings."""

LEAST_EQUAL = 0.85
"""Minimum required fraction of positions (next tokens, tags, texts) where the int8 model predicts
the same as the original."""

SMALLEST = 1e-12
"""Minimum variance by which squared errors are divided, for a model whose outputs are constant."""


@dataclass(frozen=True, kw_only=True)
class Int8Proof(Proof):
    """Proof of an export with the criteria for int8.

    The largest difference has a loose limit, because one of thousands of values may be far off
    without consequences, above all in small models. The error of all values together has a strict
    limit.
    """

    off: float | None
    """Root mean square of all differences, relative to the standard deviation of the values at each
    position; None if the outputs cannot be compared."""

    most_off: float

    @property
    def passed(self) -> bool:
        return super().passed and self.off is not None and self.off <= self.most_off

    def text(self) -> str:
        share = "undefined" if self.off is None else f"{self.off:.1%}"
        off = (
            f"  error of all {self.what}, relative to their standard deviation: {share} "
            f"(allowed {self.most_off:.0%})"
        )
        first, *rest = super().text().split("\n")
        way_out = (
            "  int8 is too coarse for this model, or the export is broken. Export without "
            f"{Option('int8', True)}, in fp32."
        )
        return "\n".join([first, off, *rest, *([] if self.passed else [way_out])])


def judged_as_int8(
    proof: Proof, ours: Sequence[ProofCase], theirs: Sequence[NDArray[Any]]
) -> Int8Proof:
    """Apply the limits for int8 to a proof, and count equal outputs by position.

    Embeddings and single numbers have no most likely value. They count as equal if their error is
    at most `ROW` times the limit for all embeddings.
    """
    tables = [reading.scores for reading in ours]
    facts = asdict(proof) | {
        "tolerance": max(float(np.abs(table).max()) for table in tables),
        "equal_outputs": 0.0,
        "least_equal": LEAST_EQUAL,
        "most_off": MOST_OFF[proof.what],
        "notes": [*proof.notes, "int8: equal outputs are counted by position, not by sentence"],
    }
    if not np.isfinite(proof.max_difference):
        return Int8Proof(**facts, off=None)
    # The outputs of different heads have different widths: a CTC head has one symbol more than the
    # decoder.
    pairs = [(a.astype(np.float64), b) for a, b in zip(tables, theirs, strict=True)]
    single = all(a.shape[-1] == 1 for a, _ in pairs)  # regression: one value per position
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
