"""An ONNX graph in the place of an encoder: tasks call it as they call our models."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from headway.config.model import EncoderSettings
from headway.config.run import RunSettings
from headway.decode.engine import Tokens
from headway.decode.lines import batches
from headway.interop.onnx.session import Session
from headway.interop.plain.graphs import IDS, LOGITS, MASK, SEGMENTS, SENTENCE, TRANSITIONS
from headway.interop.plain.padded import Array, padded
from headway.models.encoder import Encoder
from headway.nn.layout import Layout

TOKENS_AT_ONCE = 4096
"""Of texts that are only read."""


class SegmentsAlone(nn.Module):
    """Where tasks ask whether the second text of a pair is told from the first."""

    def __init__(self, n_segments: int) -> None:
        super().__init__()
        self.segments = nn.Embedding(n_segments, 1) if n_segments else None


class TransitionsAlone(nn.Module):
    """Where tasks ask which tag follows which."""

    def __init__(self, transitions: Tensor | None) -> None:
        super().__init__()
        self.transitions = transitions


class Answers(Encoder):
    """Called like our models; what they would give for a head to read is the answer already."""

    def __init__(self, graph: Session, settings: RunSettings) -> None:
        shape = settings.model
        front = SegmentsAlone(shape.n_segments if isinstance(shape, EncoderSettings) else 0)
        super().__init__(front, nn.Identity(), nn.ModuleDict(), "mean")
        self.graph, self.task = graph, settings.task
        learned = None
        if TRANSITIONS in graph.outputs:  # a constant of the graph, whatever is read
            learned = torch.from_numpy(self._read([[0]], [[0]])[TRANSITIONS])
        self.heads["tags"] = TransitionsAlone(learned)

    def forward(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        """A row for each token (words, tags) or for each text (classes, vectors)."""
        lengths = list(layout.known_lengths())
        numbers_N = torch.zeros_like(tokens_N) if segments_N is None else segments_N
        texts = [part.tolist() for part in tokens_N.split(lengths)]
        segments = [part.tolist() for part in numbers_N.split(lengths)]
        found: dict[int, Array] = {}
        for group in batches(lengths, TOKENS_AT_ONCE):
            read = self._read([texts[i] for i in group], [segments[i] for i in group])
            rows = read[SENTENCE if self.task == "embed" else LOGITS]
            found |= dict(zip(group, rows, strict=True))
        if self.task in ("embed", "classify"):
            return torch.from_numpy(np.stack([found[i] for i in range(len(texts))]))
        tables = [found[i][: lengths[i]] for i in range(len(texts))]
        return torch.from_numpy(np.concatenate(tables))

    def _read(self, texts: Tokens, segments: Tokens) -> dict[str, Array]:
        ids_BT, real_BT = padded(texts)
        return self.graph.call({IDS: ids_BT, MASK: real_BT, SEGMENTS: padded(segments)[0]})

    def scores(self, x_ND: Tensor) -> Tensor:
        return x_ND

    def tags(self, x_ND: Tensor) -> Tensor:
        return x_ND

    def classes(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND
