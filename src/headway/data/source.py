"""Examples in one form for all sources: documents, labelled texts, tagged words, fields, media."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

from headway.data.bind import (
    MEDIA,
    Binding,
    Column,
    bind,
    column_of,
    is_blank,
    to_python,
    with_setting_names,
)
from headway.data.columns import VALUES, check_words, labels_of
from headway.data.files import DataFiles, parts
from headway.data.media.open_item import ItemFormat, MediaRef, MediaSettings
from headway.data.readers.jsonl import value_text
from headway.data.readers.lines import UnequalCounts, open_aligned
from headway.data.readers.media import PARTS, media_ref_of, open_media, part_of
from headway.data.readers.open import FileContents, open_table
from headway.data.sniff import MediaType, is_table_file
from headway.data.table import ABSENT, RawRow, Table, is_missing
from headway.data.tag_schemes import TagScheme, TagSchemeDetector, to_bio
from headway.errors import ConfigError, DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.specs.needs import LABEL, LABELS, NUMBER, WRITTEN
from headway.specs.needs import MEDIA as MEDIA_NEEDS
from headway.specs.tasks import SPECS, Reads

TextKind = Literal["documents", "labelled", "tagged", "fields", "texts", "pairs", "media"]

TargetKind = Literal["label", "text", "other", "none"]
"""Kind of target that media need; `other` is a second item that belongs to the first."""

TARGETS: dict[str, TargetKind] = {
    "label": "label", "labels": "label", "number": "label", "text": "text",
}  # fmt: skip
"""Target that media need for each kind of answer; other answers need none."""

SIDES = ("source", "target")
TEXTS = ("text", "other")

BLOCK = 4096
BLOCK_CHARACTERS = 2_000_000


Value = str | Sequence[str] | MediaRef | int
"""A text or a label; words or tags; an image, a video or audio, or its number once stored."""

TextColumnType = Literal["text", "label", "labels", "number", "words", "tags"]


class Example(NamedTuple):
    """An example, or a piece of a long document."""

    values: Mapping[str, Value]
    """Values by their names in the task (`text`, `other`, `label`, `words`, `tags`), and fields by
    their own names. A missing text is empty, a missing label has no entry."""

    place: str
    """File and line, for messages."""

    problem: str = ""
    """Why the example could not be read and is left out (`data.on_bad_row`); its texts are then
    empty."""

    ends: bool = True
    """False for a piece of a document that continues with the next example."""

    misfits: int = 0
    """Number of tags that do not fit the scheme and were converted as closely as possible."""

    def text(self, name: str) -> str:
        return cast(str, self.values.get(name, ""))

    def strings(self, name: str) -> Sequence[str]:
        """Return words, tags or labels."""
        return cast(Sequence[str], self.values.get(name, ()))

    @property
    def medium(self) -> MediaRef:
        """The image, video or audio of the example; raises a `DataError` if the row names none."""
        for value in self.values.values():
            if isinstance(value, MediaRef):
                return value
        raise DataError(self.problem)

    @property
    def labels(self) -> Sequence[str]:
        """All labels of the example: one, several, or none."""
        return self.strings("labels") or [one for one in (self.text("label"),) if one]


@dataclass(frozen=True)
class BoundTable:
    """A table whose columns are bound: its rows are examples."""

    table: Table
    binding: Binding
    blanks: bool = False
    """Whether an empty line is an example, without text."""

    bad: Literal["error", "skip"] = "error"
    absent: Mapping[str, Value] = field(default_factory=dict)
    """Default values of columns that a row or the table lacks."""

    @property
    def empty(self) -> dict[str, Value]:
        texts = {one.name: "" for one in self.binding.values() if one.kind in ("text", "field")}
        words: dict[str, Value] = {"words": (), "tags": ()} if "words" in self._names else {}
        return {**self.absent, **texts, **words}

    @cached_property
    def _is_media(self) -> bool:
        return any(one.kind in MEDIA for one in self.binding.values())

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.binding.values()]

    def __iter__(self) -> Iterator[Example]:
        rows = self.table.read(list(self.binding))
        names, file = self._names, self.table.file
        new = tuple.__new__  # the usual way takes as long as all the rest
        is_plain = self._plain
        for raw in rows:
            if is_plain is not None and raw.values is not None and is_plain(raw.values):
                values = dict(zip(names, raw.values, strict=True))
                yield new(Example, (values, f"{file}:{raw.line}", "", raw.ends, 0))
                continue
            example = self._checked(raw, rows)
            if example is not None:
                yield example

    def examples(self, rows: Iterator[RawRow], n: int) -> Iterator[tuple[RawRow, Example]]:
        """Yield each example with its row, whose first `n` values are those of bound columns."""
        for raw in rows:
            example = self._checked(raw.first(n), (one.first(n) for one in rows))
            if example is not None:
                yield raw, example

    def _checked(self, raw: RawRow, rest: Iterator[RawRow]) -> Example | None:
        """Return the example of a row. If bad rows are errors, raise one error that counts them."""
        example = self.example(raw)
        if example is not None and example.problem and self.bad == "error":
            others = (one.problem for one in map(self.example, rest) if one is not None)
            raise bad_line_error(example.problem, sum(map(bool, others)), self._what)
        return example

    @property
    def _plain(self) -> Callable[[Sequence[object]], bool] | None:
        """Fast test for rows whose values need no conversion; None if most rows need one."""
        kinds = [one.kind for one in self.binding.values()]
        if self.absent:
            return None
        if all(kind == "text" for kind in kinds):
            return self._are_valid_text
        rows = kinds[0] in MEDIA and kinds[1:] in ([], ["label"]) and self.table.named is None
        return _are_rows if rows else None

    def _are_valid_text(self, values: Sequence[object]) -> bool:
        """Whether all values are texts that need no check. Text decoded from a file cannot hold
        half of a surrogate pair; other text must be ASCII."""
        typed = self.table.typed
        for value in values:
            if type(value) is not str or (typed and not value.isascii()):
                return False
        return True

    @property
    def _what(self) -> str:
        return "sentences" if "words" in self._names else "lines"

    def example(self, raw: RawRow) -> Example | None:
        """Return the example of a row, or None for an empty line that does not count."""
        place = self.table.place(raw.line)
        if raw.values is None:
            if not raw.problem and not self.blanks:
                return None
            return Example(self.empty, place, raw.problem)
        try:
            return Example(self._values(raw), place, ends=raw.ends)
        except DataError as error:
            return Example(self.empty, place, str(error))

    def _values(self, raw: RawRow) -> dict[str, Value]:
        assert raw.values is not None
        found: dict[str, Value] = dict(self.absent)
        where, part = "", {}
        media = self._is_media
        for (name, column), value in zip(self.binding.items(), raw.values, strict=True):
            if type(value) is MediaRef:
                found[column.name] = value
                continue
            if column.kind == "text" and type(value) is str and value.isascii() and not media:
                found[column.name] = value
                continue
            if column.kind == "part":
                if not (value is ABSENT or is_missing(value) or is_blank(value)):
                    part[name] = value
                continue
            where = where or self.table.where(raw.line)
            if value is ABSENT:
                if column.optional:
                    continue
                there = ", ".join(map(repr, raw.row or ())) or "none"
                raise DataError(
                    f"{where} has no field {name!r}. Its fields are: {there}. If the field has "
                    f"another name: data.{column.setting}=…"
                )
            if column.kind == "labels":
                found[column.name] = labels_of(value, name, where, column.separator)
                continue
            if column.kind in MEDIA:
                found[column.name] = media_ref_of(value, name, where, self.table)
            elif column.kind == "text" and media:
                found[column.name] = _written(value, name, where)
            else:
                found[column.name] = VALUES[column.kind](value, name, where)
            unlabelled = column.kind == "label" and not found[column.name]
            if unlabelled and self.bad == "skip" and not column.optional:
                raise DataError(f"{where} has no label in column {name!r}.")
        if part:
            first = next(one.name for one in self.binding.values() if one.kind in MEDIA)
            found[first] = part_of(cast(MediaRef, found[first]), part, where)
        if "words" in found and "tags" in found:
            words, tags = cast(Sequence[str], found["words"]), cast(Sequence[str], found["tags"])
            check_words(words, tags, where or self.table.where(raw.line))
        fields = [one.name for one in self.binding.values() if one.kind == "field"]
        if fields and not any(found.get(name) for name in fields):
            where = where or self.table.where(raw.line)
            there = ", ".join(map(repr, raw.row or ())) or "none"
            raise DataError(
                f"{where} has none of the fields {', '.join(map(repr, fields))}. Its fields are: "
                f"{there}. List the fields to read: data.fields=…"
            )
        return found


def _are_rows(values: Sequence[object]) -> bool:
    """Whether the values are a row of an array, and at most a label of one alphanumeric word."""
    return type(values[0]) is MediaRef and all(
        type(one) is str and one.isascii() and one.isalnum() for one in values[1:]
    )


def _written(value: object, name: str, where: str) -> list[str]:
    """Return the texts of an item, which may have one or several."""
    value = to_python(value)
    texts = (value or [""]) if isinstance(value, list) else [value]
    return [value_text(text, name, where).strip() for text in texts]


def bad_line_error(problem: str, others: int, what: str = "lines") -> DataError:
    """Return the error for the first bad line of a file with `others` more of them; `what` is the
    unit that is lost if they are left out."""
    like = f" {others + 1:,} lines of this file have such errors." if others else ""
    return DataError(
        f"{problem}{like} Correct the file, or skip such {what} (not possible when computing "
        "scores): data.on_bad_row=skip"
    )


@dataclass(frozen=True)
class MediaSpec:
    """Form and target of the media that a task reads."""

    form: ItemFormat
    """Size and sampling to which media are converted."""

    target: TargetKind = "none"

    @classmethod
    def of(cls, what: MediaType, shape: MediaSettings, target: TargetKind = "none") -> MediaSpec:
        return cls(ItemFormat.of(what, shape), target)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that hold media."""
        name = self.form.modality
        return (name, "other") if self.target == "other" else (name,)


def media_tables(
    paths: Sequence[str], data: DataSettings, what: MediaType, target: TargetKind = "none",
    answers: str = "label", files: DataFiles | None = None,
) -> Iterator[BoundTable]:  # fmt: skip
    """Open files, folders and lists and bind their columns; `answers` is the kind of label."""
    names = dict.fromkeys(name for need in MEDIA_NEEDS.values() for name in need.names)
    columns = [Column(what, what, "path_field", tuple(names))]
    need = {"labels": LABELS, "number": NUMBER}.get(answers, LABEL)
    if target == "label" and need is LABEL:
        columns.append(Column("label", "label", "label_field", LABEL.also))
    elif target == "label":
        named = cast(TextColumnType, answers)
        columns.append(Column(named, named, "label_field", (*need.names, *LABEL.also)))
    elif target == "text":
        columns.append(Column("text", "text", "text_field", WRITTEN.also))
    elif target == "other":
        columns.append(Column("other", what, "other_field"))
    wanted = with_setting_names(columns, data)
    # A label may be present even if none is needed.
    known = wanted if target != "none" else (*wanted, Column("label", "text", "", (), True))
    for path in parts(paths, folders=False):
        try:
            table = open_media(path, data, known, what, files)
        except OSError as error:  # a folder that may not be read, or that links to itself
            raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
        if table.named is None and is_table_file(path):
            binding = {k: one for k, one in bind(table, known).items() if one in wanted}
            part = [name for name in PARTS if name in table.columns and name not in binding]
            binding |= {name: Column(name, "part", optional=True) for name in part}
        else:
            binding = dict(zip(table.columns, wanted, strict=True))
        yield BoundTable(table, binding, bad=data.on_bad_row)


def media_examples(
    paths: Sequence[str], data: DataSettings, what: MediaType, target: TargetKind = "none",
    answers: str = "label", files: DataFiles | None = None,
) -> Iterator[Example]:  # fmt: skip
    """Yield the media examples; an item with several texts is yielded once per text."""
    return _text_by_text(media_tables(paths, data, what, target, answers, files))


def _text_by_text(tables: Iterable[BoundTable]) -> Iterator[Example]:
    for bound in tables:
        for example in bound:
            texts = example.values.get("text")
            if isinstance(texts, list):
                for text in texts:
                    yield example._replace(values={**example.values, "text": text})
            else:
                yield example


@dataclass(frozen=True)
class DataSource:
    """Files of one split, read as examples as often as needed, in bounded memory."""

    kind: TextKind
    settings: RunSettings
    paths: tuple[str, ...]
    scheme: TagScheme = "bio"
    """Tag scheme of tagged data."""

    aligned: tuple[tuple[str, str], ...] = ()
    """Pairs of files in which line n of one translates line n of the other."""

    media: MediaSpec | None = None

    @property
    def is_given(self) -> bool:
        """Whether any files were given."""
        return bool(self.paths or self.aligned)

    def __iter__(self) -> Iterator[Example]:
        if self.media is not None:
            yield from self._media_examples
            return
        for bound in self.tables():
            yield from map(self.as_read, bound) if self.kind == "tagged" else bound

    @cached_property
    def _media_examples(self) -> list[Example]:
        """All examples of media, kept because lists are read many times; files are not read yet."""
        return list(_text_by_text(self._opened))

    @cached_property
    def _opened(self) -> list[BoundTable]:
        return list(media_tables(*self._media_arguments, files_of(self.settings)))

    @property
    def in_arrays(self) -> bool:
        """Whether all media are rows of arrays. Their files exist: they were opened."""
        tables = [one.table for one in self._opened]
        known = all(one.n is not None and one.named is None for one in tables)
        return bool(tables) and known

    def spread(self, most: int) -> list[Example]:
        """Return about `most` media, evenly spread; other rows of arrays are not listed."""
        if not self.in_arrays:
            return self._media_examples[:: max(1, len(self._media_examples) // most)]
        n = sum(one.table.n or 0 for one in self._opened)
        rows = ((one, raw) for one in self._opened for raw in one.table.read(list(one.binding)))
        some = (one.example(raw) for one, raw in islice(rows, 0, None, max(1, n // most)))
        return [one for one in some if one is not None]

    @property
    def _media_arguments(self) -> tuple[Sequence[str], DataSettings, MediaType, TargetKind, str]:
        assert self.media is not None
        own = getattr(self.settings, self.settings.task, None)
        answers = str(getattr(own, "answer", "label"))
        return self.paths, self.settings.data, self.media.form.modality, self.media.target, answers

    def tables(self) -> Iterator[BoundTable]:
        """Yield each file with its columns bound."""
        if self.media is not None:
            yield from self._opened
            return
        data, columns = self.settings.data, needed(self.kind, self.settings)
        files = files_of(self.settings)
        holds = HOLDS.get(self.kind, "table")
        blanks = self.kind in ("documents", "texts", "pairs")
        for both in self.aligned:
            table = open_aligned(both, SIDES, data.encoding)
            yield BoundTable(table, bind(table, needs_of("pairs")), blanks, data.on_bad_row)
        for path in parts(self.paths, files=files):
            if self.kind == "texts" and data.pairs:
                table = open_table(path, data, columns, files=files)
                bound = BoundTable(table, bind(table, columns), True, data.on_bad_row)
                yield replace(bound, binding=as_texts(bound.binding))
            else:
                table = open_table(path, data, columns, holds, files)
                absent = dict.fromkeys(data.fields, "") if self.kind == "fields" else {}
                yield BoundTable(table, bind(table, columns), blanks, data.on_bad_row, absent)

    def as_read(self, example: Example) -> Example:
        """Convert the tags of an example to BIO; other examples stay as they are."""
        if self.kind != "tagged":
            return example
        strip = self.settings.tag.prefix_strip
        # A word that is nothing but the prefix stays.
        words = [word.removeprefix(strip) or word for word in example.strings("words")]
        tags, misfits = to_bio(example.strings("tags"), self.scheme)
        values = {"text": " ".join(words), "words": words, "tags": tags}
        return example._replace(values=values, misfits=misfits)

    def detected(self) -> TagScheme:
        """Detect the tag scheme of all files; a mixture raises an error that names the places."""
        detection = TagSchemeDetector()
        for bound in self.tables():
            for example in bound:
                detection.add(example.strings("tags"), example.place)
        return detection.scheme()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that hold texts."""
        data = self.settings.data
        if self.media is not None:
            return ("text",) if self.media.target == "text" else ()
        if self.kind == "fields":
            return data.fields
        if self.kind == "pairs":
            return SIDES
        two = data.other_field if self.kind == "labelled" else self.kind == "texts" and data.pairs
        return ("text", "other") if two else ("text",)

    @property
    def kinds(self) -> dict[str, TextColumnType]:
        """Kind of every column that an example may have, except media."""
        if self.kind == "tagged":
            return {"text": "text", "words": "words", "tags": "tags"}
        more: dict[str, TextColumnType] = {}
        if self.kind in ("labelled", "fields") or self._has_labels:
            answers = spec_of(self.settings).answers
            more = {answers: answers} if answers in ("labels", "number") else {"label": "label"}
        return {**dict.fromkeys(self.columns, "text"), **more}

    @property
    def _has_labels(self) -> bool:
        return self.media is not None and self.media.target == "label"

    def shown(self, example: Example) -> dict[str, Any]:
        """Return what is stored of a validation example to show it."""
        if self.media is not None:
            label = example.text("number") or ", ".join(example.labels)
            said = {"label": label} if self._has_labels else {}
            said |= {"text": example.text("text")} if self.media.target == "text" else {}
            return {"place": example.place, **said}
        if self.kind == "tagged":
            return {name: list(example.strings(name)) for name in ("words", "tags")}
        if self.kind == "fields":
            return {name: text for name, text in example.values.items() if text}
        return dict(example.values)


def sources(
    kind: TextKind, settings: RunSettings, media: MediaSpec | None = None
) -> tuple[DataSource, DataSource]:
    """Return the sources of training and validation; the second may have no files."""
    settings = resolve_answer(kind, with_files(settings), media)
    data = settings.data
    if media is not None:
        return tuple(
            DataSource(kind, settings, paths, media=media)
            for paths in (data.media, data.valid_media)
        )  # type: ignore[return-value] # two of them
    if kind == "pairs":
        given = (data.pairs, data.source, data.target)
        held = (data.valid_pairs, data.valid_source, data.valid_target)
        return pair_source(settings, *given), pair_source(settings, *held)
    training = data.pairs if kind == "texts" and data.pairs else data.text
    validation = data.valid_pairs if kind == "texts" and data.pairs else data.valid_text
    scheme: TagScheme = "bio"
    if kind == "tagged":
        asked = settings.tag.scheme
        both = DataSource(kind, settings, (*training, *validation))
        scheme = both.detected() if asked == "auto" else asked
    return DataSource(kind, settings, training, scheme), DataSource(
        kind, settings, validation, scheme
    )


def resolve_answer(
    kind: TextKind, settings: RunSettings, media: MediaSpec | None = None
) -> RunSettings:
    """Resolve classify.answer=auto from the files: several labels if a sampled label is a list,
    otherwise one."""
    own = settings.classify
    asked = getattr(settings, settings.task, None) is own and own.answer == "auto"
    if not asked or not (settings.data.text or media):
        return settings
    if media is not None:
        bound = next(DataSource(kind, settings, settings.data.media, media=media).tables(), None)
    else:
        files = files_of(settings)
        (path, *_), columns = parts(settings.data.text, files=files), needed(kind, settings)
        table = open_table(path, settings.data, columns, HOLDS.get(kind, "table"), files)
        bound = BoundTable(table, bind(table, columns))
    several = bound is not None and any(
        isinstance(to_python(row.get(name)), list)
        for name, one in bound.binding.items()
        if one.kind == "label"
        for row in bound.table.sample
    )
    return replace(settings, classify=replace(own, answer="labels" if several else "label"))


def files_of(settings: RunSettings) -> DataFiles:
    """Return what the command knows of its data files."""
    return settings.files if isinstance(settings.files, DataFiles) else DataFiles()


def with_files(settings: RunSettings) -> RunSettings:
    """Return settings whose sources share what they find out about the data files."""
    return replace(settings, files=files_of(settings))


def pair_source(
    settings: RunSettings, pairs: Sequence[str], source: Sequence[str], target: Sequence[str]
) -> DataSource:
    files = files_of(settings)
    sources, targets = parts(source, files=files), parts(target, files=files)
    if len(sources) != len(targets):
        raise ConfigError(
            f"there are {len(sources)} source files but {len(targets)} target files. Give the "
            "same number of each."
        )
    aligned = tuple(zip(sources, targets, strict=True))
    return DataSource("pairs", settings, tuple(pairs), aligned=aligned)


def in_example_blocks(
    examples: Iterable[Example], columns: Sequence[str]
) -> Iterator[list[Example]]:
    """Group examples into blocks of thousands, fewer if texts are long."""
    block: list[Example] = []
    size = 0
    try:
        for example in examples:
            block.append(example)
            values = example.values
            for name in columns:
                size += len(cast(str, values[name]))
            if len(block) >= BLOCK or size >= BLOCK_CHARACTERS:
                yield block
                block, size = [], 0
    except UnequalCounts:  # examples before the end of the shorter file are still yielded
        if block:
            yield block
        raise
    if block:
        yield block


HOLDS: dict[TextKind, FileContents] = {
    "documents": "documents",
    "texts": "lines",
    "tagged": "words",
}


def needs_of(reads: Reads, settings: RunSettings | None = None) -> list[Column]:
    """Return the columns of files of one form, for any task; `settings` determine the answer."""
    spec = next(spec for spec in SPECS.values() if spec.reads == reads)
    if settings is not None and settings.task == spec.name:
        spec = spec_of(settings)
    return [column_of(need, spec) for need in spec.needs]


def needed(kind: TextKind, settings: RunSettings) -> tuple[Column, ...]:
    """Return the columns of one form of texts, with their names from the settings."""
    data = settings.data
    if kind == "fields":
        group = [Column(name, "field", "", optional=True) for name in data.fields]
        answers = [one for one in needs_of("labelled", settings) if one.name not in TEXTS]
        label = [
            replace(one, optional=True, given_name=data.label_field, is_strict=False)
            for one in with_setting_names(answers, data)
        ]
        return (*group, *([] if data.label_field in data.fields else label))
    columns = needs_of(kind, settings)
    if kind == "texts":
        columns = columns[1:] if data.pairs else columns[:1]
    return with_setting_names(columns, data, settings.asked)


def as_texts(binding: Binding) -> Binding:
    """Rename source and target to `text` and `other`, two texts of one kind."""
    names = {"source": "text", "target": "other"}
    return {name: replace(one, name=names[one.name]) for name, one in binding.items()}
