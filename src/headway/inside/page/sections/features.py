"""Page section for features learned by `headway factors`: contexts in which each is active, its
effect, and its activation on this text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.inside.capture.streams import display_piece
from headway.inside.measure.features.dictionary import FeatureDictionary
from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.capture.trace import Trace
    from headway.inside.page.look import LookInputs

MOST = 256
"""Maximum number of features in a page. Those active on this text are included first, then the most
frequent."""

CONTEXTS = 5
"""Number of contexts shown for each feature; together they show a pattern without filling the
page."""

SHOWN = ("stream", "at", "pieces", "image")


def section(looked: LookInputs) -> PageSection | None:
    if looked.factors is None or looked.run is None:
        return None
    found = FeatureDictionary.load(looked.factors)
    found.check_fits(looked.run)
    here = activations_on_text(found, looked.trace)
    strongest_A = np.max([values.max(1) for values in here.values()], axis=0)
    often_A = np.array([entry["fires"] for entry in found.entries])
    order = np.lexsort((-often_A, -strongest_A))[:MOST]
    return {
        "figures": _figures(found),
        "sites": [list(site) for site in found.sites],
        "total": found.n,
        "numbers": order.tolist(),
        "factors": [_entry(found.entries[a]) for a in order],
        "values": PackedArray(_windows([found.entries[a] for a in order]), "f16"),
        "here": {name: PackedArray(values[order], "f16") for name, values in here.items()},
    }


@torch.no_grad()
def activations_on_text(found: FeatureDictionary, trace: Trace) -> dict[str, NDArray[np.float32]]:
    """Return the activation of each feature (rows) at each token of each stream.

    It is the largest activation over the layers, and zero at special tokens.
    """
    here: dict[str, NDArray[np.float32]] = {}
    for site in found.sites:
        stack, layer = site
        stream, _ = trace.reading.sides(stack)
        code_AT = found.codes(trace.states[stack][layer].detach(), site).T.numpy().copy()
        code_AT[:, np.array(trace.reading.streams[stream].special)] = 0.0
        here[stream] = np.maximum(here[stream], code_AT) if stream in here else code_AT
    return here


def _figures(found: FeatureDictionary) -> PageSection:
    return found.figures | {
        "method": found.settings.method,
        "n": found.n,
        "k": found.settings.k,
        "unit": found.figures.get("unit", "nats"),
    }


def _entry(entry: dict[str, Any]) -> PageSection:
    words: PageSection = {
        name: [[display_piece(word), value] for word, value in entry[name]]
        for name in ("promotes", "suppresses")
        if name in entry
    }
    return {
        "fires": entry["fires"],
        "strength": entry["strength"],
        "profile": [round(value, 4) for value in entry["profile"]],
        "site": entry["site"],
        "effect": entry["effect"],
        **words,
        "contexts": [
            [context[name] for name in SHOWN if name in context]
            for context in entry["contexts"][:CONTEXTS]
        ],
    }


def _windows(entries: list[dict[str, Any]]) -> NDArray[np.float32]:
    """Return the activations of the tokens in all contexts. Short contexts are padded with
    zeros."""
    many = [entry["contexts"][:CONTEXTS] for entry in entries]
    width = max((len(c["pieces"]) for contexts in many for c in contexts), default=1)
    values = np.zeros((len(entries), CONTEXTS, width), np.float32)
    for a, contexts in enumerate(many):
        for c, context in enumerate(contexts):
            values[a, c, : len(context["values"])] = context["values"]
    return values
