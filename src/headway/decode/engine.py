"""Interface of a runtime that replaces torch for inference.

Tokenizing, splitting of long lines, batching, alignments, unknown words, windows and labels are the
same for every runtime. An engine searches over token ids or returns one vector per token.
`tasks/engines.py` has the table of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headway.decode.logits_processors import SpecialTokens, TokenConstraints
from headway.decode.search.greedy import TokenCallback
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import SharedPrefix
from headway.decode.speech.recognizer import Recognizer
from headway.errors import Option, UserError
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.ngrams import Ngrams
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

TokenLists = Sequence[Sequence[int]]

SearchedBatch = tuple[Sequence[int], list[list[Hypothesis]]]
"""Indices of the sources in a batch, and the outputs of each of them."""


class Search(Protocol):
    """Interface of a search, called like `decode.search.searcher.Searcher`. An engine never gets a
    `prefix`."""

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a prompt together with its output; None: no limit."""
        ...

    def __call__(
        self,
        sources: Sequence[Any],
        wishes: Sequence[TokenConstraints] | None = None,
        numbers: TokenLists | None = None,
        *,
        prefix: SharedPrefix | None = None,
        watch: TokenCallback | None = None,
    ) -> list[list[Hypothesis]]: ...


@runtime_checkable
class BackgroundSearch(Search, Protocol):
    """A search that runs in the background and builds its own batches."""

    def begin(
        self, sources: TokenLists, wishes: Sequence[TokenConstraints]
    ) -> Iterator[SearchedBatch]:
        """Submit all sources and return immediately. The iterator waits for the results of
        batches."""
        ...


class Engine:
    """Base class of the runtimes that `--engine` selects. Subclasses override the methods that they
    support; all others raise `UserError`."""

    name = "this engine"
    reach: int | None = None
    """Maximum number of source tokens; None if positions are not limited."""

    notes: tuple[str, ...] = ()
    """Notes that are printed once for the user."""

    def searcher(
        self,
        settings: DecodeSettings,
        specials: SpecialTokens,
        *,
        context: int | None = None,
        detail: bool = False,
    ) -> Search:
        """Create the search for writers and completers.

        `context`: maximum number of tokens that a language model reads. `detail`: compute the exact
        log-probability of every token, even if that takes longer.
        """
        self._cannot("write text")

    def recognizer(
        self, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
    ) -> Recognizer:
        """Create the recognizer for transcribers. `weight`: weight of CTC in joint decoding."""
        self._cannot("transcribe")

    def attention(self, sources: Sequence[Any], targets: TokenLists, bos: int) -> list[Tensor]:
        """Cross-attention, as `decode.align.cross_attention` returns it. Alignments and the
        replacement of unknown words need it."""
        self._cannot(
            f"return cross-attention, which {Option('alignments', True)} and decode.unknown=copy "
            "need"
        )

    def model(self) -> Encoder | Decoder:
        """Adapter that gives the engine the interface of headway's models, for tasks that read
        vectors or heads."""
        self._cannot("return a vector for each token")

    def _cannot(self, what: str) -> NoReturn:
        raise UserError(
            f"{Option('engine', self.name)} cannot {what}. Use {Option('engine', 'torch')} with "
            "the original run."
        )


EncodeFunction = Callable[[Tensor, Layout, Tensor | None], Tensor]
"""Function from the tokens, layout and segments of a flat batch to one vector per token (N D)."""


class EngineEncoder(Encoder):
    """An encoder whose body runs in an engine; its heads run in torch."""

    def __init__(
        self,
        encode: EncodeFunction,
        heads: nn.ModuleDict,
        pooling: str,
        ngrams: Ngrams | None = None,
    ) -> None:
        super().__init__(nn.Identity(), nn.Identity(), heads, pooling, ngrams)
        self.encode = encode

    @torch.no_grad()
    def forward(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        return self.encode(tokens_N, layout, segments_N)
