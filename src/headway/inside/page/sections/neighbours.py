"""Page section for nearest neighbours: the corpus tokens nearest to the tokens of this text, in
several layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import nn

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.states import Site
from headway.inside.measure.nearest_tokens import TokenIndex, build_indexes
from headway.inside.page.sections import PageSection
from headway.tasks.loaded_run import LoadedRun
from headway.web.pack import PackedArray, pack

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

TOKENS = 12_000
"""Maximum number of corpus tokens that are searched for a page. The limit bounds time."""

LAYERS = 6
"""Maximum number of layers searched in a stack, besides the embedding. In deeper stacks, layers are
evenly spaced from the first to the last."""

MOST = 64
"""Maximum number of tokens of the text whose neighbours are searched, in each stream."""

BUDGET, BUDGET_WITH_IMAGES = 200_000, 600_000
"""Maximum size in bytes of the packed section, for text and for images. Patches of images take more
space than words."""

TRIED = [(6, True), (4, True), (2, True), *((hits, False) for hits in range(6, 0, -1))]
"""Numbers of neighbours to try, and whether to show patches. The first choice within the size limit
is used."""

_KNOWN: WeakKeyDictionary[nn.Module, tuple[Corpus, dict[Site, TokenIndex]]] = WeakKeyDictionary()
"""Indexes by model, which are kept because a live page searches one corpus for every request."""


def section(looked: LookInputs) -> PageSection | None:
    if looked.corpus is None or looked.run is None:
        return None
    found = _indexes(looked.run, looked.corpus)
    for hits, images in TRIED:
        made = _made(looked, found, hits, images)
        if len(pack(made)) <= (BUDGET_WITH_IMAGES if images else BUDGET):
            return made
    return None


def chosen(run: LoadedRun, corpus: Corpus) -> list[Site]:
    """Return the sites to search: the embedding and some layers of each stack that reads the
    corpus."""
    parts = Anatomy.of(run.model).stacks
    if len(parts) > 1 and corpus.targets is None:
        parts = parts[:1]
    return [(part.name, layer) for part in parts for layer in [0, *_spaced(len(part.blocks))]]


def _spaced(n_layers: int) -> list[int]:
    """Return evenly spaced layers, such as 1, 3, 5, 8, 10 and 12 of 12."""
    n = min(n_layers, LAYERS)
    return [1 + (2 * step * (n_layers - 1) + n - 1) // (2 * max(n - 1, 1)) for step in range(n)]


def _indexes(run: LoadedRun, corpus: Corpus) -> dict[Site, TokenIndex]:
    known = _KNOWN.get(run.model)
    if known is None or known[0] is not corpus:
        known = corpus, build_indexes(run, corpus, chosen(run, corpus), max_tokens=TOKENS)
        _KNOWN[run.model] = known
    return known[1]


def _made(
    looked: LookInputs, found: dict[Site, TokenIndex], n_hits: int, images: bool
) -> PageSection:
    contexts: dict[tuple[str, int, int], int] = {}
    texts: list[list[Any]] = []
    layers = []
    for (stack, layer), index in found.items():
        stream = looked.trace.reading.streams[index.stream]
        places = [i for i, special in enumerate(stream.special) if not special][:MOST]
        x_TD = looked.trace.states[stack][layer].detach()
        rows = []
        cosines = []
        for hits in index.nearest_to(index.rows(x_TD[places]), n_hits):
            numbers = []
            for hit in hits:
                key = (index.stream, hit.passage, hit.place)
                if key not in contexts:
                    contexts[key] = len(texts)
                    context = index.token_context(hit.passage, hit.place)
                    looks = [context["image"]] if images and "image" in context else []
                    texts.append([context["at"], context["pieces"], *looks])
                numbers.append(contexts[key])
            rows.append(numbers)
            cosines.append([hit.cosine for hit in hits])
        layers.append(
            {
                "stack": stack,
                "layer": layer,
                "stream": index.stream,
                "places": places,
                "hits": rows,
                "cosines": PackedArray(np.array(cosines, ndmin=2), "f16"),
            }
        )
    assert looked.corpus is not None
    n_tokens = {index.stream: len(index.where_N2) for index in found.values()}
    return {
        "corpus": ", ".join(Path(name).name for name in looked.corpus.name.split(", ")),
        "tokens": n_tokens,
        "texts": texts,
        "layers": layers,
    }
