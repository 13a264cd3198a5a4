"""Small pictures for the report: what is taken for what, and what is recognised best and worst."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.media.pixels import resized
from headway.data.media.store import PictureStore

PAIRS = 8
"""Of classes that are taken for each other, the most frequent."""

OF_PAIR = 5
SINGLE = 12
"""The surest right answers, and the surest wrong ones."""

MOST_ICONS = 40
"""Classes that get a picture of their own beside their name."""

SIDE = 48
"""Pixels; smaller pictures stay as they are and are enlarged by whoever looks."""

Numbers = NDArray[np.float64]
Labels = NDArray[np.int64]


def thumbnails(
    items: PictureStore, logs_NC: Numbers, labels_N: Labels, names: Sequence[str]
) -> dict[str, Any]:
    """Confused pairs of classes with examples, and single answers, as the report shows them; of a
    video the frame in its middle."""
    guesses_N = logs_NC.argmax(1)
    sure_N = np.exp(logs_NC.max(1))

    def shown(row: int) -> dict[str, Any]:
        return {
            "picture": data_uri(items[row]),
            "true": names[labels_N[row]],
            "said": names[guesses_N[row]],
            "sure": round(float(sure_N[row]), 4),
        }

    surest = np.argsort(-sure_N, kind="stable")
    right = surest[guesses_N[surest] == labels_N[surest]]
    wrong = surest[guesses_N[surest] != labels_N[surest]]
    return {
        "confused": [
            {
                "true": names[true],
                "said": names[said],
                "count": len(rows),
                "share": round(len(rows) / int((labels_N == true).sum()), 4),
                "examples": [shown(int(row)) for row in rows[:OF_PAIR]],
            }
            for true, said, rows in _pairs(labels_N, guesses_N, wrong)
        ],
        "right": [shown(row) for row in _spread(right, labels_N, SINGLE)],
        "wrong": [shown(int(row)) for row in wrong[:SINGLE]],
        "classes": [shown(row) for row in _spread(right, labels_N, len(names))]
        if len(names) <= MOST_ICONS
        else [],
    }


def _pairs(
    labels_N: Labels, guesses_N: Labels, wrong: Labels
) -> list[tuple[int, int, NDArray[np.int64]]]:
    """The most frequent mistakes, the surest examples of each first."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for row in wrong.tolist():
        pairs.setdefault((int(labels_N[row]), int(guesses_N[row])), []).append(row)
    most = sorted(pairs.items(), key=lambda one: (-len(one[1]), one[0]))[:PAIRS]
    return [(true, said, np.array(rows)) for (true, said), rows in most]


def _spread(rows: Labels, labels_N: Labels, n: int) -> list[int]:
    """One of each class first, then a second: else the easiest class would be all there is."""
    seen: dict[int, int] = {}
    turns = []
    for place, row in enumerate(rows.tolist()):
        turn = seen[int(labels_N[row])] = seen.get(int(labels_N[row]), -1) + 1
        turns.append((turn, place, row))
    return [row for _, _, row in sorted(turns)[:n]]


def data_uri(x_TCYX: Any) -> str:
    """A PNG inside an address, for pages that need no other file."""
    from PIL import Image

    frame_CYX = np.asarray(x_TCYX)[len(x_TCYX) // 2]
    height, width = frame_CYX.shape[1:]
    if max(height, width) > SIDE:
        factor = SIDE / max(height, width)
        size = max(1, round(height * factor)), max(1, round(width * factor))
        frame_CYX = resized(frame_CYX[None], *size, crop=False)[0]
    frame_YXC = frame_CYX.transpose(1, 2, 0)
    image = Image.fromarray(frame_YXC[:, :, 0] if frame_YXC.shape[2] == 1 else frame_YXC)
    file = BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
