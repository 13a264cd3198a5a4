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

NEIGHBOURS = (1, 3, 5, 9, 15)
SYSTEMS = ("tuned", "neighbours", "tf-idf")
Vectors = NDArray[np.float32]


def drawn(rows: Rows, each: int, seed: int) -> Rows:
    """So many texts of each class, or all that there are, in one order for all numbers."""
    by_label: defaultdict[str, list[str]] = defaultdict(list)
    for i in np.random.default_rng(seed).permutation(len(rows[0])):
        by_label[rows[1][i]].append(rows[0][i])
    found = [(text, label) for label, texts in sorted(by_label.items()) for text in texts[:each]]
    return [text for text, _ in found], [label for _, label in found]


def vectors(name: str, texts: Sequence[str]) -> Vectors:
    """Of a run of the task `embed`, of length 1."""
    found_ND = np.array([answer.vector for answer in headway.load(name).stream(texts)], np.float32)
    lengths_N1 = np.linalg.norm(found_ND, axis=1, keepdims=True)
    return np.asarray(found_ND / np.maximum(lengths_N1, 1e-9), np.float32)


def nearest(known: Vectors, labels: Sequence[str], asked: Vectors, k: int, own: bool) -> list[str]:
    """What most of the nearest say, the nearer the more; `own`: of all but the text itself."""
    near_AK = asked @ known.T
    if own:
        np.fill_diagonal(near_AK, -np.inf)
    answers = []
    for row in near_AK:
        votes: defaultdict[str, float] = defaultdict(float)
        for i in row.argsort(kind="stable")[::-1][: min(k, len(row) - own)]:
            votes[labels[i]] += 1 + float(row[i])  # from 0, of opposite directions, to 2
        answers.append(max(votes, key=lambda label: votes[label]))
    return answers


def neighbours(known: Vectors, labels: Sequence[str], asked: Vectors) -> list[str]:
    """With the best number of neighbours when each of the known is asked for in turn."""
    found = {k: right(nearest(known, labels, known, k, True), labels) for k in NEIGHBOURS}
    return nearest(known, labels, asked, max(found, key=lambda k: found[k]), False)


def tf_idf_of_few(few: Rows, test: Rows) -> float:
    """C as four parts of the few like it best, each asked of what the others taught."""
    vectors, fit = tf_idf_parts()
    search = importlib.import_module("sklearn.model_selection").GridSearchCV
    known = vectors.fit_transform(few[0])
    grid = search(fit(max_iter=2000), {"C": STRENGTHS}, cv=4).fit(known, few[1])
    return right(list(grid.predict(vectors.transform(test[0]))), test[1])


def compared(data: Labelled, options: argparse.Namespace) -> dict[str, Any]:
    """Scores by the number of labels a class, by the system."""
    rows, test = read(data.train), read(data.test)
    draws = {
        (each, seed): drawn(rows, each, seed)
        for each in options.labels
        for seed in range(1, options.seeds + 1)
    }
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
    return {"labels": len(set(rows[1])), "scores": table}


def tuned(data: Labelled, options: argparse.Namespace, few: Rows, name: str) -> float:
    path = options.work / f"{data.name}-{name}.tsv"
    rows = [f"{text}\t{label}\n" for text, label in zip(*few, strict=True)]
    path.write_text("text\tlabel\n" + "".join(rows), "utf-8")
    words = [data.task, str(path), *start(options, "encoder"), "train.seed=1", *options.set]
    words += ["--budget", options.budget] if options.budget else []
    return float(trained(words, data.test, options.work / f"{data.name}-{name}")["accuracy"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_training(parser)
    parser.add_argument("--labels", type=int, nargs="+", default=[8, 32, 128], help="a class")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    options = parser.parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for folder in options.sets:
        data = Labelled.at(folder)
        results[data.name] = compared(data, options)
        record = {
            "sets": results,
            "encoder": Path(options.encoder or "base-en").name,
            "compared": versions(),
        }
        print(machine.save("few-texts", machine.pick_device(), record))


if __name__ == "__main__":
    main()
