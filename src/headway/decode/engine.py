"""Interface of inference runtimes that replace PyTorch.

An engine searches over token ids or returns one vector per token. Tokenizing, splitting long lines,
batching, alignments, unknown words, windows and labels are the same for every runtime.
`tasks/engines.py` lists the available engines.
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
"""Results of one batch: the indices of its sources, and the outputs of each source."""


class Search(Protocol):
    """Interface of a search with the arguments of `Searcher.__call__`. An engine never gets a
    `prefix`."""

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a prompt together with its output; None if there is no
        limit."""
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
    """Search that runs in the background and forms its own batches."""

    def begin(
        self, sources: TokenLists, wishes: Sequence[TokenConstraints]
    ) -> Iterator[SearchedBatch]:
        """Submit all sources and return immediately. The returned iterator waits for the results,
        batch by batch."""
        ...


class Engine:
    """Base class of the runtimes that `--engine` selects.

    Subclasses override the methods that they support. All other methods raise `UserError`.
    """

    name = "this engine"
    reach: int | None = None
    """Maximum number of source tokens; None if positions are not limited."""

    notes: tuple[str, ...] = ()
    """Notes for the user, each printed once."""

    def searcher(
        self,
        settings: DecodeSettings,
        specials: SpecialTokens,
        *,
        context: int | None = None,
        detail: bool = False,
    ) -> Search:
        """Create the search for writers and completers.

        `context`: maximum number of tokens that a language model reads. `detail`: whether to
        compute the exact log-probability of every token, even if this takes longer.
        """
        self._cannot("write text")

    def recognizer(
        self, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
    ) -> Recognizer:
        """Create the recognizer for transcribers. `weight`: weight of CTC in joint CTC/attention
        decoding."""
        self._cannot("transcribe")

    def attention(self, sources: Sequence[Any], targets: TokenLists, bos: int) -> list[Tensor]:
        """Return the cross-attention in the format of `decode.align.cross_attention`. It is needed
        for alignments and to replace unknown words."""
        self._cannot(
            f"return cross-attention, which {Option('alignments', True)} and decode.unknown=copy "
            "need"
        )

    def model(self) -> Encoder | Decoder:
        """Return an adapter with the interface of headway's models, for tasks that read hidden
        states or output heads."""
        self._cannot("return a vector for each token")

    def _cannot(self, what: str) -> NoReturn:
        raise UserError(
            f"{Option('engine', self.name)} cannot {what}. Use {Option('engine', 'torch')} with "
            "the original run."
        )


EncodeFunction = Callable[[Tensor, Layout, Tensor | None], Tensor]
"""Function that maps the tokens, layout and segments of a flat batch to one vector per token (N
D)."""


class EngineEncoder(Encoder):
    """Encoder whose layers run in an engine, while its output heads run in PyTorch."""

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
