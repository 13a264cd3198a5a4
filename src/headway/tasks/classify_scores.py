"""How good classes of texts are: scores with intervals, beside what one gets for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.config.data import DataSettings
from headway.config.run import RunSettings
from headway.data.example import Source, TextKind
from headway.data.store import Columns, Prepared, load_prepared
from headway.errors import DataError, UserError
from headway.metrics import classification as metrics
from headway.metrics.baselines import BagOfWords, Text, majority
from headway.metrics.translation import Interval
from headway.tasks.classes import (
    Labels,
    class_figures,
    class_values,
    frequency_log_probs,
    named_answers,
)
from headway.tasks.classify_answers import Classifier, Example
from headway.tasks.kind import Use
from headway.tasks.scores import Baselines, Row, Scores
from headway.text.tokenizer import Tokenizer


def evaluate_files(use: Use, files: DataSettings) -> Scores:
    """Scores on labelled texts, with intervals, beside what one gets for nothing."""
    settings, classifier = use.settings, Classifier.of(use)
    examples, labels_N = labelled_examples(settings, files)
    with use.progress.stage("reading", len(examples), "texts") as stage:
        logs_NC = classifier.log_probs(examples, stage.update)
    values = class_values(logs_NC, labels_N)
    figures = class_figures(logs_NC, labels_N, settings.labels)
    counts = metrics.confusion(labels_N, logs_NC.argmax(1), len(settings.labels))
    intervals = {
        "accuracy": metrics.accuracy_interval(counts),
        "f1": metrics.macro_f1_interval(counts),
    }
    calibration = figures["calibration"]
    rows: list[Row] = [
        ("accuracy", f"{values['accuracy']:.2f}", shown_interval(intervals["accuracy"])),
        ("macro F1", f"{values['f1']:.2f}", shown_interval(intervals["f1"])),
        ("loss", f"{values['loss']:.4f}", "nats a text"),
        (
            "calibration error",
            f"{100 * calibration['ece']:.2f}",
            f"a temperature of {calibration['temperature']:.2f} would fit these texts best",
        ),
    ]
    if empty := sum(not any(text.strip() for text in one) for one in examples):
        rows.append(("texts without a word", f"{empty:,}", "scored like the others"))
    baselines, remarks = _baselines(use.opened.folder, settings, examples, labels_N)
    figures["baselines"] = baselines
    rows += [
        (name, f"{baselines[name]:.2f}" if name in baselines else "–", remark)
        for name, remark in remarks.items()
    ]
    facts = {
        **values,
        "n": len(labels_N),
        "intervals": {name: [100 * one.low, 100 * one.high] for name, one in intervals.items()},
        "ece": calibration["ece"],
        "temperature": calibration["temperature"],
        "baselines": baselines,
        "confusion": figures["confusion"],
        "classes": figures["classes"],
        "windowed": classifier.n_windowed,
    }
    return Scores(
        values,
        rows=rows,
        facts=facts,
        figures=figures,
        find_baselines=lambda: {name: {"accuracy": one} for name, one in baselines.items()},
        find_answers=lambda: named_answers(logs_NC, labels_N, settings.labels),
    )


def labelled_examples(settings: RunSettings, data: DataSettings) -> tuple[list[Example], Labels]:
    """The texts of the files and the numbers of their labels, which must be among the run's."""
    numbers = {label: i for i, label in enumerate(settings.labels)}
    examples: list[Example] = []
    labels: list[int] = []
    kind: TextKind = "fields" if data.fields else "labelled"
    source = Source(kind, replace(settings, data=data), data.text)
    for item in source:
        label = item.text("label")
        if item.problem:
            raise DataError(item.problem)
        if label not in numbers:
            known = ", ".join(map(repr, settings.labels[:20]))
            what = f"the label {label!r}" if label else "a text without a label"
            raise DataError(
                f"{item.place}: {what} cannot be scored; this run knows the classes {known}."
            )
        examples.append(tuple(map(item.text, source.columns)))
        labels.append(numbers[label])
    if not examples:
        raise DataError(f"there is nothing to score: no texts in {', '.join(data.text)}.")
    return examples, np.array(labels, dtype=np.int64)


def shown_interval(interval: Interval) -> str:
    return f"95 %: {100 * interval.low:.2f} – {100 * interval.high:.2f}"


def _baselines(
    folder: Path, settings: RunSettings, examples: Sequence[Example], labels_N: Labels
) -> tuple[dict[str, float], dict[str, str]]:
    """Accuracies in percent, and what to say about each."""
    texts: list[Text] = [
        (" ".join(one), "") if settings.data.fields else (one[0], one[1] if len(one) > 1 else "")
        for one in examples
    ]
    try:
        found = ClassBaselines.of(load_prepared(folder))
    except (UserError, OSError):  # the folder may have been copied without its data
        most = majority(labels_N, len(settings.labels))
        share = 100.0 * float((labels_N == most).mean())
        gone = "not available: the run's training texts are not in its folder"
        return {"majority class": share}, {
            "majority class": f"always {settings.labels[most]!r}, the most frequent here",
            "bag of words": gone,
        }
    values = {name: one["accuracy"] for name, one in found.scores(texts, labels_N).items()}
    return values, {
        "majority class": f"always {settings.labels[int(found.counts_C.argmax())]!r}",
        "bag of words": "logistic regression on words and pairs of words",
    }


@dataclass(frozen=True)
class ClassBaselines:
    """The majority class and a bag of words, from the training texts."""

    counts_C: NDArray[np.int64]
    bag: BagOfWords

    @classmethod
    def of(cls, prepared: Prepared) -> ClassBaselines:
        labels = labels_of(prepared.train)
        n = len(prepared.labels)
        texts = texts_of(prepared.train, prepared.tokenizer)
        counts_C = np.bincount(labels, minlength=n)
        return cls(counts_C, BagOfWords.fit(texts, labels.tolist(), n))

    def scores(self, texts: Sequence[Text], labels_N: Labels) -> Baselines:
        return {
            "majority class": class_values(
                frequency_log_probs(self.counts_C, len(labels_N)), labels_N
            ),
            "bag of words": class_values(self.bag.log_probs(texts), labels_N),
        }


def labels_of(texts: Columns) -> Labels:
    return texts["label"]


def texts_of(texts: Columns, tokenizer: Tokenizer, most: int | None = None) -> list[Text]:
    """The stored texts as text again; fields one after another."""
    n = texts.n if most is None else min(most, texts.n)
    if texts.fields:
        stores = list(texts.parts.values())
        return [
            (" ".join(tokenizer.decode(store[i].tolist()) for store in stores), "")
            for i in range(n)
        ]
    other = texts.other
    return [
        (
            tokenizer.decode(texts["text"][i].tolist()),
            "" if other is None else tokenizer.decode(other[i].tolist()),
        )
        for i in range(n)
    ]
