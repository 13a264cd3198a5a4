"""Browsable data of each feature: contexts in which it is active, activation by layer, and effect
on the output.

The activation of a feature at a token is its largest code over the layers. Its frequency is counted
in the layer in which it is strongest on average. States are scaled to a mean norm of one, so that
activations can be compared across layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.inside.capture.examples import Passage
from headway.inside.capture.states import batches, states_of, stream_of
from headway.inside.measure.features.dictionary import FeatureDictionary
from headway.inside.measure.features.effects import effects, promoted_words
from headway.inside.measure.features.recovery import measure_fidelity
from headway.tasks.loaded_run import LoadedRun

BEFORE, BEHIND = 10, 6
"""Number of tokens shown before and after the token with the strongest activation."""

CONTEXTS = 8
"""Number of contexts per feature: enough to see a pattern, few enough for a small file."""


@dataclass(frozen=True)
class ActivationContext:
    """Context in a passage in which a feature is active."""

    passage: int
    """Index of the passage among the searched passages."""

    stream: str
    place: int
    first: int
    values: tuple[float, ...]
    """Activation of the feature at each token of the context, which begins at position `first`."""


@dataclass(frozen=True)
class FeatureActivations:
    """All activations of features in the searched text, sorted by feature and then by token."""

    factor_E: NDArray[np.int64]
    row_E: NDArray[np.int64]
    value_E: NDArray[np.float32]
    passage_N: NDArray[np.int64]
    """Index of the passage that each token belongs to."""

    place_N: NDArray[np.int64]
    stream_N: NDArray[np.int64]
    """Index of the stream that each token belongs to; `place_N` is its position in that stream."""

    totals: _Totals

    def of(self, factor: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the tokens at which a feature is active, as indices into `passage_N`, and its
        activations there."""
        first, last = np.searchsorted(self.factor_E, [factor, factor + 1])
        return self.row_E[first:last], self.value_E[first:last]


def browse(
    run: LoadedRun,
    found: FeatureDictionary,
    texts: Sequence[Passage],
    test: Sequence[Passage],
    note: Callable[[str], None],
) -> FeatureDictionary:
    """Return the dictionary with its measured figures, and with browsable data of each feature."""
    note("finding where the factors are active")
    looked = _some(texts, found.settings.n_browse)
    fired = collect_activations(run, found, looked)
    contexts = [contexts_of(fired, factor, list(looked[0].streams)) for factor in range(found.n)]
    note("measuring the loss with reconstructed states")
    measured = measure_fidelity(run, found, test)
    profile_SA, fires_A = fired.totals.profile_SA, fired.totals.fires_A
    measured |= {
        "dead": float((fired.totals.sum_SA.sum(0) == 0).mean()),
        "browsed_tokens": len(fired.place_N),
        "corpus_tokens": sum(text.n_tokens for text in texts),
        "rows": "tokens" if texts[0].media is None else "positions",
    }
    note("removing each factor from its strongest contexts")
    moved = effects(run, found, looked, contexts, profile_SA.argmax(0).tolist())
    words = promoted_words(run, found)
    entries = tuple(
        _entry(run, looked, contexts[a], profile_SA[:, a], float(fires_A[a]))
        | {"effect": moved[a], **words[a]}
        for a in range(found.n)
    )
    return replace(found, figures=measured, entries=entries)


def _some(texts: Sequence[Passage], tokens: int) -> list[Passage]:
    """Return evenly spaced passages with about `tokens` tokens in total."""
    total = sum(text.n_tokens for text in texts)
    every = max(1, round(total / tokens))
    return list(texts[::every])


@torch.no_grad()
def collect_activations(
    run: LoadedRun, found: FeatureDictionary, texts: Sequence[Passage]
) -> FeatureActivations:
    """Run the texts through the model and collect every positive activation.

    Zeros are not stored, so the size of the table does not depend on the number of features.
    """
    device = next(run.model.parameters()).device
    totals = _Totals(len(found.sites), found.n)
    parts: list[tuple[NDArray[Any], ...]] = []
    places: list[NDArray[np.int64]] = []
    n_rows = first = 0
    for batch in batches(run, texts):
        states = states_of(run.model, batch)
        for number, stream in enumerate(batch.streams):
            words_N = batch.ordinary(run, stream)
            own = [site for site in found.sites if stream_of(run.model, site) == stream]
            strongest_NA = torch.zeros(int(words_N.sum()), found.n, device=device)
            for site in own:
                code_NA = found.codes(states[site][words_N], site)
                totals.add(found.sites.index(site), code_NA)
                strongest_NA = torch.maximum(strongest_NA, code_NA)
            where_N2 = np.array(list(batch.places(stream)), np.int64)[words_N.cpu().numpy()]
            streams_N = np.full(len(where_N2), number)
            places.append(np.column_stack([where_N2[:, 0] + first, where_N2[:, 1], streams_N]))
            row_E, factor_E = torch.nonzero(strongest_NA, as_tuple=True)
            entries = (factor_E, row_E + n_rows, strongest_NA[row_E, factor_E])
            parts.append(tuple(part.cpu().numpy() for part in entries))
            n_rows += len(where_N2)
        first += len(batch.readings)
    factors, rows, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((rows, factors))
    passage_N, place_N, stream_N = np.concatenate(places).T
    return FeatureActivations(
        factors[order], rows[order], values[order], passage_N, place_N, stream_N, totals
    )


class _Totals:
    """Sums of the codes, and counts of the positive codes, by site and feature."""

    def __init__(self, n_sites: int, n: int) -> None:
        self.sum_SA = np.zeros((n_sites, n))
        self.fired_SA = np.zeros((n_sites, n), np.int64)
        self.words_S1 = np.zeros((n_sites, 1), np.int64)

    def add(self, site: int, code_NA: Tensor) -> None:
        self.sum_SA[site] += code_NA.sum(0).double().cpu().numpy()
        self.fired_SA[site] += (code_NA > 0).sum(0).cpu().numpy()
        self.words_S1[site] += len(code_NA)

    @property
    def profile_SA(self) -> NDArray[np.float64]:
        return self.sum_SA / np.maximum(self.words_S1, 1)

    @property
    def fires_A(self) -> NDArray[np.float64]:
        """Fraction of tokens on which each feature is active, in the layer in which it is strongest
        on average."""
        site_1A = self.profile_SA.argmax(0)[None]
        share_SA = self.fired_SA / np.maximum(self.words_S1, 1)
        return np.take_along_axis(share_SA, site_1A, 0)[0]


def contexts_of(
    fired: FeatureActivations, factor: int, streams: Sequence[str]
) -> list[ActivationContext]:
    """Return the contexts with the strongest activations of a feature, at most one per passage and
    stream."""
    rows, values = fired.of(factor)
    found: list[ActivationContext] = []
    taken = set[tuple[int, int]]()
    for best in np.argsort(-values, kind="stable"):
        row = rows[best]
        passage, stream = int(fired.passage_N[row]), int(fired.stream_N[row])
        if (passage, stream) in taken:
            continue
        taken.add((passage, stream))
        place = int(fired.place_N[row])
        first = max(0, place - BEFORE)
        near = (fired.passage_N[rows] == passage) & (fired.stream_N[rows] == stream)
        window = [0.0] * (place + BEHIND + 1 - first)
        for other, value in zip(fired.place_N[rows[near]], values[near], strict=True):
            if first <= other <= place + BEHIND:
                window[int(other) - first] = float(value)
        found.append(ActivationContext(passage, streams[stream], place, first, tuple(window)))
        if len(found) == CONTEXTS:
            break
    return found


def _entry(
    run: LoadedRun,
    texts: Sequence[Passage],
    contexts: Sequence[ActivationContext],
    profile_S: NDArray[np.float64],
    fires: float,
) -> dict[str, Any]:
    """Return the browsable data of a feature.

    Its keys are `fires` (fraction of tokens on which the feature is active), `strength` (largest
    activation), `profile` (mean activation by site), `site` (index of the strongest site) and
    `contexts` (tokens with their activations).
    """
    return {
        "fires": round(fires, 6),
        "strength": round(max((max(c.values) for c in contexts), default=0.0), 4),
        "profile": [round(float(value), 6) for value in profile_S],
        "site": int(profile_S.argmax()),
        "contexts": [_show(run, texts[context.passage], context) for context in contexts],
    }


def _show(run: LoadedRun, text: Passage, context: ActivationContext) -> dict[str, Any]:
    end = context.first + len(context.values)
    shown = text.token_context(context.stream, context.place, context.first, end)
    values = [round(value, 3) for value in context.values[: len(shown["pieces"])]]
    if text.is_media(context.stream):  # media have no context: name of the position and of the file
        values = [round(context.values[context.place - context.first], 3), 0.0]
    return {"stream": context.stream, "line": text.line, **shown, "values": values}
