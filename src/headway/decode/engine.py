"""Another runtime in torch's place: what it has to give so that all around it stays as it is.

Tokenizing, long lines, batches, alignments, unknown words, windows and labels are ours whatever
computes; an engine searches with token numbers, or gives a vector a token. `tasks/engines.py`
has the table of those that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headway.decode.search.greedy import Watch
from headway.decode.search.hypothesis import Hypothesis, Specials, Wish
from headway.decode.search.searcher import Prefix
from headway.decode.speech.recognizer import Recognizer
from headway.errors import UserError
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.ngrams import Ngrams
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

Tokens = Sequence[Sequence[int]]

Batch = tuple[Sequence[int], list[list[Hypothesis]]]
"""Numbers of sources, and the outputs of each."""


class Search(Protocol):
    """Called like `decode.search.searcher.Searcher`; an engine never gets a `prefix`."""

    @property
    def context(self) -> int | None:
        """The most tokens that it reads of a prompt, or knows positions for."""
        ...

    def __call__(
        self,
        sources: Sequence[Any],
        wishes: Sequence[Wish] | None = None,
        numbers: Tokens | None = None,
        *,
        prefix: Prefix | None = None,
        watch: Watch | None = None,
    ) -> list[list[Hypothesis]]: ...


@runtime_checkable
class AheadSearch(Search, Protocol):
    """One that works while we do other things, and makes its batches itself."""

    def begin(self, sources: Tokens, wishes: Sequence[Wish]) -> Iterator[Batch]:
        """Hand everything over, at once; what comes back waits for the results of each batch."""
        ...


class Engine:
    """What `--engine` stands for. A runtime overrides what it can do and refuses the rest."""

    name = "this engine"
    reach: int | None = None
    """The most tokens of a source, where its positions have an end."""

    notes: tuple[str, ...] = ()
    """What people should know, once."""

    def searcher(
        self,
        settings: DecodeSettings,
        specials: Specials,
        *,
        context: int | None = None,
        detail: bool = False,
    ) -> Search:
        """For writers and completers. `context`: the most tokens that a run reads of a text it goes
        on with. `detail`: the log-probability of every token is wanted exactly, where that costs
        time."""
        self._cannot("write text")

    def recognizer(
        self, tokenizer: Tokenizer, settings: DecodeSettings, weight: float
    ) -> Recognizer:
        """For transcribers; `weight` is that of CTC beside a decoder."""
        self._cannot("transcribe")

    def attention(self, sources: Sequence[Any], targets: Tokens, bos: int) -> list[Tensor]:
        """As `decode.align.attention_of`, for alignments and unknown words."""
        self._cannot("say what a word attends to, which --alignments and decode.unknown=copy need")

    def model(self) -> Encoder | Decoder:
        """For classes, tags, gaps and vectors: a stand-in that is called like our models."""
        self._cannot("give a vector for each token")

    def _cannot(self, what: str) -> NoReturn:
        raise UserError(f"--engine {self.name} does not {what}. Use --engine torch with the run.")


Read = Callable[[Tensor, Layout, Tensor | None], Tensor]
"""Tokens of a flat batch, where its texts lie, and segments, to a vector a token (N D)."""


class BodyElsewhere(Encoder):
    """An encoder whose body an engine computes; the heads are ours."""

    def __init__(
        self, read: Read, heads: nn.ModuleDict, pooling: str, ngrams: Ngrams | None = None
    ) -> None:
        super().__init__(nn.Identity(), nn.Identity(), heads, pooling, ngrams)
        self.read = read

    @torch.no_grad()
    def forward(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        return self.read(tokens_N, layout, segments_N)
