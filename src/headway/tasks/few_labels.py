"""Learning curve of cheap classifiers with 8, 32 and 128 examples per class, for small datasets.

It shows whether more labelled examples would help, and whether fine-tuning is better than a cheap
method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.metrics.baselines import BagOfWords, NearestNeighbours, TextPair, sample_per_class
from headway.tasks.dataset import EvalPass, TaskDataset, example_outputs
from headway.tasks.loaded_run import open_run
from headway.tasks.readout import OneVector

EACH = (8, 32, 128)
"""Numbers of labelled examples per class at which the learning curve is measured."""

DRAWS = 3
"""Number of random samples that are averaged at each point of the curve. More samples would reduce
the noise, at a proportional cost."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def is_few(labels_N: IntArray) -> bool:
    """Return whether the median class has at most 128 labelled examples."""
    counts = np.bincount(labels_N)
    return bool(np.median(counts[counts > 0]) <= EACH[-1])


def vectors_by(
    encoder: str, device: torch.device, sets: Sequence[TaskDataset[Any]]
) -> list[FloatArray]:
    """Return the embeddings of the examples of each set, computed by the pretrained encoder."""
    model, found = open_run(encoder, device=str(device), words=False).model, []
    for items in sets:
        asked = EvalPass(model, device)
        with torch.no_grad():
            found.append(example_outputs(
                asked, items, lambda _, batch: OneVector().read(model, *batch.streams).x_RD
            ))  # fmt: skip
    return found


def curve(
    train: tuple[Sequence[TextPair], FloatArray, IntArray],
    valid: tuple[Sequence[TextPair], FloatArray, IntArray],
) -> list[dict[str, Any]]:
    """Return the points of the learning curve, one per number of labelled examples per class; the
    last point uses all examples.

    Each point has the validation accuracy (%) of nearest neighbours and of a bag of words, averaged
    over `DRAWS` random samples.
    """
    texts, vectors_ND, labels_N = train
    n_classes, most = int(max(labels_N.max(), valid[2].max())) + 1, int(np.bincount(labels_N).max())
    rows = []
    for each in [*(n for n in EACH if n < most), most]:
        scores: dict[str, list[float]] = {"nearest neighbours": [], "bag of words": []}
        for seed in range(DRAWS if each < most else 1):
            some = sample_per_class(labels_N, each, seed)
            near = NearestNeighbours.fit(vectors_ND[some], labels_N[some], n_classes)
            bag = BagOfWords.fit([texts[i] for i in some], labels_N[some].tolist(), n_classes)
            for name, guesses_N in zip(
                scores, (near.predict(valid[1]), bag.predict(valid[0])), strict=True
            ):
                scores[name].append(100 * float((guesses_N == valid[2]).mean()))
        means = {name: float(np.mean(one)) for name, one in scores.items()}
        rows.append({"each": each, "labels": len(some), "right": means})
    return rows
