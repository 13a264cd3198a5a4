"""Nearest tokens of a corpus, by hidden states or by active features.

The search is exact, because every token of the corpus is compared. States are first centred by
their mean over the corpus: in most models all states share a large component, which makes all of
them similar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headway.errors import UserError
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import Passage, TokenContext, passages
from headway.inside.capture.states import Site, batches, sites_of, states_of, stream_of
from headway.inside.capture.trace import Trace
from headway.inside.measure.features.dictionary import FeatureDictionary
from headway.tasks.loaded_run import LoadedRun

MAX_TOKENS = 50_000
"""Maximum number of tokens in an index. At width 512 they take 50 MB per layer in half
precision."""

AT_ONCE = 8192
"""Number of tokens per matrix product. Vectors are stored in half precision and converted to fp32
for one product at a time."""

Float32Array = NDArray[np.float32]


@dataclass(frozen=True)
class Neighbour:
    cosine: float
    passage: int
    place: int


@dataclass(frozen=True)
class TokenIndex:
    """Index of corpus tokens by their hidden states at one site.

    Special tokens at the ends of texts are left out.
    """

    run: LoadedRun
    site: Site
    texts: list[Passage]
    where_N2: NDArray[np.int32]
    """Passage index of each token, and its position in that passage."""

    unit_ND: NDArray[np.float16]
    length_N: Float32Array
    middle_D: Float32Array
    factors: FeatureDictionary | None = None
    """Features by whose activations tokens are compared; None: by hidden states."""

    @classmethod
    def of(
        cls,
        run: LoadedRun,
        lines: Corpus | Iterable[str],
        layer: int,
        *,
        stack: str | None = None,
        factors: FeatureDictionary | None = None,
        max_tokens: int = MAX_TOKENS,
    ) -> TokenIndex:
        """Build a nearest-neighbour index of the token vectors after one layer.

        `layer`: number of the layer; 0 is the embedding. `stack`: name of the stack; None: the
        last stack.
        """
        sites = sites_of(run.model)
        wanted = (sites[-1][0] if stack is None else stack, layer)
        if wanted not in sites:
            there = ", ".join(f"{name} {number}" for name, number in sites)
            raise UserError(
                f"this model has no layer {layer} of stack {wanted[0]!r}. Its stacks and layers "
                f"are: {there}."
            )
        return build_indexes(run, lines, [wanted], factors=factors, max_tokens=max_tokens)[wanted]

    @property
    def stream(self) -> str:
        return stream_of(self.run.model, self.site)

    def nearest(self, trace: Trace, stream: str, place: int, top: int = 10) -> list[Neighbour]:
        """Return the corpus tokens most similar to one token of a traced text, nearest first."""
        if stream != self.stream:
            raise UserError(
                f"this index contains tokens of the {self.stream}, not of the {stream}."
            )
        x_1D = trace.states[self.site[0]][self.site[1]][place : place + 1]
        return self.nearest_to(self.rows(x_1D.detach()), top)[0]

    def rows(self, x_ND: torch.Tensor) -> Float32Array:
        """Return centred vectors for states of this site. Their cosine similarity ranks the
        tokens."""
        if self.factors is not None:
            x_ND = self.factors.codes(x_ND, self.site)
        return np.asarray(x_ND.float().numpy() - self.middle_D, np.float32)

    def nearest_to(self, x_QD: Float32Array, top: int) -> list[list[Neighbour]]:
        like_QN = self.cosines(x_QD)
        top = min(top, like_QN.shape[1])
        best_QK = np.argsort(-like_QN, axis=1, kind="stable")[:, :top]
        return [
            [Neighbour(float(like[n]), *map(int, self.where_N2[n])) for n in best]
            for like, best in zip(like_QN, best_QK, strict=True)
        ]

    def cosines(self, x_QD: Float32Array) -> Float32Array:
        unit_QD = x_QD / np.maximum(np.linalg.norm(x_QD, axis=1, keepdims=True), 1e-12)
        parts = [
            unit_QD @ self.unit_ND[first : first + AT_ONCE].astype(np.float32).T
            for first in range(0, len(self.unit_ND), AT_ONCE)
        ]
        return np.concatenate(parts, axis=1)

    def strongest(self, factor: int, top: int = 10) -> list[tuple[float, int, int]]:
        """Return the tokens on which a feature is most active, as tuples of activation, passage and
        position."""
        if self.factors is None:
            raise UserError(
                "this index contains states, not factors. To search by factor, create an index "
                "with factors=…"
            )
        value_N = self.unit_ND[:, factor].astype(np.float32) * self.length_N
        value_N += self.middle_D[factor]
        best = np.argsort(-value_N, kind="stable")[:top]
        places = self.where_N2[best].tolist()
        return [(float(value_N[n]), *place) for n, place in zip(best, places, strict=True)]

    def token_context(
        self, passage: int, place: int, before: int = 8, behind: int = 5
    ) -> TokenContext:
        """Return a token of the corpus with its context."""
        first, end = max(0, place - before), place + behind + 1
        return self.texts[passage].token_context(self.stream, place, first, end)


@torch.no_grad()
def build_indexes(
    run: LoadedRun,
    lines: Corpus | Iterable[str],
    sites: Sequence[Site],
    *,
    factors: FeatureDictionary | None = None,
    max_tokens: int = MAX_TOKENS,
) -> dict[Site, TokenIndex]:
    """Return indexes of several sites, made in one pass over the corpus."""
    corpus = lines if isinstance(lines, Corpus) else Corpus.of_lines(lines)
    decoding = any(stream_of(run.model, site) == "target" for site in sites)
    texts = passages(run, corpus, min(max_tokens, MAX_TOKENS), write=decoding)
    rows: dict[Site, list[Float32Array]] = {site: [] for site in sites}
    where: dict[str, list[NDArray[np.int32]]] = {}
    first = 0
    for batch in batches(run, texts):
        states = states_of(run.model, batch)
        for stream in batch.streams:
            words_N = batch.ordinary(run, stream)
            places = np.array(list(batch.places(stream)), np.int32)[words_N.numpy()]
            where.setdefault(stream, []).append(places + np.array([first, 0], np.int32))
            for site in sites:
                if stream_of(run.model, site) == stream:
                    x_ND = states[site][words_N]
                    x_ND = x_ND if factors is None else factors.codes(x_ND, site)
                    rows[site].append(x_ND.float().numpy())
        first += len(batch.readings)
    found = {}
    for site in sites:
        where_N2 = np.concatenate(where[stream_of(run.model, site)])
        all_ND = np.concatenate(rows.pop(site))
        middle_D = all_ND.mean(0)
        all_ND -= middle_D
        length_N = np.maximum(np.linalg.norm(all_ND, axis=1), 1e-12)
        unit_ND = (all_ND / length_N[:, None]).astype(np.float16)
        found[site] = TokenIndex(run, site, texts, where_N2, unit_ND, length_N, middle_D, factors)
    return found
