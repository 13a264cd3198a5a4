"""Read examples of all kinds (documents, labelled texts, tagged words, fields, media) as `Example`
objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from headway.data.bind import Binding, bind
from headway.data.columns.column import Column, Value, class_of, to_python
from headway.data.files import DataFiles, parts
from headway.data.media.open_item import MediaRef, MediaRegion, is_broken_link, path_exists
from headway.data.readers.lines import UnequalCounts, open_aligned
from headway.data.readers.media import open_media
from headway.data.readers.open import open_table
from headway.data.schema import (
    SIDES,
    MediaSpec,
    Schema,
    media_columns,
    schema_of,
    text_schema,
)
from headway.data.sniff import MediaType, is_table_file
from headway.data.table import ABSENT, RawRow, Table, value_in
from headway.data.tag_schemes import TagScheme, TagSchemeDetector, check_words, to_bio
from headway.errors import ConfigError, DataError, Option
from headway.settings.data import DataSettings
from headway.settings.overrides import OriginKind
from headway.settings.run import RunSettings
from headway.specs.needs import Need

BLOCK = 4096
"""Maximum number of examples in a block for a worker process. With many examples per block, the
transfer takes little of the time."""

BLOCK_CHARACTERS = 2_000_000
"""Maximum number of characters in a block, so that long texts do not fill the memory."""

MOST_NAMED = 20
"""Maximum number of files that an error lists, so that it fits a screen."""


class Example(NamedTuple):
    """One example from a dataset, or one piece of a long document."""

    values: Mapping[str, Value]
    """Values by their names in the task, such as `text`, `label` or `words`. Fields of a document
    have their own names. A missing text is empty, and a missing label has no entry."""

    place: str
    """File and line of the example, for messages."""

    problem: str = ""
    """Why the example could not be read; empty if it could. An example with a problem has empty
    texts. It is left out if `data.on_bad_row` allows it."""

    ends: bool = True
    """Whether the example ends here. False for a piece of a document that continues in the next
    item."""

    misfits: int = 0
    """Number of tags that did not fit the tag scheme and were converted as closely as possible."""

    def text(self, name: str) -> str:
        return cast(str, self.values.get(name, ""))

    def strings(self, name: str) -> Sequence[str]:
        """Return the list of words, tags or labels with this name; empty if there is none."""
        return cast(Sequence[str], self.values.get(name, ()))

    @property
    def medium(self) -> MediaRef:
        """Image, video or audio item of the example. Raises a `DataError` if the row names none."""
        for value in self.values.values():
            if isinstance(value, MediaRef):
                return value
        raise DataError(self.problem)

    @property
    def labels(self) -> Sequence[str]:
        """Labels of the example: one, several or none."""
        return self.strings("labels") or [one for one in (self.text("label"),) if one]


@dataclass(frozen=True)
class BoundTable:
    """Table with bound columns, whose rows are examples."""

    table: Table
    binding: Binding
    blanks: bool = False
    """Whether an empty line counts as an example without text."""

    bad: Literal["error", "skip"] = "error"
    """What happens to rows that cannot be read: they raise an error or are skipped."""

    absent: Mapping[str, Value] = field(default_factory=dict)
    """Default values, by name, for columns that a row or the whole table lacks."""

    @property
    def empty(self) -> dict[str, Value]:
        """Values of an empty row, by name."""
        columns = self.binding.values()
        known = {one.name: one.default for one in columns if one.default is not None}
        return {**self.absent, **known}

    @property
    def first(self) -> Example | None:
        """First example in the sample of the table; None if there is none. The file is not
        opened."""
        for row in self.table.sample:
            values = [value_in(row, name) for name in self.binding]
            example = self.example(RawRow(values, 1, row=row))
            if example is not None:
                return example
        return None

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.binding.values()]

    @cached_property
    def _columns(self) -> tuple[Column, ...]:
        return tuple(self.binding.values())

    @cached_property
    def _fields(self) -> list[str]:
        return [one.name for one in self._columns if one.is_field]

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
        """Yield each row together with its example. `n`: number of values in a row that belong to
        bound columns; they come first."""
        for raw in rows:
            example = self._checked(raw.first(n), (one.first(n) for one in rows))
            if example is not None:
                yield raw, example

    def _checked(self, raw: RawRow, rest: Iterator[RawRow]) -> Example | None:
        """Return the example of a row. If it has a problem and bad rows are errors, raise an error
        that also counts the bad rows in `rest`."""
        example = self.example(raw)
        if example is not None and example.problem and self.bad == "error":
            others = (one.problem for one in map(self.example, rest) if one is not None)
            raise bad_line_error(example.problem, sum(map(bool, others)), self._what)
        return example

    @property
    def _plain(self) -> Callable[[Sequence[object]], bool] | None:
        """Fast test whether the values of a row need no conversion; None if most rows need one."""
        if self.absent:
            return None
        if all(one.is_text and one.is_plain("") for one in self._columns):
            return self._are_valid_text
        rows_of_arrays = self._columns[0].is_media and self.table.named is None
        return self._are_plain if rows_of_arrays else None

    def _are_plain(self, values: Sequence[object]) -> bool:
        return all(one.is_plain(value) for one, value in zip(self._columns, values, strict=True))

    def _are_valid_text(self, values: Sequence[object]) -> bool:
        """Whether all values are valid texts. Text that was decoded from a file cannot contain half
        of a surrogate pair. Other text is accepted by this fast test only if it is ASCII."""
        typed = self.table.typed
        for value in values:
            if type(value) is not str or (typed and not value.isascii()):
                return False
        return True

    @property
    def _what(self) -> str:
        return "sentences" if any(one.is_words for one in self._columns) else "lines"

    def example(self, raw: RawRow) -> Example | None:
        """Return the example of a row; None for an empty line that does not count as an example."""
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
        where, region = "", dict[str, Any]()
        for (name, column), value in zip(self.binding.items(), raw.values, strict=True):
            if column.is_plain(value):
                found[column.name] = value
                continue
            where = where or self.table.where(raw.line)
            if value is ABSENT:
                if not column.optional:
                    raise self._absent(column, name, raw, where)
                continue
            parsed = column.parse(value, f"{where}: column {name!r}")
            if column.is_region:
                region |= {} if parsed is None else {column.name: parsed}
                continue
            if column.is_media:
                parsed = self._in_folder(parsed, f"{where}: column {name!r}")
            elif parsed == "" and column.is_label and self.bad == "skip" and not column.optional:
                raise DataError(f"{where} has no label in column {name!r}.")
            found[column.name] = parsed
        if region:
            first = next(one.name for one in self._columns if one.is_media)
            found[first] = MediaRef(found[first].path, MediaRegion(**region))
        self._check_row(found, raw, where)
        return found

    def _in_folder(self, medium: object, where: str) -> MediaRef:
        """Return a media reference whose path is relative to the folder of the table that lists
        it."""
        if not isinstance(medium, MediaRef):
            raise DataError(
                f"{where} holds media, but must hold paths of files. To use media inside the "
                "table, load it in Python: headway.train(…, pandas.read_parquet(…))."
            )
        return medium._replace(path=str(Path(self.table.name).parent / medium.path))

    def _check_row(self, found: Mapping[str, Value], raw: RawRow, where: str) -> None:
        """Raise a `DataError` for words that do not match their tags, or for a document without any
        field."""
        if "words" in found and "tags" in found:
            check_words(found["words"], found["tags"], where or self.table.where(raw.line))
        if self._fields and not any(found.get(name) for name in self._fields):
            where = where or self.table.where(raw.line)
            there = ", ".join(map(repr, raw.row or ())) or "none"
            raise DataError(
                f"{where} has none of the fields {', '.join(map(repr, self._fields))}. Its fields "
                f"are: {there}. List the fields to read: data.fields=…"
            )

    def _absent(self, column: Column, name: str, raw: RawRow, where: str) -> DataError:
        there = ", ".join(map(repr, raw.row or ())) or "none"
        return DataError(
            f"{where} has no field {name!r}. Its fields are: {there}. If the field has another "
            f"name: data.{column.setting}=…"
        )


def bad_line_error(problem: str, others: int, what: str = "lines") -> DataError:
    """Return the error for the first invalid line of a file.

    Args:
        problem: What is wrong with the line.
        others: Number of further invalid lines.
        what: Noun for the examples that would be left out, such as `sentences`.
    """
    like = f" {others + 1:,} lines of this file have such errors." if others else ""
    return DataError(
        f"{problem}{like} Correct the file, or skip such {what} (not possible when computing "
        "scores): data.on_bad_row=skip"
    )


def media_tables(
    paths: Sequence[str],
    data: DataSettings,
    columns: Sequence[Column],
    files: DataFiles | None = None,
) -> Iterator[BoundTable]:
    """Open files, folders and lists of media, and bind their columns. `columns`: the media column,
    followed by those of its target."""
    # A label column is recognized even if no label is needed.
    more = (class_of("text")("label", optional=True),) if len(columns) == 1 else ()
    what = cast(MediaType, columns[0].kind)
    for path in parts(paths, folders=False):
        try:
            table = open_media(path, data, (*columns, *more), what, files)
        except OSError as error:  # a folder that may not be read, or that links to itself
            raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
        if table.named is None and is_table_file(path):
            bound = bind(table, (*columns, *more))
            binding = {name: one for name, one in bound.items() if one in columns}
            region = [
                name for name in MediaRegion._fields
                if name in table.columns and name not in binding
            ]  # fmt: skip
            made = class_of("region")
            binding |= {name: made(name, optional=True) for name in region}
        else:
            binding = dict(zip(table.columns, columns, strict=True))
        yield BoundTable(table, binding, bad=data.on_bad_row)


def media_examples(
    paths: Sequence[str],
    data: DataSettings,
    what: MediaType,
    target: Need | None = None,
    answer: str = "label",
    files: DataFiles | None = None,
) -> Iterator[Example]:
    """Yield the examples of media. An item with several texts yields one example per text."""
    columns = media_columns(what, target, data, answer)
    return _text_by_text(media_tables(paths, data, columns, files))


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
    """Files of one split, whose examples can be read repeatedly, in bounded memory."""

    schema: Schema
    settings: RunSettings
    paths: tuple[str, ...]
    """Paths of the data files, except aligned files."""

    scheme: TagScheme = "bio"
    """Tag scheme of the tags in the files."""

    aligned: tuple[tuple[str, str], ...] = ()
    """Pairs of files for translation. Line n of the second file is the translation of line n of the
    first."""

    @property
    def is_given(self) -> bool:
        """Whether the split has any files."""
        return bool(self.paths or self.aligned)

    @property
    def is_positional(self) -> bool:
        """Whether the files were given as positional arguments. Their columns are then named by
        options."""
        key, asked = f"data.{self._files_setting}", self.settings.asked
        return asked.origin(key).kind in (OriginKind.UNKNOWN, OriginKind.POSITIONAL)

    @property
    def valid_option(self) -> str:
        """Command-line option for separate validation data. It is `--valid` if the training files
        are positional arguments, otherwise the counterpart of their option, such as
        `--valid-text`."""
        if self.is_positional:
            return f"{Option('valid', takes='FILE')}"
        name = self._files_setting
        if name == "source":
            return f"{Option('valid_source')}, {Option('valid_target')}"
        return f"{Option(f'valid_{name}')}"

    @property
    def _files_setting(self) -> str:
        data = self.settings.data
        return next((one for one in ("pairs", "source", "media") if getattr(data, one)), "text")

    def __iter__(self) -> Iterator[Example]:
        if self.schema.media is not None:
            yield from self._media_examples
            return
        for bound in self.tables():
            yield from map(self.as_read, bound) if self.schema.is_tagged else bound

    @cached_property
    def _media_examples(self) -> list[Example]:
        """All examples of media, cached because they are read many times. The media files are not
        opened."""
        return list(_text_by_text(self._opened))

    @cached_property
    def _opened(self) -> list[BoundTable]:
        files, columns = files_of(self.settings), self.schema.columns
        return list(media_tables(self.paths, self.settings.data, columns, files))

    @property
    def in_arrays(self) -> bool:
        """Whether all media are items of array files. These files were opened, so they need not be
        checked for existence."""
        tables = [one.table for one in self._opened]
        known = all(one.n is not None and one.named is None for one in tables)
        return bool(tables) and known

    def spread(self, most: int) -> list[Example]:
        """Return about `most` evenly spaced examples of media. For array files, no other examples
        are created."""
        if not self.in_arrays:
            return self._media_examples[:: max(1, len(self._media_examples) // most)]
        n = sum(one.table.n or 0 for one in self._opened)
        rows = ((one, raw) for one in self._opened for raw in one.table.read(list(one.binding)))
        some = (one.example(raw) for one, raw in islice(rows, 0, None, max(1, n // most)))
        return [one for one in some if one is not None]

    def tables(self) -> Iterator[BoundTable]:
        """Yield each file as a table with bound columns."""
        if self.schema.media is not None:
            yield from self._opened
            return
        data, schema = self.settings.data, self.schema
        blanks, bad, files = schema.counts_blank_lines, data.on_bad_row, files_of(self.settings)
        for both in self.aligned:
            table = open_aligned([files.file(one, data.encoding) for one in both], SIDES)
            yield BoundTable(table, bind(table, schema.without_settings()), blanks, bad)
        absent = dict.fromkeys(schema.text_names, "") if schema.has_fields else {}
        for path in parts(self.paths, files=files):
            table = open_table(path, data, schema.columns, schema.contents, files)
            yield BoundTable(table, schema.stored(bind(table, schema.columns)), blanks, bad, absent)

    def as_read(self, example: Example) -> Example:
        """Return an example with its tags converted to BIO. Examples without tags are unchanged."""
        if not self.schema.is_tagged:
            return example
        strip = self.settings.tag.prefix_strip
        # A word that consists only of the prefix is kept.
        words = [word.removeprefix(strip) or word for word in example.strings("words")]
        tags, misfits = to_bio(example.strings("tags"), self.scheme)
        values = {"text": " ".join(words), "words": words, "tags": tags}
        return example._replace(values=values, misfits=misfits)

    def detected(self) -> TagScheme:
        """Return the tag scheme that is detected from all files. If schemes are mixed, raise a
        `DataError` with the file and line of each."""
        detection = TagSchemeDetector()
        for bound in self.tables():
            for example in bound:
                detection.add(example.strings("tags"), example.place)
        return detection.scheme()


def sources(settings: RunSettings, media: MediaSpec | None = None) -> tuple[DataSource, DataSource]:
    """Return the sources of training and of validation data. The validation source may have no
    files."""
    settings = resolve_answer(with_files(settings), media)
    data, schema = settings.data, schema_of(settings, media)
    if schema.is_translation:
        given = (data.pairs, data.source, data.target)
        held = (data.valid_pairs, data.valid_source, data.valid_target)
        return pair_source(settings, *given), pair_source(settings, *held)
    training: tuple[str, ...] = getattr(data, schema.files)
    validation: tuple[str, ...] = getattr(data, f"valid_{schema.files}")
    scheme: TagScheme = "bio"
    if schema.is_tagged:
        asked = settings.tag.scheme
        paths = (*training, *validation)
        both = DataSource(schema, settings, paths)
        known = files_of(settings)
        scheme = known.once(("tags", paths), both.detected) if asked == "auto" else asked
    return DataSource(schema, settings, training, scheme), DataSource(
        schema, settings, validation, scheme
    )


def resolve_answer(settings: RunSettings, media: MediaSpec | None = None) -> RunSettings:
    """Return settings in which `classify.answer=auto` is replaced by `labels` if a sampled label is
    a list, otherwise by `label`."""
    own = settings.classify
    asked = getattr(settings, settings.task, None) is own and own.answer == "auto"
    if not asked or not (settings.data.text or media):
        return settings
    schema = schema_of(settings, media)
    files: tuple[str, ...] = getattr(settings.data, schema.files)
    if schema.media is None:
        files = tuple(parts(files, files=files_of(settings))[:1])
    bound = next(DataSource(schema, settings, files).tables(), None)
    several = bound is not None and any(
        isinstance(to_python(row.get(name)), list)
        for name, one in bound.binding.items()
        if one.is_class
        for row in bound.table.sample
    )
    return replace(settings, classify=replace(own, answer="labels" if several else "label"))


def files_of(settings: RunSettings) -> DataFiles:
    """Return the cache of data files in the settings, or a new cache if there is none."""
    return settings.files if isinstance(settings.files, DataFiles) else DataFiles()


def with_files(settings: RunSettings) -> RunSettings:
    """Return settings with a cache of data files, which is shared by all sources that are created
    from them."""
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
    schema = text_schema("pairs", settings)
    return DataSource(schema, settings, tuple(pairs), aligned=aligned)


def in_example_blocks(
    examples: Iterable[Example], columns: Sequence[str]
) -> Iterator[list[Example]]:
    """Group examples into blocks of at most `BLOCK` examples, and of fewer if texts are long.
    `columns`: names of the texts."""
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


def check_files_exist(*several: DataSource) -> None:
    """Raise a `DataError` that lists all missing media files, if there are any."""
    files: dict[str, str] = {}
    for one in chain(*several):
        for value in one.values.values():
            if isinstance(value, MediaRef):
                files.setdefault(value.path, one.place)
    # Broken links are reported when they are read, and their examples are left out.
    missing = [
        f"{name} ({place})" for name, place in files.items()
        if not path_exists(Path(name)) and not is_broken_link(Path(name))
    ]  # fmt: skip
    if missing:
        shown = ", ".join(missing[:MOST_NAMED])
        more = f", and {len(missing) - MOST_NAMED:,} more" * (len(missing) > MOST_NAMED)
        n = len(missing)
        raise DataError(
            f"{'1 file is' if n == 1 else f'{n:,} files are'} missing: {shown}{more}. Paths in a "
            "list of files are relative to the folder of that list."
        )
