"""Labelled texts and tagged words: our models beside what is cheap, as users would train them.

`python -m benchmarks.texts DATA/sst2 DATA/sentiment DATA/wnut17 DATA/wikiann-en DATA/sets/*`.
Each folder is a set (`examples/label_sets.py`, `sentiment.py` and `entities.py` make some). Of
each: the most frequent class; our bag of words; of scikit-learn tf-idf of words and pairs of words
with logistic regression, its C chosen on the validation set (of several labels one-vs-rest, of
numbers ridge regression); and `headway train` with nothing set
but the seed and, where it would take more than five minutes, `--budget 5m`, beginning with an
encoder (`--encoder`; without it, with the one that headway chooses) and from nothing. A run that is
in `--work` already is not made again.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from headway.metrics import multilabel
from headway.metrics.baselines import BagOfWords

LAYOUTS = (
    ("classify", "train.tsv", "valid.tsv", "test.tsv"),
    ("classify", "train.tsv", "dev.tsv", "test.tsv"),
    ("classify", "mr-train.tsv", "mr-valid.tsv", "mr-test.tsv"),
    ("tag", "wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"),
    ("tag", "en.train", "en.dev", "en.test"),
)
"""The task of a folder by the files that are in it: to train, to choose, to test."""

ANSWERS = {"tags": "labels", "sizes": "number"}
"""Sets with several labels per text, and with numbers; others have one label."""

FORM = {
    "wikiann-en": ("tag.prefix_strip=en:",),
    "tags": ("classify.answer=labels", "data.label_separator=;"),
    "sizes": ("classify.answer=number",),
}
"""Settings that describe the format of a set."""

SCORES = {"label": "accuracy", "labels": "micro_f1", "number": "mae", "tags": "f1"}
ALPHAS = (0.3, 1.0, 3.0, 10.0)
"""Strengths of ridge regression."""

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""C of logistic regression: the more, the less it is held back."""

SYSTEMS = ("majority", "bag of words", "tf-idf", "encoder", "nothing")
Rows = tuple[list[str], list[str]]
"""Texts and their labels."""


@dataclass(frozen=True)
class Labelled:
    """A set: its files, and what it is for."""

    name: str
    task: str
    train: Path
    valid: Path
    test: Path

    @property
    def answer(self) -> str:
        return "tags" if self.task == "tag" else ANSWERS.get(self.name, "label")

    @classmethod
    def at(cls, folder: Path) -> Labelled:
        for task, *names in LAYOUTS:
            train, valid, test = (folder / name for name in names)
            if train.is_file() and valid.is_file() and test.is_file():
                return cls(
                    "mr" if names[0] == "mr-train.tsv" else folder.name, task, train, valid, test
                )
        known = "; ".join(", ".join(names) for _, *names in LAYOUTS)
        raise SystemExit(f"{folder} has none of these: {known}.")


def read(path: Path) -> Rows:
    """Of a TSV file, with or without a header."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = rows[1:] if rows[0] == ["text", "label"] else rows
    return [row[0] for row in rows], [row[1] for row in rows]


def right(guesses: Sequence[str], truth: Sequence[str]) -> float:
    """Per cent."""
    return 100 * float(np.mean([a == b for a, b in zip(guesses, truth, strict=True)]))


def majority(train: Rows, test: Rows) -> float:
    label = Counter(train[1]).most_common(1)[0][0]
    return right([label] * len(test[1]), test[1])


def bag_of_words(train: Rows, test: Rows) -> float:
    names = sorted(set(train[1]))
    numbers = [names.index(label) for label in train[1]]
    bag = BagOfWords.fit([(text, "") for text in train[0]], numbers, len(names))
    found = bag.predict([(text, "") for text in test[0]])
    return right([names[i] for i in found], test[1])


def tf_idf_parts() -> tuple[Any, Any]:
    """What makes vectors, and the class of what learns from them."""
    try:
        texts = importlib.import_module("sklearn.feature_extraction.text")
    except ImportError as error:
        raise SystemExit(
            f"Comparing with tf-idf needs `pip install scikit-learn` ({error})."
        ) from error
    linear = importlib.import_module("sklearn.linear_model")
    return texts.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), linear.LogisticRegression


def tf_idf(train: Rows, valid: Rows, test: Rows) -> dict[str, float]:
    """scikit-learn's: words and pairs of words, C as the validation set likes it best."""
    vectors, fit = tf_idf_parts()
    known = vectors.fit_transform(train[0])
    shown, asked = vectors.transform(valid[0]), vectors.transform(test[0])
    found = []
    for c in STRENGTHS:
        model = fit(C=c, max_iter=2000).fit(known, train[1])
        scores = [right(model.predict(x), y) for x, y in ((asked, test[1]), (shown, valid[1]))]
        found.append({"score": scores[0], "valid": scores[1], "C": c})
    return max(found, key=lambda one: one["valid"])


def tf_idf_sets(train: Rows, valid: Rows, test: Rows) -> dict[str, float]:
    """scikit-learn's, one-vs-rest: micro F1 at one half, with C by the validation set, and with a
    threshold that the validation set chose too."""
    vectors, fit = tf_idf_parts()
    known = vectors.fit_transform(train[0])
    shown, asked = vectors.transform(valid[0]), vectors.transform(test[0])
    names = sorted({name for cell in train[1] for name in cell.split("; ")})
    truths = [np.array([[name in cell.split("; ") for name in names] for cell in rows[1]])
              for rows in (train, valid, test)]  # fmt: skip
    found = []
    for c in STRENGTHS:
        models = [fit(C=c, max_iter=2000).fit(known, has_N) for has_N in truths[0].T]
        of_valid, of_test = (
            np.stack([model.predict_proba(x)[:, 1] for model in models], 1) for x in (shown, asked)
        )
        threshold = multilabel.best_threshold(of_valid, truths[1])
        scores = [
            100 * multilabel.micro_f1(multilabel.predicted_labels(p, t), truth)
            for p, t, truth in (
                (of_test, 0.5, truths[2]),
                (of_valid, 0.5, truths[1]),
                (of_test, threshold, truths[2]),
            )
        ]
        found.append(
            {"score": scores[0], "valid": scores[1], "C": c,
             "with a fitted threshold": scores[2], "threshold": threshold}
        )  # fmt: skip
    return max(found, key=lambda one: one["valid"])


def tf_idf_numbers(train: Rows, valid: Rows, test: Rows) -> dict[str, float]:
    """scikit-learn's ridge regression: the mean absolute error, alpha by the validation set."""
    vectors, _ = tf_idf_parts()
    ridge = importlib.import_module("sklearn.linear_model").Ridge
    known = vectors.fit_transform(train[0])
    shown, asked = vectors.transform(valid[0]), vectors.transform(test[0])
    right = [np.array(list(map(float, rows[1]))) for rows in (train, valid, test)]
    found = []
    for alpha in ALPHAS:
        model = ridge(alpha=alpha).fit(known, right[0])
        scores = [float(np.abs(model.predict(x) - y).mean())
                  for x, y in ((asked, right[2]), (shown, right[1]))]  # fmt: skip
        found.append({"score": scores[0], "valid": scores[1], "alpha": alpha})
    return min(found, key=lambda one: one["valid"])


def trained(words: Sequence[str], test: Path, out: Path) -> dict[str, Any]:
    """`headway train`, a clock beside it, and the scores of what came of it on the test set."""
    kept = out.with_suffix(".json")
    if not kept.exists():
        begun = time.perf_counter()
        machine.python_shown("-m", "headway.cli.main", "train", *words, "--out", str(out))
        seconds = time.perf_counter() - begun
        said = machine.python("-m", "headway.cli.main", "evaluate", str(out), str(test), "--json")
        kept.write_text(json.dumps({"seconds": seconds, **json.loads(said)}))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def summary(values: Sequence[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "deviation": spread, "all": list(values)}


def start(options: argparse.Namespace, arm: str) -> list[str]:
    """What a training is told about where to begin."""
    if arm == "nothing":
        return ["--from", "none"]
    return ["--from", options.encoder] if options.encoder else []


def budget(options: argparse.Namespace, name: str) -> list[str]:
    """A limit where headway would take longer by itself."""
    return ["--budget", options.budget] if name in options.long else []


def trainings(
    data: Labelled, options: argparse.Namespace, arm: str
) -> list[Callable[[], dict[str, Any]]]:
    """The runs of all seeds, made when called."""
    words = [data.task, str(data.train), "--valid", str(data.valid), *start(options, arm)]
    words += budget(options, data.name)
    form = FORM.get(data.name, ())
    return [
        partial(
            trained,
            [*words, f"train.seed={seed}", *form, *options.set],
            data.test,
            options.work / f"{data.name}-{arm}-{seed}",
        )
        for seed in range(1, options.seeds + 1)
    ]


def arm_scores(data: Labelled, options: argparse.Namespace, arm: str) -> dict[str, Any]:
    found = [make() for make in trainings(data, options, arm)]
    scores = summary([run[SCORES[data.answer]] for run in found])
    more = {"seconds": [run["seconds"] for run in found], "baselines": found[0]["baselines"]}
    if all("ece" in run for run in found):
        more["calibration error"] = [run["ece"] for run in found]
    return scores | more


def measured(data: Labelled, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"task": data.task, "score": SCORES[data.answer]}
    if data.answer in ("labels", "number"):
        result |= measured_several(data, options)
    elif data.task == "classify":
        train, valid, test = (read(path) for path in (data.train, data.valid, data.test))
        result["texts"] = [len(rows[0]) for rows in (train, valid, test)]
        result["labels"] = len(set(train[1]))
        if "majority" in options.systems:
            result["majority"] = majority(train, test)
        if "bag of words" in options.systems:
            result["bag of words"] = bag_of_words(train, test)
        if "tf-idf" in options.systems:
            result["tf-idf"] = tf_idf(train, valid, test)
    for arm in ("encoder", "nothing"):
        if arm in options.systems:
            result[arm] = arm_scores(data, options, arm)
            baselines = dict(result[arm]["baselines"])
            if data.answer in ("labels", "number") and baselines:
                result["bag of words"] = baselines.pop("bag of words")
            if data.answer != "label":  # the most frequent tag of each word, set, or the mean
                result["majority"] = max(baselines.values(), default=None)
    return result


def measured_several(data: Labelled, options: argparse.Namespace) -> dict[str, Any]:
    """tf-idf on sets of labels and on numbers; other baselines are those of the runs."""
    train, valid, test = (read(path) for path in (data.train, data.valid, data.test))
    result: dict[str, Any] = {"texts": [len(rows[0]) for rows in (train, valid, test)]}
    if data.answer == "labels":
        result["labels"] = len({name for cell in train[1] for name in cell.split("; ")})
    if "tf-idf" in options.systems:
        fit = tf_idf_sets if data.answer == "labels" else tf_idf_numbers
        result["tf-idf"] = fit(train, valid, test)
    return result


def line(name: str, result: dict[str, Any]) -> str:
    """A row of the table in the docs."""
    cells = [name, str(result.get("labels", "tags"))]
    digits = 3 if result["score"] == "mae" else 1
    for system in SYSTEMS:
        value = result.get(system)
        if isinstance(value, dict) and "mean" in value:
            cells.append(f"{value['mean']:.{digits}f} ± {value['deviation']:.{digits}f}")
        else:
            value = value["score"] if isinstance(value, dict) else value
            cells.append("" if value is None else f"{value:.{digits}f}")
    return "| " + " | ".join(cells) + " |"


def versions() -> dict[str, str]:
    try:
        return {"scikit-learn": metadata.version("scikit-learn")}
    except metadata.PackageNotFoundError:
        return {}


def add_training(parser: argparse.ArgumentParser) -> None:
    """What both benchmarks of texts may be told about the runs."""
    parser.add_argument("sets", type=Path, nargs="+", help="folders")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--encoder", default="", help="a run to begin with; else headway's choice")
    parser.add_argument("--budget", default="5m", help="of the long ones")
    parser.add_argument("--long", nargs="*", default=["sections", "wikiann-en"], help="which")
    parser.add_argument("--lanes", type=int, default=1, help="trainings side by side")
    parser.add_argument("--cores", type=int, default=2, help="of a training beside others")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE, of all trainings")
    parser.add_argument("--work", type=Path, default=Path("runs/texts"))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_training(parser)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--name", default="texts", help="of the result")
    options = parser.parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    sets = [Labelled.at(folder) for folder in options.sets]
    if options.lanes > 1:
        arms = [arm for arm in ("encoder", "nothing") if arm in options.systems]
        ahead = [make for arm in arms for one in sets for make in trainings(one, options, arm)]
        machine.side_by_side(ahead, options.lanes, options.cores)
    for data in sets:
        results[data.name] = measured(data, options)
        print(line(data.name, results[data.name]), flush=True)
        asked = {
            k: str(v)
            for k, v in vars(options).items()
            if k in ("encoder", "budget", "long", "set", "lanes", "cores")
        }
        record = {"sets": results, "options": asked, "compared": versions()}
        print(machine.save(options.name, machine.pick_device(), record))


if __name__ == "__main__":
    main()
