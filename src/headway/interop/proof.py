"""Numerical proof of an export, which compares the run and the exported model on the same
inputs."""

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
from headway.interop.proof_inputs import ProofCase
from headway.storage import replace_text

PROOF = "proof.json"
TOLERANCE = 1e-4
"""Maximum allowed difference in fp32 for values of magnitude up to 1. For larger values the limit
grows in proportion."""

TIE = 1e-4
"""Difference of logits below which tokens count as equally good, because rounding errors decide
between them."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    to: str
    sentences: int
    tokens: int
    max_difference: float
    what: str
    """Name of the compared values: logits, log-probabilities, hidden states or vectors."""

    equal_outputs: float
    """Fraction of sentences in which all predictions are equal."""

    tolerance: float
    """Maximum `max_difference` of a successful proof."""

    least_equal: float
    """Minimum `equal_outputs` of a successful proof."""

    by: str = ""
    """Program that ran the exported model, with its version."""

    notes: list[str] = field(default_factory=list)
    items: str = "sentences"
    """Plural name of the items that `sentences` counts, such as images."""

    units: str = "tokens"
    """Plural name of the units that `tokens` counts."""

    @property
    def passed(self) -> bool:
        return self.max_difference <= self.tolerance and self.equal_outputs >= self.least_equal

    def text(self) -> str:
        """Return the result as text for the terminal."""
        verdict = "passed" if self.passed else "FAILED"
        by = f" with {self.by}" if self.by else ""
        lines = [
            f"proof {verdict}: {self.sentences} {self.items}, {self.tokens:,} {self.units} "
            f"compared{by}",
            f"  {self.what}: largest difference {self.max_difference:.2g} "
            f"(allowed {self.tolerance:.2g})",
            f"  equal outputs: {self.equal_outputs:.1%} (at least {self.least_equal:.0%})",
        ]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def save(self, folder: Path) -> None:
        facts: dict[str, Any] = {"passed": self.passed, **asdict(self)}
        if not isfinite(self.max_difference):
            facts["max_difference"] = None  # JSON has no infinity
        facts |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}
        replace_text(folder / PROOF, json.dumps(facts, indent=2, allow_nan=False) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of the programs that may affect the result."""
    found = {"headway": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "ctranslate2", "onnx", "onnxruntime"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def compared(
    to: str,
    ours: Sequence[ProofCase],
    theirs: Sequence[NDArray[Any]],
    *,
    what: str = "logits",
    tolerance: float | None = None,
    least_equal: float = 1.0,
    by: str = "",
    notes: Sequence[str] = (),
) -> Proof:
    """Compare the outputs of the run with those of the exported model, one array per sentence.

    Args:
        to: Key of the export target.
        ours: Outputs of the run.
        theirs: Outputs of the exported model.
        what: Name of the compared values, as in `Proof.what`. Logits and log-probabilities are
            equal if they predict the same tokens. Vectors and hidden states are equal if no value
            differs by more than the tolerance.
        tolerance: Maximum allowed difference; None for the limit of fp32.
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
        tokens=sum(reading.n_positions for reading in ours),
        max_difference=worst,
        what=what,
        equal_outputs=equal / max(1, len(ours)),
        tolerance=tolerance,
        least_equal=least_equal,
        by=by,
        notes=list(notes),
    )


def _table(reading: ProofCase, what: str) -> NDArray[np.float32]:
    if what == "hidden states":
        return reading.hidden_TD
    if what == "log-probabilities":
        return torch.from_numpy(reading.scores).log_softmax(-1).numpy()
    return reading.scores


def _same_choices(mine: NDArray[Any], other: NDArray[Any]) -> bool:
    rows = np.arange(len(mine))
    behind = mine.max(axis=-1) - mine[rows, other.argmax(axis=-1)]
    return bool((behind <= TIE).all())
