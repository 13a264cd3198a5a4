"""Reading of labelled examples from files, for training and for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headway.data.causal_lm import mark_names
from headway.data.columns.column import class_of
from headway.data.media.open_item import UNITS
from headway.data.schema import MediaSpec, schema_of
from headway.data.source import DataSource
from headway.data.store import Columns, PreparedData
from headway.errors import ConfigError, DataError
from headway.metrics.baselines import TextPair
from headway.progress import SILENT, Progress
from headway.settings.data import DataSettings
from headway.settings.run import Resolved, RunSettings, with_files
from headway.settings.task_rows import spec_of
from headway.specs.needs import LABEL, MediaModality
from headway.tasks.label_kinds import TargetArray, label_type_of
from headway.tasks.media_format import front_settings
from headway.tasks.media_inputs import what_of
from headway.tasks.parent_run import parent_of, tokenizer_of
from headway.tasks.preprocess.preprocessor import TextParts, media_settings_of, preprocessor_of
from headway.tokens.tokenizer import Tokenizer


class LabelledColumns(NamedTuple):
    """Labelled examples of a test set: stored columns, targets, and the original texts or file
    names."""

    columns: Columns
    truth_N: TargetArray
    texts: Sequence[TextPair] | None
    """Original texts from the files; None for media."""

    places: Sequence[str]


def prepare_labelled(
    what: MediaModality | None, settings: RunSettings, folder: Path, progress: Progress
) -> PreparedData:
    from headway.data.prepare import prepare  # only training prepares data

    if what is None:
        from headway.settings.defaults import before_data

        asked = before_data(spec_of(settings), settings, parent_of(settings))
        specials, words = mark_names(settings.data.fields), tokenizer_of(settings)
        return prepare(asked, folder, progress, tokenizer=words, specials=specials)
    check_token(settings, what)
    media = MediaSpec.of(what, front_settings(settings, what), LABEL)
    return prepare(settings, folder, progress, media=media)


def check_token(settings: RunSettings, what: MediaModality) -> None:
    """Raise ConfigError if a hard-distillation teacher is set without a distillation token, or a
    token without a teacher."""
    if not class_of(what).is_image:
        return
    teacher = settings.classify.teacher
    token = settings.asked.get("model.image.distil_token")
    if teacher and not token and settings.model is None and not settings.parent:
        raise ConfigError(
            f"classify.teacher={teacher} needs a model with a distillation token. "
            "Set model.image.distil_token=true."
        )
    if token and not teacher and not settings.parent:
        raise ConfigError(
            "model.image.distil_token=true needs a teacher. Set classify.teacher=RUN."
        )


def labelled_columns(
    settings: Resolved,
    files: DataSettings,
    names: Sequence[str],
    tokenizer: Tokenizer | None,
    progress: Progress = SILENT,
) -> LabelledColumns:
    """Read the test set from these files. Raise an error for labels that are not in `names`."""
    if not spec_of(settings).is_text:
        from headway.data.prepare import evaluation_media

        shape = media_settings_of(settings)
        media = MediaSpec.of(what_of(shape), shape, LABEL)
        asked = with_files(settings, files)
        found = evaluation_media(media, asked, labels=names, progress=progress)
        truth_N = label_type_of(settings, names).stored_targets(found.items)[:]
        return LabelledColumns(found.items, truth_N, None, found.places)
    examples, labels_N = labelled_examples(settings, files)
    columns = preprocessor_of(settings, tokenizer).columns(examples)
    texts = [plain_text(one, settings) for one in examples]
    return LabelledColumns(columns, labels_N, texts, ())


def plain_text(example: TextParts, settings: RunSettings) -> TextPair:
    """Return an example as a pair of texts. Fields are joined by spaces; a single text is paired
    with an empty one."""
    if settings.data.fields:
        return " ".join(example), ""
    return example[0], example[1] if len(example) > 1 else ""


def labelled_examples(
    settings: RunSettings, data: DataSettings
) -> tuple[list[TextParts], TargetArray]:
    """Return the texts of the files and their targets. Raise DataError for labels unknown to the
    run."""
    numbers = {label: i for i, label in enumerate(settings.labels)}
    examples: list[TextParts] = []
    found: list[Any] = []
    settings = with_files(settings, data)
    schema = schema_of(settings)
    source, target = DataSource(schema, settings, data.text), schema.target
    assert target is not None
    for item in source:
        if item.problem:
            raise DataError(item.problem)
        examples.append(tuple(map(item.text, schema.text_names)))
        if not target.is_class:
            found.append(float(item.text("number") or target.parse("", item.place)))
            continue
        several = target.is_several
        for label in item.strings("labels") if several else [item.text("label")]:
            if label not in numbers:
                known = ", ".join(map(repr, settings.labels[:20]))
                what = f"unknown label {label!r}" if label else "the label is missing"
                raise DataError(f"{item.place}: {what}. The classes of this run are {known}.")
        if several:
            row = np.zeros(len(numbers), np.float32)
            row[[numbers[label] for label in item.strings("labels")]] = 1.0
            found.append(row)
        else:
            found.append(numbers[item.text("label")])
    if not examples:
        raise DataError(f"the test set is empty: no texts in {', '.join(data.text)}.")
    return examples, np.array(found)


def unit_of(settings: RunSettings) -> str:
    """Return the plural noun for the examples of a run, such as `images`, for messages."""
    what = spec_of(settings).media
    return "texts" if what is None else UNITS[what]
