"""How far a few labels go: an encoder tuned on them, its vectors' neighbours, and tf-idf.

`python -m benchmarks.few_texts DATA/sets/* --encoder base-en`. From each set so many texts a class
are drawn, and nothing else is known, also not to choose settings: `headway train` holds out what it
needs by itself, the number of neighbours is chosen by leaving one out, and C of logistic
regression by parts of the few. All are scored on the whole test set.
"""

from __future__ import annotations

import argparse
import importlib
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headway
from benchmarks import machine
from benchmarks.texts import (
    STRENGTHS,
    Labelled,
    Rows,
    add_training,
    read,
    right,
    start,
    summary,
    tf_idf_parts,
    trained,
    versions,
)
from headway.metrics.baselines import NearestNeighbours, sample_per_class

SYSTEMS = ("tuned", "neighbours", "tf-idf")
Vectors = NDArray[np.float32]


def drawn(rows: Rows, each: int, seed: int) -> Rows:
    """So many texts of each class."""
    found = sample_per_class(np.unique(rows[1], return_inverse=True)[1], each, seed)
    return [rows[0][i] for i in found], [rows[1][i] for i in found]


def vectors(name: str, texts: Sequence[str]) -> Vectors:
    """Of a run of the task `embed`."""
    return np.array([answer.vector for answer in headway.load(name).stream(texts)], np.float32)


def neighbours(known: Vectors, labels: Sequence[str], asked: Vectors) -> list[str]:
    names, numbers = np.unique(labels, return_inverse=True)
    found = NearestNeighbours.fit(known, numbers, len(names)).predict(asked)
    return [str(name) for name in names[found]]


def tf_idf_of_few(few: Rows, test: Rows) -> float:
    """C as four parts of the few like it best, each asked of what the others taught."""
    vectors, fit = tf_idf_parts()
    search = importlib.import_module("sklearn.model_selection").GridSearchCV
    known = vectors.fit_transform(few[0])
    grid = search(fit(max_iter=2000), {"C": STRENGTHS}, cv=4).fit(known, few[1])
    return right(list(grid.predict(vectors.transform(test[0]))), test[1])


def compared(data: Labelled, options: argparse.Namespace) -> dict[str, Any]:
    """Scores by the number of labels a class, by the system."""
    test, draws = read(data.test), all_draws(data, options)
    vector_of: dict[str, Vectors] = {}
    if "neighbours" in options.systems:  # each text once, however often it is drawn
        texts = list(
            dict.fromkeys([*test[0], *(text for few in draws.values() for text in few[0])])
        )
        vector_of = dict(zip(texts, vectors(options.encoder or "base-en", texts), strict=True))
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (each, seed), few in draws.items():
        scores = found[str(each)]
        if vector_of:
            known_ND, asked_ND = (np.stack([vector_of[t] for t in x[0]]) for x in (few, test))
            scores["neighbours"].append(right(neighbours(known_ND, few[1], asked_ND), test[1]))
        if "tf-idf" in options.systems:
            scores["tf-idf"].append(tf_idf_of_few(few, test))
        if "tuned" in options.systems:
            scores["tuned"].append(tuned(data, options, few, f"{each}-{seed}"))
        last = ", ".join(f"{name} {values[-1]:.1f}" for name, values in scores.items())
        print(f"{data.name}, {each} a class, draw {seed}: {last}", flush=True)
    table = {n: {k: summary(v) for k, v in scores.items()} for n, scores in found.items()}
    return {"labels": len(set(test[1])), "scores": table}


def all_draws(data: Labelled, options: argparse.Namespace) -> dict[tuple[int, int], Rows]:
    rows, seeds = read(data.train), range(1, options.seeds + 1)
    return {(each, seed): drawn(rows, each, seed) for each in options.labels for seed in seeds}


def tuned(data: Labelled, options: argparse.Namespace, few: Rows, name: str) -> float:
    path = options.work / f"{data.name}-{name}.tsv"
    rows = [f"{text}\t{label}\n" for text, label in zip(*few, strict=True)]
    path.write_text("text\tlabel\n" + "".join(rows), "utf-8")
    words = [data.task, str(path), *start(options, "encoder"), "train.seed=1", *options.set]
    return float(trained(words, data.test, options.work / f"{data.name}-{name}")["accuracy"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_training(parser)
    parser.add_argument("--labels", type=int, nargs="+", default=[8, 32, 128], help="a class")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    options = parser.parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    sets = [Labelled.at(folder) for folder in options.sets]
    if options.lanes > 1 and "tuned" in options.systems:
        ahead = [
            partial(tuned, data, options, few, f"{each}-{seed}")
            for data in sets
            for (each, seed), few in all_draws(data, options).items()
        ]
        machine.side_by_side(ahead, options.lanes, options.cores)
    for data in sets:
        results[data.name] = compared(data, options)
        record = {
            "sets": results,
            "encoder": Path(options.encoder or "base-en").name,
            "compared": versions(),
        }
        print(machine.save("few-texts", machine.pick_device(), record))


if __name__ == "__main__":
    main()
