"""Modules of an n-gram language model, which is built by counting instead of gradient descent.

The front passes token indices through, the only layer collects the last tokens, and the head looks
up their n-grams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from headway.models.parts.front import Front
from headway.nn.attention.attention import Memory
from headway.nn.cache import LayerCache
from headway.nn.kneser_ney import NONE, KneserNey, preceding_tokens
from headway.nn.layout import Layout
from headway.nn.loss import LabelSmoothing, Loss
from headway.nn.tap import Tap

TOKENS = "tokens"


class TokenFront(Front):
    """Front that returns the index of each token (N, 1)."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def rows(self, item: Sequence[int]) -> int:
        return len(item)

    def collate(
        self, items: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Layout]:
        tokens_N = torch.tensor([token for item in items for token in item], dtype=torch.long)
        return tokens_N.to(device), Layout.of([len(item) for item in items], device)

    def forward(self, tokens_N: Tensor, layout: Layout) -> Tensor:
        return tokens_N[:, None]


class LastTokens(nn.Module):
    """Layer that returns the last `n` tokens at each position, nearest first (N, n). `NONE` fills
    places before the start of the sequence."""

    can_end_early = compiles = False
    cross = None
    n_sublayers = 0

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.stream = n, Tap()

    def begin(self, memory: Memory | None, cache: LayerCache) -> None:
        cache.begin(TOKENS, torch.full((cache.cache.n_rows, 1), NONE))

    def cache_sizes(self) -> tuple[int, int]:
        return 1, 0

    def forward(
        self,
        x_N1: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        assert n_first is None, "the first tokens of a causal layer do not see all others"
        if cache is None:
            return self.stream(preceding_tokens(x_N1[:, 0], layout.positions_N, self.n))
        if TOKENS not in cache.cells:
            cache.begin(TOKENS, x_N1.new_full((cache.cache.n_rows, 1), NONE))
        cache.put(TOKENS, x_N1, layout)
        return self.stream(cache.latest(TOKENS, layout, max(1, self.n))[:, : self.n, 0])


class NgramLMHead(nn.Module):
    """Head that returns the log-probabilities of the next token, given the last tokens."""

    def __init__(self, vocab_size: int, order: int) -> None:
        super().__init__()
        self.table = KneserNey(vocab_size, order)

    def forward(self, x_NK: Tensor) -> Tensor:
        return self.table.all_probs(self.table.contexts(x_NK)).log()

    def loss(
        self,
        x_NK: Tensor,
        targets_N: Tensor,
        smoothing: LabelSmoothing,
        weights_N: Tensor | None = None,
    ) -> Loss:
        """Return the negative log-likelihood. Label smoothing is ignored, because counting has no
        use for it."""
        nll_N = -self.table.token_probs(self.table.contexts(x_NK), targets_N).log()
        nll = (nll_N if weights_N is None else nll_N * weights_N).sum()
        return Loss(nll, nll)


def resize_tables(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Resize the n-gram tables of a model to the shapes of weights that are about to be loaded."""
    for name, part in model.named_modules():
        if isinstance(part, KneserNey):
            sizes = {
                key: len(weights[f"{name}.{key}"])
                for key in ("keys_J", "share_J", "backoff_I")
                if f"{name}.{key}" in weights
            }
            part.resize(sizes)
