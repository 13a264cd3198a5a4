"""Schemas of datasets: the columns of the examples, and how rows are read and counted.

A schema follows from the columns that the task needs, from the settings and, for images, videos and
audio, from the format in which they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from headway.data.bind import Binding, column_of, with_setting_names
from headway.data.columns.column import Column, TokenColumn, class_of
from headway.data.media.open_item import UNITS, ItemFormat, MediaSettings
from headway.data.readers.open import FileContents
from headway.data.sniff import MediaType
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.specs.needs import LABEL, OTHER, Need, need_for_answer
from headway.specs.needs import MEDIA as MEDIA_NEEDS
from headway.specs.tasks import SPECS, Reads

if TYPE_CHECKING:
    from headway.data.columns.media import MediaColumn
    from headway.data.source import Example

SIDES = ("source", "target")
SHOWN = 20_000
"""Maximum number of validation examples that are kept as text, for reports and pages. It is more
than anyone looks at."""


@dataclass(frozen=True)
class MediaSpec:
    """Format of the media that a task reads, and the column that accompanies them."""

    form: ItemFormat
    """Size or sampling rate to which media are converted."""

    target: Need | None = None
    """Column that accompanies each item: a label, a text, or a second item (`OTHER`). None: media
    alone."""

    @classmethod
    def of(cls, what: MediaType, shape: MediaSettings, target: Need | None = None) -> MediaSpec:
        return cls(ItemFormat.of(what, shape), target)

    @property
    def target_name(self) -> str:
        """Name of the target in the manifest of prepared data."""
        return "none" if self.target is None else self.target.name


@dataclass(frozen=True)
class Schema:
    """Columns of a dataset, and the meaning of its rows."""

    name: Reads
    """Name of the schema, such as `pairs`. It is stored with prepared data."""

    columns: tuple[Column, ...]
    """Columns to bind in files, with their names from the settings."""

    unit: str
    """Unit in which examples are counted, such as `pairs`."""

    files: str = "text"
    """Setting of `data` that takes the training files."""

    contents: FileContents = "table"
    """Expected contents of a file without columns."""

    counts_blank_lines: bool = False
    """Whether an empty line counts as an example without text."""

    is_translation: bool = False
    """Whether an example is a pair of a source and its translation."""

    is_tagged: bool = False
    """Whether an example is a sentence with one tag per word."""

    has_fields: bool = False
    """Whether an example is a document with named fields, some of which may be missing."""

    in_pieces: bool = False
    """Whether an example may be long enough to be read in several pieces."""

    all_shown: bool = False
    """Whether all validation examples are kept as text, because translations are scored against
    them."""

    are_compared: bool = False
    """Whether the data check reports equal inputs with different labels."""

    most_shown: int = SHOWN
    """Maximum number of validation examples that are kept as text."""

    media: MediaSpec | None = None
    """Format of the media, and the column that accompanies them; None for texts."""

    roles: Mapping[str, str] = field(default_factory=dict)
    """Names of stored values by the names of their columns, where the two differ."""

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the values that are tokenized."""
        if self.is_tagged:
            return ("text",)
        names = (one.name for one in self.columns if one.is_text)
        return tuple(self.roles.get(name, name) for name in names)

    @property
    def token_columns(self) -> dict[str, TokenColumn]:
        """Columns whose values are tokenized, by the names of their token arrays."""
        if self.is_tagged:
            words = next(one for one in self.columns if one.is_words)
            return {"text": cast("TokenColumn", words)}
        texts = [cast("TokenColumn", one) for one in self.columns if one.is_text]
        named = zip(self.text_names, texts, strict=True)
        return {name: replace(column, name=name) for name, column in named}

    @property
    def other_columns(self) -> tuple[Column, ...]:
        """Columns that are stored without a tokenizer."""
        return tuple(one for one in self.columns if not one.is_text and not one.is_words)

    @property
    def media_columns(self) -> tuple[MediaColumn, ...]:
        return tuple(cast("MediaColumn", one) for one in self.columns if one.is_media)

    @property
    def media_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.media_columns)

    @property
    def format(self) -> ItemFormat:
        """Format in which the media are stored."""
        assert self.media is not None
        return self.media.form

    @cached_property
    def target(self) -> Column | None:
        """Column of labels or numbers; None if the task has none."""
        return next((one for one in self.columns if one.is_label), None)

    @property
    def counted(self) -> Column | None:
        """Column of labels or tags, which the data check counts; None if the task has none."""
        return next((one for one in self.columns if one.is_counted), None)

    @property
    def has_classes(self) -> bool:
        """Whether the targets are classes, one or several per example."""
        return self.target is not None and self.target.is_class

    @property
    def has_single_class(self) -> bool:
        """Whether every example needs exactly one label."""
        return self.has_classes and not self.is_multi_label

    @property
    def is_multi_label(self) -> bool:
        return self.target is not None and self.target.is_several

    @property
    def has_target(self) -> bool:
        """Whether each media item comes with a label or a text."""
        return self.target is not None or bool(self.text_names)

    @property
    def counts_characters(self) -> bool:
        """Whether progress is counted in characters instead of examples, because texts differ in
        length."""
        return self.media is None and not self.is_translation

    def without_target(self) -> Schema:
        """Return a copy of the schema with only the media columns."""
        return replace(self, columns=self.media_columns)

    def stored(self, binding: Binding) -> Binding:
        """Return the binding with each column renamed to the name of its stored values."""
        return {
            name: replace(one, name=self.roles.get(one.name, one.name))
            for name, one in binding.items()
        }

    def without_settings(self) -> tuple[Column, ...]:
        """Return the columns without the names from the settings. They are for files whose columns
        have no names, such as two aligned files."""
        return tuple(replace(one, given_name="", is_strict=False) for one in self.columns)

    def shown(self, example: Example) -> dict[str, Any]:
        """Return the JSON object that displays a validation example in reports."""
        if self.media is not None:
            label = example.text("number") or ", ".join(example.labels)
            said = {} if self.target is None else {"label": label}
            said |= {name: example.text(name) for name in self.text_names}
            return {"place": example.place, **said}
        if self.is_tagged:
            return {name: list(example.strings(name)) for name in ("words", "tags")}
        if self.has_fields:
            return {name: text for name, text in example.values.items() if text}
        return dict(example.values)


def schema_of(settings: RunSettings, media: MediaSpec | None = None) -> Schema:
    """Return the schema of a run's data. `media`: format of the media, and the column that
    accompanies them; None for texts."""
    if media is not None:
        return _media(settings, media)
    reads = spec_of(settings).reads
    return text_schema(
        "fields" if settings.data.fields and reads in WITH_FIELDS else reads, settings
    )


def text_schema(reads: Reads, settings: RunSettings) -> Schema:
    """Return the schema named `reads` for texts. It may differ from the schema of the run's own
    data."""
    return BUILDERS[reads](settings)


def media_columns(
    what: MediaType, target: Need | None, data: DataSettings, answer: str = "label"
) -> tuple[Column, ...]:
    """Return the media column, followed by the column of the target if there is one. `answer`: kind
    of the target, such as `label` or `number`."""
    made = class_of(what)
    names = dict.fromkeys(name for need in MEDIA_NEEDS.values() for name in need.names)
    columns: list[Column] = [made(what, "path_field", tuple(names))]
    if target is OTHER:
        columns.append(made("other", "other_field"))
    elif target is not None:
        column = column_of(need_for_answer(target, answer), what)
        if column.is_label:
            more = dict.fromkeys((*column.aliases, *LABEL.also))
            column = replace(column, aliases=tuple(more))
        columns.append(column)
    return with_setting_names(columns, data)


def answer_of(settings: RunSettings) -> str:
    """Return the kind of target that the settings of the task select, such as `number`; `label` if
    the task has no such setting."""
    own = getattr(settings, settings.task, None)
    return str(getattr(own, "answer", "label"))


def _media(settings: RunSettings, media: MediaSpec) -> Schema:
    what = media.form.modality
    columns = media_columns(what, media.target, settings.data, answer_of(settings))
    return Schema(
        "media", columns, "pairs" if media.target is OTHER else UNITS[what], files="media",
        are_compared=True, most_shown=200, media=media,
    )  # fmt: skip


def _needs(reads: Reads, settings: RunSettings) -> list[Column]:
    """Return the columns of the text schema named `reads`. They are those of the run's task if it
    reads such texts, otherwise those of the first task that does."""
    row = spec_of(settings)
    if row.reads != reads:
        row = next(one for one in SPECS.values() if one.reads == reads)
    return [column_of(need, row.modality) for need in row.needs]


def _named(columns: Sequence[Column], settings: RunSettings) -> tuple[Column, ...]:
    return with_setting_names(columns, settings.data, settings.asked)


def _documents(settings: RunSettings) -> Schema:
    return Schema(
        "documents", _named(_needs("documents", settings), settings), "documents",
        contents="documents", counts_blank_lines=True, in_pieces=True, most_shown=2_000,
    )  # fmt: skip


def _labelled(settings: RunSettings) -> Schema:
    return Schema(
        "labelled", _named(_needs("labelled", settings), settings), "examples", are_compared=True
    )


def _tagged(settings: RunSettings) -> Schema:
    columns = _named(_needs("tagged", settings), settings)
    return Schema("tagged", columns, "sentences", contents="words", is_tagged=True)


def _fields(settings: RunSettings) -> Schema:
    data = settings.data
    made = class_of("field")
    group = tuple(made(name, optional=True) for name in data.fields)
    answers = [one for one in _needs("labelled", settings) if not one.is_text]
    label = tuple(
        replace(one, optional=True, given_name=data.label_field, is_strict=False)
        for one in with_setting_names(answers, data)
    )
    columns = (*group, *(() if data.label_field in data.fields else label))
    return Schema("fields", columns, "documents", has_fields=True)


def _texts(settings: RunSettings) -> Schema:
    """Return the schema of data for contrastive learning: texts of which two views are made, or
    pairs of similar texts."""
    columns = _needs("texts", settings)
    if settings.data.pairs:
        return Schema(
            "texts", _named(columns[1:], settings), "texts", files="pairs",
            counts_blank_lines=True, roles={"source": "text", "target": "other"},
        )  # fmt: skip
    return Schema(
        "texts", _named(columns[:1], settings), "texts", contents="lines", counts_blank_lines=True
    )


def _pairs(settings: RunSettings) -> Schema:
    columns = _named(_needs("pairs", settings), settings)
    return Schema(
        "pairs", columns, "pairs", files="pairs", counts_blank_lines=True, is_translation=True,
        all_shown=True,
    )  # fmt: skip


BUILDERS: dict[Reads, Callable[[RunSettings], Schema]] = {
    "documents": _documents,
    "labelled": _labelled,
    "tagged": _tagged,
    "fields": _fields,
    "texts": _texts,
    "pairs": _pairs,
}
WITH_FIELDS = ("documents", "labelled")
"""Kinds of texts that may consist of several fields (`data.fields`)."""
