"""Page section for an image or video: the regions that each word or label attends to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.inside.capture.media import MediaInput
from headway.inside.capture.streams import display_piece
from headway.inside.measure.alignments import aligning_layer
from headway.inside.measure.maps.map import CAUTION
from headway.inside.measure.media_maps import (
    METHODS,
    all_layer_maps,
    head_weights,
    input_attention_kind,
    word_groups,
)
from headway.inside.page.sections import PageSection
from headway.settings.run import media_settings
from headway.settings.vision import GRID_STRIDE, ImageSettings
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

LARGEST = 256
"""Maximum length in pixels of the longer side of an image in a page."""

DARK = 0.45
"""Mean brightness below which an image counts as dark. A dark overlay would not be visible on
it."""


def section(looked: LookInputs) -> PageSection | None:
    media: MediaInput | None = looked.trace.reading.media
    if media is None or media.kind != "image" or not looked.trace.reading.outputs:
        return None
    reading = looked.trace.reading
    kind = input_attention_kind(reading)
    maps, skipped = all_layer_maps(looked.run, looked.trace, looked.change, slow=looked.slow)
    if not maps and kind not in looked.trace.attention:
        return None
    return {
        "kind": kind,
        "grid": list(media.grid),
        "extra": media.extra,
        "tubelet": media.tubelet,
        # Looks at checkpoints refer to the image of the final look, so that it is stored once.
        "frames": PackedArray(frames(media), "u8", (0, 255)) if looked.final else None,
        "cells": cells(looked, media),
        "groups": [
            {**group, "name": display_piece(group["name"])} for group in word_groups(reading)
        ],
        "heads": [PackedArray(x_HRS, "f16") for x_HRS in head_weights(looked.run, looked.trace)],
        "maps": [
            {
                "key": key,
                "label": METHODS[key].label,
                "how": METHODS[key].how,
                "weights": PackedArray(sized(key, x_RS), "f16"),
            }
            for key, x_RS in maps.items()
        ],
        "skipped": [[label, why] for label, why in skipped.items()],
        "first": first_map(looked, kind, list(maps), ("mean", "max")),
        "style": "fog" if brightness(media) < DARK else "light",
        "caution": CAUTION,
    }


def sized(key: str, x_RS: Tensor) -> Tensor:
    """Return the weights of a map as sizes for display: absolute values for gradients, otherwise
    only positive weights.

    A negative weight in other maps means that the output is more probable without a patch, so the
    output does not depend on it.
    """
    return x_RS.abs() if key in ("gradxinput", "integrated") else x_RS.clamp(min=0)


def first_map(
    looked: LookInputs, kind: str, whole: Sequence[str], of_heads: Sequence[str]
) -> PageSection:
    """Return the map that is shown first, which is the one with the highest measured accuracy.

    Among single heads, only the best one is a candidate. It was selected and measured on different
    items, because the best of many heads is partly luck. Without measurements, the map for
    cross-attention is the mean over the heads of the aligning layer; otherwise it is the rollout.

    `whole`: names of maps over all layers. `of_heads`: ways to combine the heads of a layer.
    """
    truth, layers = looked.truth or {}, range(len(looked.trace.attention.get(kind, ())))
    if not layers:
        return {"map": next(iter(whole), ""), "layer": 0, "head": 0, "measured": False}
    places = {key: (key, 0, 0) for key in whole} | {
        f"{kind}.{layer}.{how}": (how, layer, 0) for how in of_heads for layer in layers
    }
    measured = truth.get("maps") or {}
    right = {place: measured[name]["p1"] for name, place in places.items() if name in measured}
    best = truth.get("best") or {}
    if best.get("name", "").startswith(f"{kind}."):
        _, layer, head = best["name"].split(".")
        right["head", int(layer), int(head)] = best["p1"]
    usual = "mean" if kind == "cross" else "rollout", aligning_layer(len(layers), truth)[0], 0
    map_, layer, head = max(right, key=lambda place: right[place]) if right else usual
    return {"map": map_, "layer": layer, "head": head, "measured": bool(right)}


def brightness(media: MediaInput) -> float:
    return float(media.item.mean()) / 255


def frames(media: MediaInput) -> Tensor:
    """Return the video frames to show (time, height, width, channels).

    They are the middle frame of each patch in time, reduced to at most `LARGEST` pixels per side.
    """
    middle = torch.arange(media.grid[0]) * media.tubelet + media.tubelet // 2
    x_TCYX = torch.from_numpy(media.item.copy())[middle.clamp(max=len(media.item) - 1)].float()
    longest = max(x_TCYX.shape[-2:])
    if longest > LARGEST:
        size = [max(1, round(side * LARGEST / longest)) for side in x_TCYX.shape[-2:]]
        x_TCYX = F.interpolate(x_TCYX, size, mode="area")
    return x_TCYX.permute(0, 2, 3, 1).contiguous()


def cells(looked: LookInputs, media: MediaInput) -> dict[str, list[float]]:
    """Return the positions of the patches as fractions of the image's height and width.

    The key `origin` has the position of the first patch, and `step` the distance between two
    patches. Patches that overlap are shown by their middle parts.
    """
    height, width = media.item.shape[-2:]
    settings = None if looked.run is None else media_settings(looked.run.settings)
    if not isinstance(settings, ImageSettings):
        return {"origin": [0.0, 0.0], "step": [1 / n for n in media.grid[1:]]}
    is_grid = settings.stem == "grid"
    step = GRID_STRIDE if is_grid else settings.step
    before = 0.0 if is_grid else (settings.patch - settings.step) / 2
    return {
        "origin": [before / height, before / width],
        "step": [step / height, step / width],
    }
