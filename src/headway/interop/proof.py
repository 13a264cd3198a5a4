"""Parity shown by numbers: the same sentences through our model and through an exported one."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway import __version__
from headway.interop.proof_inputs import Reading
from headway.storage import replace_text

PROOF = "proof.json"
TOLERANCE = 1e-4
"""Of fp32, for scores about as large as 1; larger ones may differ by as much more."""

TIE = 1e-4
"""Tokens whose scores differ by less are both best: rounding chooses between them."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    to: str
    sentences: int
    tokens: int
    max_difference: float
    what: str
    """What was compared: logits, log-probabilities, hidden states, vectors."""

    equal_outputs: float
    """The share of sentences in which every best choice is the same."""

    tolerance: float
    """The most that `max_difference` may be."""

    least_equal: float
    """The least that `equal_outputs` may be."""

    by: str = ""
    """What ran the exported model."""

    notes: list[str] = field(default_factory=list)
    items: str = "sentences"
    """What `sentences` counts: of models that look or listen, pictures or recordings."""

    units: str = "tokens"
    """What `tokens` counts."""

    @property
    def passed(self) -> bool:
        return self.max_difference <= self.tolerance and self.equal_outputs >= self.least_equal

    def text(self) -> str:
        """For people."""
        verdict = "passed" if self.passed else "FAILED"
        by = f" by {self.by}" if self.by else ""
        lines = [
            f"proof {verdict}: {self.sentences} {self.items}, {self.tokens:,} {self.units} "
            f"through both{by}",
            f"  {self.what}: largest difference {self.max_difference:.2g} "
            f"(allowed {self.tolerance:.2g})",
            f"  equal outputs: {self.equal_outputs:.1%} (at least {self.least_equal:.0%})",
        ]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def save(self, folder: Path) -> None:
        facts: dict[str, Any] = {"passed": self.passed, **asdict(self)}
        if not isfinite(self.max_difference):
            facts["max_difference"] = None  # JSON has no word for it
        facts |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}
        replace_text(folder / PROOF, json.dumps(facts, indent=2, allow_nan=False) + "\n")


def versions() -> dict[str, str]:
    """Of what may have had a part in the numbers."""
    found = {"headway": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "ctranslate2", "onnx", "onnxruntime"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def compared(
    to: str,
    ours: Sequence[Reading],
    theirs: Sequence[NDArray[Any]],
    *,
    what: str = "logits",
    tolerance: float | None = None,
    least_equal: float = 1.0,
    by: str = "",
    notes: Sequence[str] = (),
) -> Proof:
    """A proof from our readings and the other side's table of rows for each sentence.

    `what` was computed there: logits, log-probabilities, vectors, hidden states. `tolerance` None:
    that of fp32. In vectors and hidden states no number is a choice: such a sentence is equal where
    no number differs by more than is allowed.
    """
    tables = [_table(reading, what) for reading in ours]
    if tolerance is None:
        largest = max((float(np.abs(table).max()) for table in tables), default=0.0)
        tolerance = TOLERANCE * max(1.0, largest)
    worst, equal = 0.0, 0
    for mine, other in zip(tables, theirs, strict=True):
        if mine.shape != other.shape or not np.isfinite(other).all():
            worst = float("inf")
            continue
        difference = float(np.abs(mine - other).max())
        worst = max(worst, difference)
        chooses = what in ("logits", "log-probabilities")
        equal += _same_choices(mine, other) if chooses else difference <= tolerance
    return Proof(
        to=to,
        sentences=len(ours),
        tokens=sum(reading.n_read for reading in ours),
        max_difference=worst,
        what=what,
        equal_outputs=equal / max(1, len(ours)),
        tolerance=tolerance,
        least_equal=least_equal,
        by=by,
        notes=list(notes),
    )


def _table(reading: Reading, what: str) -> NDArray[np.float32]:
    if what == "hidden states":
        return reading.hidden_TD
    if what == "log-probabilities":
        return torch.from_numpy(reading.scores).log_softmax(-1).numpy()
    return reading.scores


def _same_choices(mine: NDArray[Any], other: NDArray[Any]) -> bool:
    rows = np.arange(len(mine))
    behind = mine.max(axis=-1) - mine[rows, other.argmax(axis=-1)]
    return bool((behind <= TIE).all())
