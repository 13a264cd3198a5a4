"""Cost of a request, and how long this machine takes for it.

The unit is a token of one hypothesis: a text costs its tokens times the beam width of its search.
The time per unit is measured for each model, first when the server starts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from headway.settings.decode import DecodeSettings
from headway.specs.tasks import Spec

BYTES_PER_TOKEN = 4
"""UTF-8 bytes per token. The shipped translators have 4.0 on their validation texts."""

VALUES_PER_ROW = 1000
"""Pixels or samples per unit of cost: an image of 224 x 224 has about 150 positions, a second of
audio 16."""

SMALL_SECONDS = 0.25
"""Duration below which requests are small (rank 0). Requests of each higher rank take up to four
times as long."""

GUESSED_FLOPS = 2e10
"""Assumed operations per second of a machine until the first measurement."""

MEASURED_FROM = 128
"""Smallest cost of a batch that is measured. In smaller batches fixed costs dominate."""

REMEMBERED = 8
"""Number of measured batches that are kept. The fastest one counts, because the machine may have
been busy during the others."""


def tokens_in(question: object) -> float:
    """Number of tokens in an input, estimated without a tokenizer."""
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
    """Cost of all inputs of a request. `context`: the model's input limit in tokens."""
    width = decode.width if spec.writes else 1
    known = [size for size in (decode.max_len, context) if size is not None]
    written = min(known, default=0) if spec.continues else 0
    return sum(width * (1 + tokens_in(one) + written) for one in questions)


class LatencyEstimator:
    """Estimates how long one model takes per unit of cost."""

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=REMEMBERED)
        self._guess = 0.0

    def guess_from_size(self, n_weights: int) -> None:
        """Estimate the time per unit from the number of weights, until it is measured."""
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
        """Rank of a cost: 0 for small requests. Running requests are interrupted for those of lower
        ranks."""
        ratio = self.seconds(cost) / SMALL_SECONDS
        return 0 if ratio <= 1 else math.ceil(math.log(ratio, 4))
