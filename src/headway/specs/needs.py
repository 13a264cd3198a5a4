"""Data columns that tasks need, with the names under which they are recognized in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MediaModality = Literal["image", "video", "audio"]

Modality = Literal["text"] | MediaModality
"""Modality of the input that a model reads."""


DataKind = str
"""Type of the values in a data column: a key of `data.columns.column.KINDS`."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """A data column that a task uses."""

    name: str
    """Name of the column in the task. The setting `data.NAME_field` gives its name in the files."""

    kinds: frozenset[DataKind]
    role: Literal["input", "target"]
    """Whether the column is an input or a target. A run predicts the targets, so inputs for
    prediction lack them."""

    optional: bool = False
    also: tuple[str, ...] = ()
    """Other names under which the column is recognized in files."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)


TEXT = Need(
    name="text", kinds=frozenset({"text"}), role="input", also=("sentence", "review", "content")
)


OTHER = Need(name="other", kinds=frozenset({"text"}), role="input", optional=True)


SOURCE = Need(name="source", kinds=frozenset({"text"}), role="input")


TARGET = Need(name="target", kinds=frozenset({"text"}), role="target")


WORDS = Need(name="words", kinds=frozenset({"words"}), role="input", also=("tokens",))


TAGS = Need(
    name="tags", kinds=frozenset({"tags"}), role="target", also=("ner_tags", "pos_tags", "labels")
)


_FILES = ("file", "filename", "file_name", "filepath")


IMAGE = Need(
    name="path", kinds=frozenset({"image"}), role="input",
    also=("image", "picture", "image_path", "img", "image_name", *_FILES),
)  # fmt: skip


VIDEO = Need(name="path", kinds=frozenset({"video"}), role="input", also=("video", *_FILES))


AUDIO = Need(
    name="path", kinds=frozenset({"audio"}), role="input",
    also=("audio", "audio_path", "wav", *_FILES),
)  # fmt: skip


MEDIA: dict[Modality, Need] = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}


LABEL = Need(
    name="label", kinds=frozenset({"label"}), role="target",
    also=("class", "category", "speaker", "target", "class_name", "labels"),
)  # fmt: skip


LABELS = Need(
    name="label", kinds=frozenset({"labels"}), role="target",
    also=("labels", "classes", "categories", "tags", "topics"),
)  # fmt: skip


NUMBER = Need(
    name="label", kinds=frozenset({"number"}), role="target",
    also=("number", "score", "value", "rating", "target", "y"),
)  # fmt: skip


WRITTEN = Need(
    name="text", kinds=frozenset({"captions"}), role="target",
    also=("caption", "captions", "transcript", "transcription", "sentence", "description"),
)  # fmt: skip


ANSWERS: dict[str, Need] = {"labels": LABELS, "number": NUMBER}
"""Target columns of classification tasks with several labels or numbers, by the kind of answer."""


def need_for_answer(need: Need, answer: str) -> Need:
    """Return the target column for a kind of answer, such as `number`. Columns other than `LABEL`
    are returned unchanged."""
    return ANSWERS.get(answer, need) if need is LABEL else need
