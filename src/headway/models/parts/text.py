"""Text front: converts token indices to embeddings with positional encodings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.models.parts.front import Front
from headway.nn.dropout import Dropout
from headway.nn.layout import Layout


class TokenDropout(nn.Module):
    """ESM's scaling of embeddings by the fraction of masked tokens (Rives et al. 2021, as in its
    code).

    Masked tokens are set to zero. The others are scaled so that their sum is as large as if 12 %
    were masked. This is the mean fraction in ESM's training, 80 % of 15 %.
    """

    TRAINED_SHARE = 0.15 * 0.8

    def __init__(self, mask: int) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x_ND: Tensor, tokens_N: Tensor, layout: Layout) -> Tensor:
        masked_N1 = (tokens_N == self.mask)[:, None]
        share_B1 = layout.pooled(masked_N1.float(), "mean")
        # If all tokens are masked, the result is zero, so the minimum has no effect.
        factor_B1 = (1.0 - self.TRAINED_SHARE) / (1.0 - share_B1).clamp(min=1e-6)
        return x_ND.masked_fill(masked_N1, 0.0) * factor_B1[layout.numbers_N()].to(x_ND.dtype)


class TextFront(Front):
    """Input layers for text: the sum of token, positional and segment embeddings, followed by a
    norm in some families.

    `dtype` is the data type of the residual stream, and so of all layers after it.
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
        token_dropout: TokenDropout | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.norm = tokens, positions, norm
        self.to_stream, self.token_dropout = to_stream, token_dropout
        """`to_stream` projects embeddings to the width of the residual stream; None if the widths
        are equal."""
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
        if self.token_dropout is not None:
            x_ND = self.token_dropout(x_ND, tokens_N, layout)
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
