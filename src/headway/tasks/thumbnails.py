"""Thumbnails of images and audio for the report: confused classes, and the most confident right and
wrong predictions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headway.data.media.pixels import resized

PAIRS = 8
"""Number of pairs of confused classes in the report, most frequent first."""

OF_PAIR = 5
"""Number of examples per pair of confused classes: one row of thumbnails."""

SINGLE = 12
"""Number of correct predictions in the report, and likewise of wrong ones, most confident first."""

DESCRIBED = 24
"""Number of examples that the report shows with their generated texts."""

MOST_ICONS = 40
"""Maximum number of classes for which every class gets a thumbnail."""

SIDE = 48
"""Maximum side of a thumbnail in pixels. Smaller images are not changed; the page enlarges them."""

MOMENTS = 120
"""Number of bars in the waveform of a recording. A thumbnail is about 120 pixels wide."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Thumbnail = dict[str, object]
"""Thumbnail of an example, under the key `image` or `wave`, with further keys for the page."""


def thumbnails(
    small: Callable[[int], Thumbnail],
    shares_NC: FloatArray,
    labels_N: IntArray,
    names: Sequence[str],
) -> dict[str, list[Thumbnail]]:
    """Return thumbnails for the report: pairs of confused classes, and the most confident right and
    wrong predictions. `small`: function that makes the thumbnail of an example."""
    guesses_N, sure_N = shares_NC.argmax(1), shares_NC.max(1)

    def shown(row: int) -> Thumbnail:
        return {
            **small(row),
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
                "examples": [shown(row) for row in rows[:OF_PAIR]],
            }
            for true, said, rows in _pairs(labels_N, guesses_N, wrong)
        ],
        "right": [shown(row) for row in _spread(right, labels_N, SINGLE)],
        "wrong": [shown(int(row)) for row in wrong[:SINGLE]],
        "classes": [shown(row) for row in _spread(right, labels_N, len(names))]
        if len(names) <= MOST_ICONS
        else [],
    }


def sample_thumbnails(
    small: Callable[[int], Thumbnail], references: Sequence[Sequence[str]], outputs: Sequence[str]
) -> list[Thumbnail]:
    """Return thumbnails of some examples, with their references and generated texts. Up to half of
    them are examples whose text matches no reference."""
    found = list(zip(range(len(outputs)), references, outputs, strict=True))
    wrong = [one for one in found if one[2] not in one[1]][: DESCRIBED // 2]
    right = [one for one in found if one[2] in one[1]][: DESCRIBED - len(wrong)]
    return [
        {**small(place), "target": " │ ".join(texts), "output": output}
        for place, texts, output in [*wrong, *right]
    ]


def _pairs(
    labels_N: IntArray, guesses_N: IntArray, wrong: IntArray
) -> list[tuple[int, int, list[int]]]:
    """Return the most frequent confusions, each with the true class, the predicted class and its
    examples, most confident first."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for row in wrong.tolist():
        pairs.setdefault((int(labels_N[row]), int(guesses_N[row])), []).append(row)
    most = sorted(pairs.items(), key=lambda one: (-len(one[1]), one[0]))[:PAIRS]
    return [(true, said, rows) for (true, said), rows in most]


def _spread(rows: IntArray, labels_N: IntArray, n: int) -> list[int]:
    """Return the first `n` examples, taken from the classes in turn, so that the easiest class does
    not fill the list."""
    seen: dict[int, int] = {}
    turns = []
    for place, row in enumerate(rows.tolist()):
        turn = seen[int(labels_N[row])] = seen.get(int(labels_N[row]), -1) + 1
        turns.append((turn, place, row))
    return [row for _, _, row in sorted(turns)[:n]]


def data_uri(x_TCYX: ArrayLike) -> str:
    """Return an image as a PNG data URI, for pages without external files. A video is represented
    by its middle frame."""
    from PIL import Image

    x_TCYX = np.asarray(x_TCYX)
    frame_CYX = x_TCYX[len(x_TCYX) // 2]
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


def waveform_peaks(x_T: ArrayLike) -> list[int]:
    """Return the waveform of a recording: peak amplitudes of short sections, in percent of the
    largest."""
    size_T = np.abs(np.asarray(x_T, np.float32))
    parts = np.array_split(size_T, min(MOMENTS, len(size_T)) or 1)
    swing = np.array([part.max(initial=0.0) for part in parts])
    return np.rint(100 * swing / (swing.max() or 1.0)).astype(int).tolist()
