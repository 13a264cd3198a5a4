"""A picture or a video, and what each word or label looked at in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.inside.capture.media import Media
from headway.inside.capture.streams import shown
from headway.inside.measure.alignments import aligning_layer
from headway.inside.measure.maps.map import CAUTION
from headway.inside.measure.media_maps import (
    METHODS,
    head_weights,
    looking_kind,
    whole_maps,
    word_groups,
)
from headway.inside.page.sections import Section
from headway.settings.run import media_front
from headway.settings.vision import GRID_STRIDE, PictureSettings
from headway.web.pack import Array

if TYPE_CHECKING:
    from headway.inside.page.look import Looked

LARGEST = 256
"""Pixels of the longer side, in a page."""

DARK = 0.45
"""Mean brightness below which a picture is dark: a dark veil over it would not be seen."""


def section(looked: Looked) -> Section | None:
    media: Media | None = looked.trace.reading.media
    if media is None or media.kind != "picture" or not looked.trace.reading.outputs:
        return None
    reading = looked.trace.reading
    kind = looking_kind(reading)
    maps, skipped = whole_maps(looked.run, looked.trace, looked.change, slow=looked.slow)
    if not maps and kind not in looked.trace.attention:
        return None
    return {
        "kind": kind,
        "grid": list(media.grid),
        "extra": media.extra,
        "tubelet": media.tubelet,
        # Checkpoints have the same picture: the final look holds it.
        "frames": Array(frames(media), "u8", (0, 255)) if looked.final else None,
        "cells": cells(looked, media),
        "groups": [{**group, "name": shown(group["name"])} for group in word_groups(reading)],
        "heads": [Array(x_HRS, "f16") for x_HRS in head_weights(looked.run, looked.trace)],
        "maps": [
            {
                "key": key,
                "label": METHODS[key].label,
                "how": METHODS[key].how,
                "weights": Array(sized(key, x_RS), "f16"),
            }
            for key, x_RS in maps.items()
        ],
        "skipped": [[label, why] for label, why in skipped.items()],
        "first": first_map(looked, kind, list(maps), ("mean", "max")),
        "style": "fog" if brightness(media) < DARK else "light",
        "caution": CAUTION,
    }


def sized(key: str, x_RS: Tensor) -> Tensor:
    """Slopes go up and down; what hangs on a patch is their size. A patch without which the output
    would be likelier has no part in it."""
    return x_RS.abs() if key in ("gradxinput", "integrated") else x_RS.clamp(min=0)


def first_map(looked: Looked, kind: str, whole: Sequence[str], of_heads: Sequence[str]) -> Section:
    """What to show first: of what the page has, the map that was measured to point best. Of single
    heads there is one candidate, which was chosen on other items than it was judged on: the best of
    many is lucky, too. Where nothing was measured, across the mean of the layer that aligns, and
    elsewhere the rollout. `whole`: maps of no single layer; `of_heads`: ways to take a layer's
    heads together."""
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


def brightness(media: Media) -> float:
    return float(media.item.mean()) / 255


def frames(media: Media) -> Tensor:
    """What is shown: the middle frame of each tubelet, not larger than it has to be (T Y X C)."""
    middle = torch.arange(media.grid[0]) * media.tubelet + media.tubelet // 2
    x_TCYX = torch.from_numpy(media.item.copy())[middle.clamp(max=len(media.item) - 1)].float()
    longest = max(x_TCYX.shape[-2:])
    if longest > LARGEST:
        size = [max(1, round(side * LARGEST / longest)) for side in x_TCYX.shape[-2:]]
        x_TCYX = F.interpolate(x_TCYX, size, mode="area")
    return x_TCYX.permute(0, 2, 3, 1).contiguous()


def cells(looked: Looked, media: Media) -> dict[str, list[float]]:
    """Where patches lie, in shares of height and width: the first begins at `origin`, and from one
    to the next it is a `step`. Of patches that overlap, the middle parts."""
    height, width = media.item.shape[-2:]
    settings = None if looked.run is None else media_front(looked.run.settings)
    if not isinstance(settings, PictureSettings):
        return {"origin": [0.0, 0.0], "step": [1 / n for n in media.grid[1:]]}
    is_grid = settings.stem == "grid"
    step = GRID_STRIDE if is_grid else settings.step
    before = 0.0 if is_grid else (settings.patch - settings.step) / 2
    return {
        "origin": [before / height, before / width],
        "step": [step / height, step / width],
    }
