"""The text front: token numbers become vectors that know their position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.models.parts.front import Front
from headway.nn.dropout import Dropout
from headway.nn.layout import Layout


class TextFront(Front):
    """Token embedding, positions and segments added up, then a norm where the family has one.

    `dtype` is the type of the residual stream, and so of all computation behind it.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Module | None,
        *,
        scale: bool = False,
        n_segments: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        to_stream: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.norm = tokens, positions, norm
        self.to_stream = to_stream
        """From narrow embeddings to the width of the stream, where they differ."""
        self.segments = nn.Embedding(n_segments, tokens.embedding_dim) if n_segments else None
        self.scale = tokens.embedding_dim**0.5 if scale else 1.0
        self.drop = Dropout(dropout)

    @property
    def vocab_size(self) -> int:
        return self.tokens.num_embeddings

    def rows(self, item: Sequence[int]) -> int:
        return len(item)

    def collate(
        self, items: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Layout]:
        tokens_N = torch.tensor([token for item in items for token in item], dtype=torch.long)
        return tokens_N.to(device), Layout.of([len(item) for item in items], device)

    def forward(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        x_ND: Tensor = self.tokens(tokens_N)
        if self.dtype is not None:
            x_ND = x_ND.to(self.dtype)
        if self.scale != 1.0:
            x_ND = x_ND * self.scale
        if self.segments is not None:
            numbers_N = torch.zeros_like(tokens_N) if segments_N is None else segments_N
            x_ND = x_ND + self.segments(numbers_N).to(x_ND.dtype)
        if self.positions is not None:
            x_ND = self.positions(x_ND, layout)
        if self.norm is not None:
            x_ND = self.norm(x_ND)
        x_ND = self.drop(x_ND)
        return x_ND if self.to_stream is None else self.to_stream(x_ND)
