"""How good classes of pictures, videos and recordings are: scores with intervals, beside what one
gets for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headway.config.data import DataSettings
from headway.config.run import RunSettings
from headway.data.media.prepared import evaluation_media
from headway.data.media.reading import UNITS
from headway.metrics import classification as metrics
from headway.metrics.baselines import majority
from headway.progress import SILENT, Progress
from headway.tasks.classes import Labels, Numbers, class_figures, named_answers
from headway.tasks.classify_scores import shown_interval
from headway.tasks.kind import Use
from headway.tasks.media_answers import Labeller
from headway.tasks.media_given import what_of
from headway.tasks.media_labels import TOP, front_of, label_values, labels_of
from headway.tasks.media_reader import MediaReader
from headway.tasks.scores import Row, Scores


def evaluate_labels(use: Use, files: DataSettings) -> Scores:
    """On a test set whose labels must all be among the run's."""
    labeller = Labeller.of(use)
    reader, labels_N = labelled(use.settings, files, use.settings.labels, use.progress)
    with use.progress.stage("looking at", len(labels_N)) as stage:
        logs_NC = labeller.read(reader, stage.update)
    return evaluation_of(logs_NC, labels_N, use.settings)


def labelled(
    settings: RunSettings,
    files: DataSettings,
    labels: Sequence[str],
    progress: Progress = SILENT,
) -> tuple[MediaReader, Labels]:
    """The items of a test set, and the numbers of their labels among these."""
    shape = front_of(settings)
    found = evaluation_media(
        what_of(shape),
        replace(settings, data=files),
        shape,
        target="label",
        labels=labels,
        progress=progress,
    )
    return MediaReader(found.items.media, shape), labels_of(found.items)


def evaluation_of(logs_NC: Numbers, labels_N: Labels, settings: RunSettings) -> Scores:
    values = label_values(logs_NC, labels_N)
    figures = class_figures(logs_NC, labels_N, settings.labels)
    counts = metrics.confusion(labels_N, logs_NC.argmax(1), len(settings.labels))
    intervals = {
        "accuracy": metrics.accuracy_interval(counts),
        "f1": metrics.macro_f1_interval(counts),
    }
    calibration = figures["calibration"]
    unit = UNITS[what_of(front_of(settings))]
    most = majority(labels_N, len(settings.labels))
    baselines = {"majority class": 100.0 * float((labels_N == most).mean())}
    rows: list[Row] = [
        ("accuracy", f"{values['accuracy']:.2f}", shown_interval(intervals["accuracy"])),
        ("macro F1", f"{values['f1']:.2f}", shown_interval(intervals["f1"])),
        ("loss", f"{values['loss']:.4f}", f"nats, over {len(labels_N):,} {unit}"),
        (
            "calibration error",
            f"{100 * calibration['ece']:.2f}",
            f"a temperature of {calibration['temperature']:.2f} would fit these {unit} best",
        ),
        (
            "majority class",
            f"{baselines['majority class']:.2f}",
            f"always {settings.labels[most]!r}, the most frequent here",
        ),
    ]
    if "top5" in values:
        remark = f"the right class among the {TOP} likeliest"
        rows.insert(1, (f"top {TOP}", f"{values['top5']:.2f}", remark))
    facts: dict[str, Any] = {
        **values,
        "n": len(labels_N),
        "intervals": {name: [100 * one.low, 100 * one.high] for name, one in intervals.items()},
        "ece": calibration["ece"],
        "temperature": calibration["temperature"],
        "baselines": baselines,
        "confusion": figures["confusion"],
        "classes": figures["classes"],
    }
    return Scores(
        values,
        rows=rows,
        facts=facts,
        figures={**figures, "baselines": baselines},
        find_baselines=lambda: {name: {"accuracy": one} for name, one in baselines.items()},
        find_answers=lambda: named_answers(logs_NC, labels_N, settings.labels),
    )
