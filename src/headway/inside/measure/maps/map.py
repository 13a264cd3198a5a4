"""Attribution map as a data class, and the positions and words that outputs belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.inside.capture.streams import Reading
from headway.tasks.loaded_run import LoadedRun

CAUTION = "Weights are not importance: check the measured accuracy of a map."


@dataclass(frozen=True)
class Map:
    name: str
    columns: tuple[tuple[str, int], ...]
    """Streams with their numbers of tokens, in the order of the columns of `weights_RS`."""

    weights_RS: Tensor
    """Weight of each token (columns) for each output (rows). Weights of gradient maps may be
    negative."""

    facts: dict[str, float] = field(default_factory=dict)
    """Facts about the computation, such as the number of steps and the error."""

    @classmethod
    def of(
        cls, name: str, parts: Mapping[str, Tensor], facts: dict[str, float] | None = None
    ) -> Map:
        columns = tuple((stream, part_RS.shape[1]) for stream, part_RS in parts.items())
        return cls(name, columns, torch.cat(list(parts.values()), 1), facts or {})

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(stream for stream, _ in self.columns)

    def parts(self) -> dict[str, Tensor]:
        """Return the weights of the map by stream."""
        sizes = [size for _, size in self.columns]
        return dict(zip(self.streams, self.weights_RS.split(sizes, 1), strict=True))

    def share_R(self, stream: str) -> Tensor | None:
        """Return the fraction of each output's absolute weight that is on one stream; None if the
        map has a single stream.

        The fractions of all streams sum to 1. For an output without any weight they are equal.
        """
        if stream not in self.streams or len(self.columns) < 2:
            return None
        sums_XR = torch.stack([part_RS.abs().sum(1) for part_RS in self.parts().values()])
        total_R = sums_XR.sum(0)
        share_R = sums_XR[self.streams.index(stream)] / total_R.clamp(min=1e-30)
        return torch.where(total_R > 0, share_R, torch.full_like(share_R, 1 / len(self.columns)))


def readout_RT(run: LoadedRun | None, reading: Reading) -> Tensor:
    """Return the weights with which each output is read from the positions of the last stream.
    Weights of an output sum to 1.

    A class or embedding of a whole text is read from the positions that the model pools.
    """
    model = None if run is None else run.model
    pooling = getattr(model, "pooling", "first")
    weights_RT = torch.zeros(len(reading.outputs), len(reading.last))
    for number, output in enumerate(reading.outputs):
        if output.row is not None:
            weights_RT[number, output.row] = 1.0
        elif pooling == "mean":
            weights_RT[number] = 1 / len(reading.last)
        else:
            weights_RT[number, -1 if pooling == "last" else 0] = 1.0
        if output.row is None and "distilled" in getattr(model, "heads", ()):
            # A distilled DeiT averages two predictions. The second is read from the distillation
            # token.
            weights_RT[number] /= 2
            weights_RT[number, 1] += 0.5
    return weights_RT


def written_words(reading: Reading) -> list[int]:
    """Return the index of the word in the last stream that each output is part of; -1 if it is not
    part of a word. In generated text, an output is the token at the next position."""
    words = [*reading.last.words, -1]
    behind = int(reading.writes)
    return [-1 if output.row is None else words[output.row + behind] for output in reading.outputs]
