"""Estimate the cost of a request, and how long this machine takes to compute it.

The unit of cost is one token of one hypothesis, so a text costs its number of tokens times the beam
width. The time per unit is measured for each model, first when the server starts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from headway.settings.decode import DecodeSettings
from headway.specs.tasks import Spec

BYTES_PER_TOKEN = 4
"""Average number of UTF-8 bytes per token. It is 4.0 for the shipped translators on their
validation texts."""

VALUES_PER_ROW = 1000
"""Number of pixels or audio samples per unit of cost. An image of 224 × 224 pixels has about 150
positions, and a second of audio about 16."""

SMALL_SECONDS = 0.25
"""Maximum duration in seconds of small requests (rank 0). Each higher rank includes requests that
take up to four times as long."""

GUESSED_FLOPS = 2e10
"""Assumed floating-point operations per second of the machine until the first measurement."""

MEASURED_FROM = 128
"""Minimum cost of a batch whose time is measured. In smaller batches fixed costs dominate."""

REMEMBERED = 8
"""Number of recent measurements that are kept. The fastest one is used, because the machine may
have been busy during the others."""


def tokens_in(question: object) -> float:
    """Return the estimated number of tokens in an input, without using a tokenizer."""
    if isinstance(question, str):
        return len(question.encode("utf-8", "replace")) / BYTES_PER_TOKEN
    if isinstance(question, Mapping):
        return sum(map(tokens_in, question.values()))
    if isinstance(question, list | tuple):
        return sum(map(tokens_in, question))
    if isinstance(question, int | float):
        return 1.0
    size = getattr(getattr(question, "values", None), "size", None)
    if isinstance(size, int):
        return size / VALUES_PER_ROW
    if is_dataclass(question):
        return sum(tokens_in(getattr(question, field.name)) for field in fields(question))
    return 0.0


def cost_of(
    questions: Iterable[object], spec: Spec, decode: DecodeSettings, context: int | None
) -> float:
    """Return the cost of all inputs of a request. `context`: maximum number of tokens that the
    model reads."""
    width = decode.width if spec.writes else 1
    known = [size for size in (decode.max_len, context) if size is not None]
    written = min(known, default=0) if spec.continues else 0
    return sum(width * (1 + tokens_in(one) + written) for one in questions)


class LatencyEstimator:
    """Estimates the computation time of one model per unit of cost."""

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=REMEMBERED)
        self._guess = 0.0

    def guess_from_size(self, n_weights: int) -> None:
        """Estimate the time per unit from the number of weights. The estimate is used until a batch
        is measured."""
        self._guess = 2 * n_weights / GUESSED_FLOPS

    @property
    def is_measured(self) -> bool:
        return bool(self._measured)

    def record(self, cost: float, seconds: float) -> None:
        if cost >= MEASURED_FROM:
            self._measured.append(seconds / cost)

    def seconds(self, cost: float) -> float:
        return cost * (min(self._measured) if self._measured else self._guess)

    def rank(self, cost: float) -> int:
        """Return the rank of a cost, which is 0 for small requests. Requests of lower ranks
        interrupt running requests of higher ranks."""
        ratio = self.seconds(cost) / SMALL_SECONDS
        return 0 if ratio <= 1 else math.ceil(math.log(ratio, 4))
