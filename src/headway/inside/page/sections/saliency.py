"""Page section for saliency: attribution maps of all methods, and their agreement with
occlusion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headway.errors import Option, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.streams import Reading
from headway.inside.measure.maps import CAUTION, Map, agreement
from headway.inside.measure.maps.attention import layer_maps
from headway.inside.measure.maps.flow import flow
from headway.inside.measure.maps.gradients import gradient_maps
from headway.inside.measure.maps.integrated import integrated_gradients
from headway.inside.measure.maps.norms import norm_maps
from headway.inside.measure.maps.occlusion import occlusion
from headway.inside.measure.maps.rollout import rollout
from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

LONGEST = 64
"""Maximum number of tokens in all streams together for which slow maps are made by default."""

FLOW_WORK, PATH_WORK = 25_000, 400
"""Cost limits above which attention flow and integrated gradients are skipped, unless `--slow` is
set. At its limit, each takes a few seconds.

The cost is outputs × tokens² for attention flow, and outputs × tokens for integrated gradients.
"""

STEPS = 128
"""Maximum number of steps of integrated gradients, which bounds their time. The map reports the
remaining error."""

MOST_CELLS = 40_000
"""Maximum number of weights of a map with several layers. Larger maps keep only the last layer."""

MOST_TOKENS = 256
"""Maximum number of tokens in a stream. Longer texts have no saliency section."""


@dataclass(frozen=True)
class SaliencyMethod:
    key: str
    label: str
    how: str
    """Explanation of the map for the user, in one sentence."""

    has_share: bool = False
    """Whether the map can compare the influence of the source with that of the earlier output
    tokens."""


METHODS = {
    method.key: method
    for method in (
        SaliencyMethod("mean", "Mean of heads", "Mean over all attention heads of a layer."),
        SaliencyMethod(
            "max", "Max of heads", "Largest weight over the attention heads of a layer."
        ),
        SaliencyMethod(
            "norm", "Norm", "Norm of the weighted value vectors that are actually added.", True
        ),
        SaliencyMethod(
            "rollout", "Rollout", "Attention multiplied through all layers down to the tokens."
        ),
        SaliencyMethod(
            "flow", "Flow", "Maximum flow through the attention graph from output to token."
        ),
        SaliencyMethod(
            "gradxattention", "Gradient × attention", "Attention that helps the output.", True
        ),
        SaliencyMethod(
            "gradxinput", "Gradient × input", "Gradient of the log-probability × input.", True
        ),
        SaliencyMethod(
            "integrated", "Integrated gradients", "Gradients from no text to this text.", True
        ),
        SaliencyMethod(
            "occlusion", "Occlusion", "The log-probability lost when a token is hidden.", True
        ),
    )
}
SIGNED = ("gradxinput", "integrated", "occlusion")

OF_VECTORS = {
    "gradxinput": "Gradient of the vector's length along its own direction.",
    "occlusion": "Decrease of the vector's length along its own direction when a token is hidden.",
}
"""Explanations of maps for embeddings. These have no probability, so the maps explain their
length."""


def section(looked: LookInputs) -> PageSection | None:
    reading: Reading = looked.trace.reading
    if reading.media is not None:
        return None  # its maps are drawn over the image or the audio
    known = not _by_attention(looked) or (
        looked.trace.attention.keys() in ({"self"}, {"encoder", "decoder", "cross"})
    )
    too_long = max(map(len, reading.streams.values()), default=0) > MOST_TOKENS
    if not known or not reading.outputs or too_long:
        return None
    made, skipped = _made(looked)
    if not made and not looked.trace.attention:
        return None
    judge = made["occlusion"][0] if "occlusion" in made else None
    return {
        "columns": [[name, len(stream)] for name, stream in reading.streams.items()],
        "causal": reading.writes,
        "pooling": getattr(getattr(looked.run, "model", None), "pooling", "first"),
        "methods": [
            _packed(METHODS[key], made[key], judge, reading) for key in METHODS if key in made
        ],
        "skipped": [[METHODS[key].label, why] for key, why in skipped.items()],
        "caution": CAUTION,
    }


def _by_attention(looked: LookInputs) -> bool:
    return looked.run is None or Anatomy.of(looked.run.model).by_attention


OF_MODELS = ("gradxinput", "integrated", "occlusion")
"""Names of the maps that need the model; all others need only a trace."""


def _made(looked: LookInputs) -> tuple[dict[str, list[Map]], dict[str, str]]:
    """Return the maps of each method (one per layer if the method has layers), and the reason for
    each omitted method."""
    run, trace, change = looked.run, looked.trace, looked.change
    reading: Reading = trace.reading
    n_tokens, n_outputs = sum(map(len, reading.streams.values())), len(reading.outputs)
    made: dict[str, list[Map]] = {}
    skipped: dict[str, str] = {}
    makers: dict[str, tuple[bool, Callable[[], list[Map]]]] = {}
    if _by_attention(looked):
        made = {
            "mean": _joined(layer_maps(run, trace, "mean"), reading),
            "max": _joined(layer_maps(run, trace, "max"), reading),
            "rollout": [rollout(run, trace)],
        }
        makers["flow"] = n_outputs * n_tokens**2 <= FLOW_WORK, lambda: [flow(run, trace)]
    if run is not None and trace.values and _by_attention(looked):
        made["norm"] = _joined(norm_maps(run, trace)[1:], reading)
    if run is None:
        skipped |= dict.fromkeys(OF_MODELS, "needs the model, not only a trace")
    else:
        model = run
        makers |= {
            "gradxinput": (True, lambda: gradient_maps(model, trace, change=change)),
            "integrated": (
                n_outputs * n_tokens <= PATH_WORK,
                lambda: [integrated_gradients(model, trace, change=change, most=STEPS)],
            ),
            "occlusion": (True, lambda: [occlusion(model, trace, change)]),
        }
    for key, (is_quick, maker) in makers.items():
        if not looked.slow and (n_tokens > LONGEST or not is_quick):
            skipped[key] = (
                f"skipped because it takes long ({n_tokens} tokens, {n_outputs} outputs); add "
                f"{Option('slow', True)} to include it"
            )
        else:
            try:
                made |= {map_.name: [map_] for map_ in maker()}
            except UserError as error:
                skipped[key] = str(error).rstrip(".")
    return made, skipped


def _joined(maps: Iterable[Map], reading: Reading) -> list[Map]:
    """Return one map per layer, with the columns of all kinds of attention in the layer."""
    layers: dict[int, list[Map]] = {}
    for map_ in maps:
        layers.setdefault(int(map_.name.split(".")[1]), []).append(map_)
    joined = []
    for _, parts in sorted(layers.items()):
        columns = {stream: part for map_ in parts for stream, part in map_.parts().items()}
        named = next((map_.name for map_ in parts if map_.name.startswith("cross")), parts[0].name)
        order = [stream for stream in reading.streams if stream in columns]
        joined.append(Map.of(named, {stream: columns[stream] for stream in order}))
    return joined


def _packed(
    method: SaliencyMethod, maps: list[Map], judge: Map | None, reading: Reading
) -> PageSection:
    first = 0
    if sum(map_.weights_RS.numel() for map_ in maps) > MOST_CELLS:
        first, maps = len(maps) - 1, maps[-1:]
    shares = [map_.share_R("source") for map_ in maps] if method.has_share else []
    is_vector = reading.is_vector
    unit = "in length along its own direction" if is_vector else "in nats"
    is_plain = method.key in ("mean", "max")
    weights = torch.stack([map_.weights_RS for map_ in maps])
    return {
        "key": method.key,
        "label": method.label,
        "how": OF_VECTORS.get(method.key, method.how) if is_vector else method.how,
        "first": first,
        "names": [map_.name for map_ in maps],
        "signed": method.key in SIGNED,
        "weights": PackedArray(weights, "u8", (0, 1)) if is_plain else PackedArray(weights, "f16"),
        "shares": [None if share is None else _numbers(share) for share in shares],
        "agree": [
            None if judge is None or method.key == "occlusion" else agreement(map_, judge, reading)
            for map_ in maps
        ],
        "unit": unit if method.key in ("integrated", "occlusion") else "",
        "facts": maps[0].facts,
    }


def _numbers(x_R: torch.Tensor) -> list[float]:
    return [round(float(x), 4) for x in x_R]
