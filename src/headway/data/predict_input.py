"""Read input files for prediction, with the columns that a run was trained on.

Texts are read from the same columns as in training. Header lines are skipped, and columns that the
run predicts (labels, tags, translations) are ignored. A file that is not a table has one text per
line, like standard input. Every line is one input, even if it is empty, so that line n of the
output belongs to line n of the input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, cast

from headway.data.bind import (
    Binding,
    bind,
    column_of,
    is_named,
    with_setting_names,
)
from headway.data.columns.column import Column, class_of, to_python
from headway.data.files import DataFile, DataFiles, is_stream
from headway.data.readers.conll import cells_of
from headway.data.readers.jsonl import parse_object
from headway.data.readers.open import HEAD, open_table
from headway.data.schema import media_columns, text_schema
from headway.data.sniff import (
    COMMA,
    CONLL_U,
    DOCUMENT,
    PARQUET_START,
    TAB,
    cells_in,
    check_is_text,
    detect_separator,
    has_extension,
    has_known_tags,
    has_labels,
    has_names,
    has_tabs,
    is_json_lines,
    is_table_file,
)
from headway.data.source import BoundTable, Example, media_tables
from headway.data.table import ABSENT, RawRow, Table
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.specs.needs import TEXT, WORDS, MediaModality
from headway.specs.tasks import Spec

Question = str | tuple[str, ...]
"""Text input for prediction. It is one text, a tuple of two texts to compare, or a tuple of the
fields of a document in order, of which some may be empty."""

Note = Callable[[str], None]

TARGETS = ("label", "labels", "number", "target")
"""Names of columns that contain targets. They are not needed in input for prediction."""


class InputRow(NamedTuple):
    """Input for prediction, with the cells of its row in the file."""

    question: Question | Example
    row: Mapping[str, object]
    """Cells of the row, by column name; empty unless they are needed for the output."""


@dataclass(frozen=True)
class InputFile:
    """Inputs for prediction from one or several files, in order."""

    columns: tuple[str, ...]
    """Names of all columns; empty for a file with one word per line."""

    inputs: Iterator[InputRow]


def questions(
    path: str, settings: RunSettings, note: Note = lambda text: None
) -> Iterator[Question]:
    """Yield the inputs of a text file in order. `note` is called with a message that states how the
    columns of the file are used."""
    return (cast(Question, one.question) for one in _text_file(path, settings, note).inputs)


def open_inputs(
    paths: Sequence[str], settings: RunSettings, note: Note = lambda text: None, *,
    needs: Mapping[str, str] | None = None, rows: bool = False,
) -> InputFile:  # fmt: skip
    """Open input files for prediction as one sequence of inputs.

    Args:
        paths: Paths of the files.
        settings: Settings of the run.
        note: Function that receives messages on how the columns are used.
        needs: Explicit column names, such as `{"text": "review"}`.
        rows: Whether all columns of a table are read, instead of only those that the run needs.
    """
    if spec_of(settings).is_text:
        files = [_text_file(one, settings, note, needs=needs, rows=rows) for one in paths]
    else:
        files = [_media_file(one, settings, note) for one in paths]
    in_words = [path for path, file in zip(paths, files, strict=True) if not file.columns]
    if in_words and len(in_words) < len(files):
        raise DataError(
            f"{in_words[0]} has one word per line, but other files do not. Give files of the two "
            "kinds in separate calls."
        )
    columns = dict.fromkeys(name for file in files for name in file.columns)
    inputs = chain.from_iterable(one.inputs for one in files)
    return InputFile(tuple(columns), _with_ends(files) if in_words else inputs)


def _with_ends(files: Sequence[InputFile]) -> Iterator[InputRow]:
    """Yield the inputs of files with one word per line. An empty line between files ends the
    sentence."""
    last = ""
    for file in files:
        if last.strip():
            yield InputRow("", {})
        for one in file.inputs:
            last = str(one.question)
            yield one


def _text_file(
    path: str, settings: RunSettings, note: Note, *, needs: Mapping[str, str] | None = None,
    rows: bool = False,
) -> InputFile:  # fmt: skip
    check_is_text(path)
    data, files = settings.data, DataFiles()
    columns: Sequence[Column] = _named_by(input_columns(settings), needs)
    file = files.file(path, data.encoding)
    tagged = spec_of(settings).reads_sentences
    if not (needs or Path(path).is_dir()):
        try:
            texts = (_tagger_lines if tagged else _plain_lines)(file, settings, columns, note)
        finally:
            file.close()
        if texts is not None:
            return texts
        columns = _columns_of_tagger(settings) if tagged else columns
    table = open_table(path, data, columns, files=files)
    return _table_inputs(table, settings, note, needs=needs, rows=rows)


def _tagger_lines(
    file: DataFile, settings: RunSettings, columns: Sequence[Column], note: Note
) -> InputFile | None:
    """Return the inputs of a tagger from a file of sentences or words; None if the file is a
    table."""
    if _is_tagged_table(file, settings):
        return None
    found = _words(file, settings, note)
    unit = () if _in_columns(file, settings) else ("text",)
    return InputFile(unit, (InputRow(one, {"text": one}) for one in found))


def _plain_lines(
    file: DataFile, settings: RunSettings, columns: Sequence[Column], note: Note
) -> InputFile | None:
    """Return the lines of a plain text file as inputs; None if the file is a table."""
    spec, stream = spec_of(settings), is_stream(file.path)
    if not stream and _is_table(file, settings.data, spec, columns, settings.labels):
        return None
    tabs = not stream and has_extension(file.path, TAB) and has_tabs(file.path, _head(file))
    if tabs and not spec.reads_labelled_texts:
        note(f"{file.name}: each line is read as one text, including its tabs, as in training")
    name = columns[0].name if columns[0].is_text and not columns[0].is_field else "text"
    return InputFile((name,), (InputRow(line, {name: line}) for line in file.lines()))


def _named_by(columns: list[Column], needs: Mapping[str, str] | None) -> list[Column]:
    """Rename columns in place by the explicit names in `needs`, and return the list. The keyword
    `text` means the first column if no column has that name."""
    for word, name in (needs or {}).items():
        i = next((i for i, one in enumerate(columns) if word in one.python_names), 0)
        columns[i] = replace(columns[i], given_name=name, is_strict=True, optional=False)
    return columns


def _media_file(path: str, settings: RunSettings, note: Note) -> InputFile:
    """Return the inputs in an image, video or audio file, a folder, or a list of media files."""
    what = spec_of(settings).media
    assert what is not None
    [bound] = media_tables([path], settings.data, media_columns(what, None, settings.data))
    table, names = bound.table, list(bound.binding)
    if not is_table_file(path):
        items = (InputRow(one, {"path": one.medium.path}) for one in bound)
        return InputFile(("path",), items)
    note(f"{path}: {describe_media_columns(path, settings.data, what)}")

    def read() -> Iterator[InputRow]:
        for raw in table.read([*names, *(one for one in table.columns if one not in names)]):
            example = bound.example(raw.first(len(names)))
            if example is not None:
                yield InputRow(example, _row_of(raw, [*names, *table.columns], table))

    return InputFile(table.columns, read())


def _row_of(raw: RawRow, names: Sequence[str], table: Table) -> Mapping[str, object]:
    """Return the cells of a row by column name, in table order. `names`: names of the columns that
    were read, in the order of the values."""
    if raw.row is not None:
        return raw.row
    found = dict(zip(dict.fromkeys(names), raw.values or (), strict=False))
    return {name: found[name] for name in table.columns if found.get(name, ABSENT) is not ABSENT}


def input_columns(settings: RunSettings) -> list[Column]:
    """Return the columns that the run reads or predicts. Those that it predicts are optional."""
    data, spec = settings.data, spec_of(settings)
    if data.fields:
        return list(text_schema("fields", settings).columns)
    if not spec.is_text:
        needs = [column_of(one, spec.modality) for one in spec.needs]
        columns = with_setting_names(needs, data, settings.asked)
    elif spec.reads_views:  # prediction reads one text or two, not two views of one
        columns = text_schema("pairs" if data.pairs else "documents", settings).columns
    else:
        columns = text_schema(spec.reads, settings).columns
    targets = _targets(settings)
    return [
        replace(one, optional=True, is_strict=False) if one.name in targets else one
        for one in columns
    ]


def _targets(settings: RunSettings) -> set[str]:
    """Return the names of the columns that the run predicts."""
    spec = spec_of(settings)
    found = {column_of(one, spec.modality).name for one in spec.needs if one.role == "target"}
    return found | ({*TARGETS} if spec.is_text else set())


def input_words(settings: RunSettings) -> set[str]:
    """Return the keywords with which options and arguments can name the columns that a run reads.
    For texts, `text` is always one of them and names the first column."""
    columns = [one for one in input_columns(settings) if not one.is_field]
    found = {
        word for one in columns for word in one.python_names if one.name not in _targets(settings)
    }
    return found | ({"text"} if columns and spec_of(settings).is_text else set())


def bind_inputs(
    table: Table, settings: RunSettings, needs: Mapping[str, str] | None = None, *,
    guesses: bool = True,
) -> Binding:  # fmt: skip
    """Bind the columns that a run reads in a table, as in training. If a table for a tagger has no
    lists of words, a column of sentences is bound instead.

    Args:
        table: Table of inputs.
        settings: Settings of the run.
        needs: Explicit column names, such as `{"text": "review"}`.
        guesses: Whether a column may be bound only because no other column fits.
    """
    columns, targets = input_columns(settings), _targets(settings)
    if not table.name:  # names of training are tried first; numbers of a file mean nothing here
        columns = [
            replace(
                one,
                given_name="" if one.given_name.isdecimal() else one.given_name,
                is_strict=False,
            )
            for one in columns
        ]
    columns = _named_by(columns, needs)
    first = columns[0]
    if first.is_words and not _has_words(table, first):
        columns[0] = _sentences(first)
    elif first.is_text and not first.is_field:
        columns[0] = replace(first, aliases=tuple(dict.fromkeys((*first.aliases, *TEXT.names))))
    bound = bind(table, columns, guesses=guesses)
    return {name: one for name, one in bound.items() if one.name not in targets}


def _has_words(table: Table, column: Column) -> bool:
    """Whether the column contains lists in the sampled rows. If its name is not fixed, lists in any
    column count."""
    names = [column.given_name] if column.is_strict else table.columns
    return any(isinstance(to_python(row.get(name)), list) for row in table.sample for name in names)


def _table_inputs(
    table: Table, settings: RunSettings, note: Note, *, needs: Mapping[str, str] | None = None,
    rows: bool = False,
) -> InputFile:  # fmt: skip
    data, columns = settings.data, input_columns(settings)
    targets = [one for one in columns if one.name in _targets(settings)]
    # Without the target columns of training, the first line may be data rather than a header, so
    # columns are bound by their names only.
    guesses = any(is_named(table, one) for one in targets)
    binding = bind_inputs(table, settings, needs, guesses=guesses)
    written = spec_of(settings).reads_documents
    said = (
        _describe_fields(table, data, written) if data.fields else describe_columns(table, binding)
    )
    note(f"{table.name}: {said}")
    names = data.fields or [one.name for one in binding.values()]
    bound = BoundTable(table, binding, blanks=True, bad=data.on_bad_row)
    every = [*binding, *(name for name in table.columns if name not in binding and rows)]

    def read() -> Iterator[InputRow]:
        raws = table.read(every)
        for raw, example in bound.examples(raws, len(binding)):
            if example.problem:
                note(f"{example.problem} This row is treated as an empty text.")
            found = tuple(example.values.get(name, "") for name in names)
            question = found if data.fields or len(found) > 1 else found[0]
            yield InputRow(cast(Question, question), _row_of(raw, every, table) if rows else {})

    return InputFile(table.columns or tuple(binding), read())


def describe_media_columns(path: str, data: DataSettings, what: MediaModality) -> str:
    """Return a message that states which column of a list of media files is read."""
    [bound] = media_tables([path], data, media_columns(what, None, data))
    table = bound.table
    (name,) = (name for name, one in bound.binding.items() if not one.is_region)
    if table.form == "lines of JSON":
        return f"field {name!r} names the files"
    column = repr(name) if table.header else name
    left = len(table.columns) - len(bound.binding)
    some = f"; {'one other is' if left == 1 else f'{left} others are'} not read" if left else ""
    return f"column {column} names the files{some}"


ROLES = {"source": "text", "other": "second text"}
"""Words for columns in messages about inputs, by the names of the columns in the task."""


def describe_columns(table: Table, binding: dict[str, Column]) -> str:
    """Return a message that states how columns are used, such as `column 1 is the text; column 2 is
    not read`."""
    unit = "field" if table.form == "lines of JSON" else "column"

    def named(name: str) -> str:
        return repr(name) if table.header else name

    parts = [
        f"{unit} {named(name)} is the {ROLES.get(one.name, one.name)}"
        for name, one in binding.items()
    ]
    tops = {name.partition(".")[0] for name in binding} | set(binding)
    left = [named(name) for name in table.columns if name not in tops]
    if left:
        some = f"{unit}s {', '.join(left[:5])}{' …' * (len(left) > 5)} are"
        parts.append((some if len(left) > 1 else f"{unit} {left[0]} is") + " not read")
    return "; ".join(parts)


def _describe_fields(table: Table, data: DataSettings, written: bool) -> str:
    left = [repr(name) for name in table.columns if name not in data.fields]
    used = ", ".join(repr(name) for name in data.fields if name in table.columns)
    some = f"; not read: {', '.join(left)}" if left else ""
    some += "; the field to be generated is not read" * written
    return f"fields read: {used or 'none'}{some}"


def _head(file: DataFile) -> list[str]:
    return [line for line in islice(file.head(), HEAD) if line.strip()]


def _is_table(
    file: DataFile, data: DataSettings, spec: Spec, columns: Sequence[Column],
    labels: Sequence[str] = (),
) -> bool:  # fmt: skip
    """Whether a file must be read as a table.

    A file is a table if it has the columns of training, by name, number or usual name. A file that
    cannot be plain text also counts as a table, so that an error reports the missing columns.
    """
    if file.first_bytes.startswith(PARQUET_START) or data.fields:
        return True
    path, head = file.path, _head(file)
    first = head[0] if head else ""
    wanted = [one for one in columns if not one.optional]
    names = [one.given_name or one.name for one in wanted]
    if is_json_lines(path, first, *names):
        return True
    between = detect_separator(path, head, names) or "\t"
    cells = cells_in(first, between)
    tabs = has_tabs(path, head)
    if spec.reads_pairs or (spec.reads_views and data.pairs):
        table = has_extension(path, TAB) or bool(data.pairs)
        return (
            has_extension(path, COMMA)
            or (has_extension(path, TAB) and cells == names)
            or (table and tabs)
        )
    there = has_names(cells, wanted)
    if not spec.reads_labelled_texts:  # such runs were trained on whole lines
        return (there and has_extension(path, TAB, COMMA)) or (
            has_extension(path, COMMA) and len(cells) > 1
        )
    if len(wanted) == 1 and has_labels(head, labels):
        return True
    if there:
        return has_extension(path, TAB, COMMA) or len(cells) > 1
    if has_extension(path, COMMA):
        return True
    if not tabs:
        return False
    if all(name.isdecimal() for name in names):
        return len(cells) != len(names)
    # A model that compares two texts accepts lines of two texts separated by a tab, too.
    return not (data.other_field and len(cells) == 2)


def _columns_of_tagger(settings: RunSettings) -> tuple[Column, ...]:
    """Return the columns that a tagger can read: lists of words, or whole sentences."""
    first = input_columns(settings)[0]
    return (
        first,
        _sentences(first),
    )


def _sentences(words: Column) -> Column:
    """Return the column of whole sentences, which can be used instead of the column `words`."""
    return class_of("text")(
        "text", "text_field", TEXT.also, words.optional, given_name=words.given_name,
        is_strict=words.is_strict,
    )  # fmt: skip


def _is_tagged_table(file: DataFile, settings: RunSettings) -> bool:
    """Whether a file is a table with a column of sentences or of words. Other files contain one
    sentence or one word per line."""
    if is_stream(file.path):
        return False
    if file.first_bytes.startswith(PARQUET_START) or has_extension(file.path, COMMA):
        return True
    head = _head(file)
    first = input_columns(settings)[0]
    if not head:
        return False
    if is_json_lines(file.path, head[0], *TEXT.names):
        with suppress(DataError):
            return not set(first.accepted_names) & set(parse_object(head[0], file.path))
    cells = head[0].split("\t")
    return len(cells) > 1 and (first.given_name in cells if first.is_strict else TEXT.name in cells)


def _in_columns(file: DataFile, settings: RunSettings) -> bool:
    """Whether a file has one word per line, as in CoNLL columns, rather than one sentence."""
    if is_stream(file.path):
        return False
    head = [one for one in _head(file) if not one.startswith(DOCUMENT)]
    if not head or is_json_lines(file.path, head[0], *WORDS.names):
        return False
    tabs = has_extension(file.path, CONLL_U) or "\t" in head[0]
    return tabs or has_known_tags(file.path, settings.labels, head)


def _words(file: DataFile, settings: RunSettings, note: Note) -> Iterator[Question]:
    """Return the sentences or words of a file, line by line. In lines of CoNLL files, the returned
    columns are separated by tabs, with the word first."""
    data = settings.data
    columns = [one for one in text_schema("tagged", settings).columns if one.is_words]
    lines = file.lines()
    if is_stream(file.path):
        return iter(lines)
    head = [line for line in _head(file) if not line.startswith(DOCUMENT)]
    own = columns[0].given_name
    if head and is_json_lines(file.path, head[0], *WORDS.names, *filter(None, [own])):
        return _json_words(file, columns[0], data, note)
    if not head:
        return iter(lines)
    universal = has_extension(file.path, CONLL_U)
    if not _in_columns(file, settings):
        return iter(lines)
    if universal:
        lines = (line for line in lines if not line.startswith("#"))
        head = [line for line in head if not line.startswith("#")]
    width, word = len(cells_of(head[0])), int(own or ("2" if universal else "1"))
    rest = f" of {width}" if width > 1 else ""
    note(f"{file.name}: one word per line; column {word}{rest} is read")
    return (_with_tabs(line, word) for line in lines)


def _json_words(
    file: DataFile, column: Column, data: DataSettings, note: Note
) -> Iterator[Question]:
    """Yield the lines of a JSON Lines file with one sentence per line. Errors name the line by its
    number."""
    for number, line in enumerate(file.lines(), 1):
        where = f"{file.name}, line {number:,}"
        try:
            if line.strip():
                values = parse_object(line, where)
                name = next((one for one in column.accepted_names if one in values), None)
                if name is None:
                    there = ", ".join(map(repr, values)) or "none"
                    raise DataError(
                        f"{where} has no field {column.name!r} with a list of words. Its fields "
                        f"are: {there}."
                    )
                column.parse(values[name], f"{where}: field {name!r}")
                line = line if name in WORDS.names else json.dumps({"words": values[name]})
        except DataError as error:
            if data.on_bad_row == "error":
                raise
            note(f"{error} This line is treated as an empty text.")
            line = ""
        yield line


def _with_tabs(line: str, word: int) -> str:
    if not line.strip() or line.startswith(DOCUMENT) or ("\t" in line and word == 1):
        return line
    cells = cells_of(line)
    first = [cells.pop(word - 1)] if 1 < word <= len(cells) else []
    return "\t".join([*first, *cells]) + "\t"
