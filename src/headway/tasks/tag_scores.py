"""How good tags of words are: spans as seqeval scores them, beside what one gets for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.config.data import DataSettings
from headway.config.run import RunSettings
from headway.data.example import sources
from headway.data.store import Columns, Prepared, load_prepared
from headway.errors import DataError, UserError
from headway.metrics import spans as metrics
from headway.metrics.baselines import FrequentTags
from headway.nn.crf import is_scheme
from headway.tasks.classify_scores import shown_interval
from headway.tasks.kind import Use
from headway.tasks.scores import Row, Scores
from headway.tasks.tag_answers import Tagger
from headway.tasks.tags import as_bio, tag_figures, tag_values

BASELINE = "most frequent tag"

Word = tuple[int, ...]
"""A word as its pieces."""


def evaluate_files(use: Use, files: DataSettings) -> Scores:
    """Scores on tagged sentences, with an interval; by type in the figures."""
    settings, tagger = use.settings, Tagger.of(use)
    words, truths = tagged_sentences(settings, files)
    with use.progress.stage("reading", len(words), "sentences") as stage:
        guesses = tagger.tags(words, stage.update)
    spans = is_scheme(settings.labels)
    values = tag_values(truths, guesses, spans)
    figures = tag_figures(truths, guesses, spans)
    interval = (metrics.span_f1_interval if spans else metrics.tag_accuracy_interval)(
        truths, guesses
    )
    main = "f1" if spans else "accuracy"
    shown = {"f1": "span F1", "precision": "precision", "recall": "recall", "accuracy": "accuracy"}
    remarks = {
        main: shown_interval(interval),
        "precision": "of the spans answered",
        "recall": "of the spans in the files",
        **({"accuracy": "of the words"} if spans else {}),
    }
    rows: list[Row] = [
        (shown[name], f"{value:.2f}", remarks.get(name, "")) for name, value in values.items()
    ]
    rows += [
        (f"  {one['label']}", f"{100 * one['f1']:.2f}", f"F1, of {one['support']:,}")
        for one in figures["classes"]
    ]
    baseline_value, remark = _baseline(use.opened.folder, tagger, words, truths)
    shown_value = "–" if baseline_value is None else f"{baseline_value:.2f}"
    rows.append((BASELINE, shown_value, remark))
    facts: dict[str, Any] = {
        **values,
        "sentences": len(truths),
        "words": sum(map(len, truths)),
        "interval": [100 * interval.low, 100 * interval.high],
        "classes": figures["classes"],
        "baselines": {} if baseline_value is None else {BASELINE: baseline_value},
    }
    unknown = sorted({tag for tags in truths for tag in tags} - set(as_bio(settings.labels)))
    if unknown:
        n = sum(tag in unknown for tags in truths for tag in tags)
        rows.append(("unknown tags", f"{n:,}", f"not in training, so missed: {', '.join(unknown)}"))
        facts["unknown_tags"] = {"words": n, "tags": unknown}
    trivial = {} if baseline_value is None else {BASELINE: {main: baseline_value}}
    return Scores(
        values,
        rows=rows,
        facts=facts,
        figures=figures,
        find_baselines=lambda: trivial,
        find_answers=lambda: (guesses, truths),
    )


def tagged_sentences(
    settings: RunSettings, data: DataSettings
) -> tuple[list[list[str]], list[list[str]]]:
    """Words and tags, in BIO, of the files."""
    source, _ = sources("tagged", replace(settings, data=replace(data, valid_text=())))
    found = [(list(one.several("words")), list(one.several("tags"))) for one in source]
    if not found:
        raise DataError(f"there is nothing to score: no sentences in {', '.join(data.text)}.")
    return [words for words, _ in found], [tags for _, tags in found]


def baseline(prepared: Prepared) -> FrequentTags:
    """Words are told apart by their pieces."""
    tags = prepared.train["tags"]
    keys = word_keys(prepared.train)
    return FrequentTags.of((words, tags[i].tolist()) for i, words in enumerate(keys))


def word_keys(texts: Columns) -> Iterator[list[Word]]:
    """The words of each sentence, each as its pieces."""
    for i in range(texts.n):
        yield as_keys(texts["text"][i].tolist(), texts["pieces"][i].tolist())


def as_keys(ids: Sequence[int], pieces: Sequence[int]) -> list[Word]:
    ends = np.cumsum(pieces).tolist()
    return [tuple(ids[end - size : end]) for end, size in zip(ends, pieces, strict=True)]


def _baseline(
    folder: Path, tagger: Tagger, words: list[list[str]], truths: list[list[str]]
) -> tuple[float | None, str]:
    labels = tagger.settings.labels
    try:
        found = baseline(load_prepared(folder))
    except (UserError, OSError):  # the folder may have been copied without its data
        return None, "not available: the run's training text is not in its folder"
    text, pieces = tagger.encoded(words)
    guesses = [
        as_bio([labels[tag] for tag in found.guess(as_keys(ids, sizes))])
        for ids, sizes in zip(text.lists(), pieces.lists(), strict=True)
    ]
    spans = is_scheme(labels)
    value = tag_values(truths, guesses, spans)["f1" if spans else "accuracy"]
    return (
        value,
        f"{'span F1' if spans else 'accuracy'} with the tag each word has most in training",
    )
