"""Page section for n-grams: their effects on the output, compared with that of the neural
layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headway.inside.capture.ngrams import ngram_table
from headway.inside.measure.ngrams import NgramEffects, ngram_effects
from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

MOST, LEAST = 24, 0.01
"""Maximum number of n-grams listed for an output, and minimum effect of a listed n-gram, relative
to the largest effect. The effects of other n-grams are summed."""

THE_NUMBER = "the number"
"""Name for the output of a regression model, which has no label."""


def section(looked: LookInputs) -> PageSection | None:
    run, trace = looked.run, looked.trace
    table = None if run is None else ngram_table(run.model)
    if run is None or table is None or not trace.reading.outputs:
        return None
    found, labels = ngram_effects(run, trace), run.settings.labels or (THE_NUMBER,)
    return {
        "kind": run.spec.answers,
        "share": float(table.share),
        "outputs": [
            {
                "label": labels[output.id],
                "members": [
                    [name, labels[int(probs_C.argmax())], float(probs_C.max()),
                     float(probs_C[output.id])]
                    for name, probs_C in one.probs.items()
                ],
                "effects": _effects(one),
            }
            for output, one in zip(trace.reading.outputs, found, strict=True)
        ],
        "tokens": PackedArray(torch.stack([one.tokens_T for one in found]), "f32"),
    }  # fmt: skip


def _effects(one: NgramEffects) -> list[list[object]]:
    strongest = max((abs(effect) for _, effect in one.grams), default=0.0)
    n = sum(abs(effect) >= LEAST * strongest for _, effect in one.grams[:MOST])
    rest = [effect for _, effect in one.grams[n:]]
    found: list[list[object]] = [[name, effect] for name, effect in one.grams[:n]]
    if rest:
        found.append([f"{len(rest)} other n-grams", sum(rest)])
    return [*found, ["without any n-gram", one.bias], ["layers", one.layers]]
