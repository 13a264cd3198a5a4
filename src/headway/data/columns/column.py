"""Base class of the kinds of columns, and the table of kinds.

A column belongs to one task: it has a name there, a setting that names it in files, and a class for
its kind. The class decides which values fit, reads a cell from any source of data, checks the
values, and stores them for training. To add a kind, write a class and `register` it.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.data.sniff import is_audio, is_visual
from headway.data.table import is_missing, shown_value
from headway.errors import DataError, one_line
from headway.settings.data import DataSettings

if TYPE_CHECKING:
    from headway.data.check import Findings
    from headway.data.scan import DatasetScan
    from headway.data.source import Example
    from headway.data.workdir import GrowingFiles
    from headway.tokens.tokenizer import Tokenizer
    from headway.tokens.word_cache import FlatIds

Value = Any
"""Parsed value of a cell: a text or a label; a list of words or tags; an image, a video or audio,
or its number once it is stored; or whatever the class of a registered column returns."""

SPLITS = ("train", "valid")

Rows: TypeAlias = "FlatIds | NDArray[Any]"
"""Encoded rows to store: of different lengths, or one number per row."""

StoreFacts = dict[str, str]
"""Description of a stored array in the manifest: its `kind`, its `dtype`, and the type of its
`lengths` if its rows differ in length."""


@dataclass(frozen=True)
class Sample:
    """The first values of a column in a table, without missing and empty ones."""

    values: Sequence[object]
    typed: bool = True
    """Whether the values have types; if not, all are texts."""

    folder: Path | None = None
    """Folder of the file, to which paths are relative; None for a table in memory."""


@dataclass(frozen=True)
class StoreTools:
    """Tokenizers, label numbers and number formats that columns encode their values with."""

    tokenizers: Mapping[str, Tokenizer]
    """Tokenizers by the names of the columns that hold text."""

    labels: Mapping[str, int]
    """Number of each label or tag by its name."""

    lengths: str = "<i4"
    """Data type of stored lengths."""


@dataclass(frozen=True)
class Column(ABC):
    """A column that a task reads. Its subclasses are the kinds of columns."""

    kind: ClassVar[str]
    """Name of the kind, in the task table and in the manifest of prepared data."""

    is_text: ClassVar[bool] = False
    """Whether the values are texts that are tokenised."""

    is_media: ClassVar[bool] = False
    """Whether the values are images, videos or audio."""

    noun: ClassVar[str] = ""
    """Noun with its article for one value in messages, such as `an image`; empty for values that
    are not media."""

    is_image: ClassVar[bool] = False
    is_audio: ClassVar[bool] = False
    is_moving: ClassVar[bool] = False
    """Whether the values are videos."""

    item_axes: ClassVar[int | None] = None
    """Largest number of axes of an array in memory that is a single value; an array with more axes
    holds several values. None: no limit."""

    is_label: ClassVar[bool] = False
    """Whether the values are targets: labels or numbers."""

    is_class: ClassVar[bool] = False
    """Whether the values are one class or several."""

    is_counted: ClassVar[bool] = False
    """Whether the data check counts labels of this column, which `scan` extracts."""

    is_several: ClassVar[bool] = False
    """Whether an example may have any number of labels."""

    is_field: ClassVar[bool] = False
    """Whether the column is a field of a document. A row needs at least one of these columns."""

    is_words: ClassVar[bool] = False
    """Whether the values are the words of a sentence."""

    is_region: ClassVar[bool] = False
    """Whether the column selects a part of a media file instead of having a value."""

    is_named_by_need: ClassVar[bool] = True
    """Whether the stored values have the name of the task's `Need` instead of the name of the
    kind."""

    default: ClassVar[Value | None] = None
    """Value of an empty row; None if such a row has no value."""

    name: str
    """Name of the values in the task, such as `text` or `label`."""

    setting: str = ""
    """Setting in `DataSettings` that names the column in a file; empty if it cannot be renamed."""

    aliases: tuple[str, ...] = ()
    """Other names under which the column is recognised."""

    optional: bool = False
    given_name: str = field(default="", kw_only=True)
    """Name given by the user or by a run; it is tried before all other names."""

    is_strict: bool = field(default=False, kw_only=True)
    """Whether only `given_name` is accepted as the name."""

    @property
    def accepted_names(self) -> tuple[str, ...]:
        return (*filter(None, [self.given_name]), self.name, *self.aliases)

    @property
    def option(self) -> str:
        """Name of the column as a command-line option."""
        return self.setting.removesuffix("_field")

    @property
    def python_names(self) -> tuple[str, ...]:
        """Names of the keyword argument for the column in Python."""
        return (self.name,)

    def with_settings(self, data: DataSettings) -> Self:
        """Return the column configured by the settings that concern its values, such as
        separators."""
        return self

    @abstractmethod
    def matches(self, sample: Sample) -> str | None:
        """Return None if sampled values could belong to this kind of column; otherwise the
        reason."""

    @abstractmethod
    def parse(self, raw: object, where: str) -> Value:
        """Convert one cell, from a file, a table in memory or an input for prediction. A missing
        value becomes an empty one; a wrong value raises a `DataError` that begins with `where`."""

    def is_plain(self, value: object) -> bool:
        """Whether parsing would leave a value unchanged. This is a fast test that may return False
        for such a value."""
        return False

    def to_json(self, raw: object, where: str) -> object:
        """Convert a cell of a table in memory to the JSON value that `parse` reads from the written
        file."""
        if isinstance(raw, np.ndarray):
            raw = raw.tolist()
        if isinstance(raw, list | tuple):
            return [scalar_json(one, where) for one in raw]
        return scalar_json(raw, where)

    def could_hold(self, value: object) -> bool:
        """Whether a column that has an accepted name can be this one, judged by its first value."""
        return True

    def show(self, value: Value) -> str:
        """Describe a cell in the table of columns."""
        if isinstance(value, list):
            return f"{clipped(' '.join(map(str, value)))}   {len(value):,} words"
        return clipped(value) if isinstance(value, str) else shown_value(value)

    # -- data check

    def scan(self, value: Value) -> Sequence[str]:
        """Return the labels in a value, which the data check counts. Columns without labels return
        none."""
        return ()

    def findings(self, scan: DatasetScan, report: Findings) -> None:  # noqa: B027 (optional)
        """Report what is unusual about the values of a split."""

    def hint(self, scan: DatasetScan) -> str:
        """Return a hint that another kind of column fits the values better; empty if none does."""
        return ""

    # -- prepared data

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        """Return the arrays that the values are stored in, by name."""
        return {}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        """Return the rows to store for each of `stores`, except tokens, which `tokenize` makes."""
        return {}

    def writer(self, files: GrowingFiles, tools: StoreTools) -> ColumnWriter:
        """Return a writer that appends rows to the files of the column. Files of an interrupted
        attempt are continued."""
        return ColumnWriter(self, files, tools)

    @classmethod
    def open(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> Any:
        """Open a stored array of a split. `facts` describes it as in the manifest, plus its `name`
        and, for media, their `form`."""
        from headway.data.token_store import TokenStore

        if "lengths" in facts:
            return TokenStore.open(_path(folder, split, facts), facts["dtype"], facts["lengths"])
        return cls.from_stored(cls.stored(folder, split, facts))

    @staticmethod
    def stored(folder: Path, split: str, facts: Mapping[str, Any]) -> NDArray[Any]:
        """Return the numbers of a split as they are stored, one per example."""
        return np.fromfile(_path(folder, split, facts), facts["dtype"])

    @classmethod
    def hashes(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> NDArray[Any] | None:
        """Return a hash of the content of each example, if the column has one."""
        return None

    @classmethod
    def from_stored(cls, values: NDArray[Any]) -> NDArray[Any]:
        """Convert stored numbers, one per example, to the numbers used in training."""
        return values


class TokenColumn(Column):
    """A column whose values are stored as tokens."""

    @abstractmethod
    def tokenize(
        self, values: Sequence[Any], continues: NDArray[np.bool_], tokenizer: Tokenizer
    ) -> dict[str, FlatIds]:
        """Return the tokens to store. A value that `continues` the one before is encoded as its
        continuation, without a space in front."""


class ColumnWriter:
    """Appends rows to the files of one column, for both splits."""

    def __init__(self, column: Column, files: GrowingFiles, tools: StoreTools) -> None:
        self.column, self.files, self.tools = column, files, tools
        self.stores = column.stores(tools)
        for split in SPLITS:
            for name, facts in self.stores.items():
                for file in stored_files(split, name, facts):
                    files.start(file)

    def encode(self, examples: Sequence[Example]) -> dict[str, Rows]:
        """Return the rows of examples for each stored array, except for tokens."""
        name = self.column.name
        values = [one.values.get(name, "") for one in examples]
        return self.column.encode(values, [one.place for one in examples], self.tools)

    def append(
        self, split: str, rows: Mapping[str, Rows], lengths: NDArray[np.int64] | None = None
    ) -> None:
        """Append rows to a split. `lengths`: the lengths of rows that were joined from several
        pieces."""
        for name, facts in self.stores.items():
            found = rows[name]
            files = stored_files(split, name, facts)
            if isinstance(found, tuple):
                sizes = found.lengths if lengths is None else lengths
                self.files.write(files[1], sizes.astype(facts["lengths"]).tobytes())
                found = found.ids
            self.files.write(files[0], found.astype(facts["dtype"]).tobytes())


def _path(folder: Path, split: str, facts: Mapping[str, Any]) -> Path:
    from headway.data.token_store import side

    return side(folder / split, facts["name"])


def stored_files(split: str, name: str, facts: StoreFacts) -> list[str]:
    """Return the names of the files of a stored array: values and lengths, or values alone."""
    from headway.data.token_store import lengths_file, side, tokens_file

    path = side(Path(split), name)
    if "lengths" in facts:
        return [str(tokens_file(path)), str(lengths_file(path))]
    return [str(path)]


KINDS: dict[str, str | type[Column]] = {
    "text": "text.TextColumn",
    "captions": "text.CaptionColumn",
    "label": "label.LabelColumn",
    "labels": "label.MultiLabelColumn",
    "number": "label.NumberColumn",
    "words": "tags.WordsColumn",
    "tags": "tags.TagsColumn",
    "pieces": "tags.WordsColumn",
    "shapes": "tags.WordsColumn",
    "field": "fields.FieldColumn",
    "image": "media.ImageColumn",
    "video": "media.VideoColumn",
    "audio": "media.AudioColumn",
    "region": "media.RegionColumn",
}
"""Column classes by kind, which is named in a `Need` and in the manifest. Classes of this package
are given by their path and imported on first use."""


def register(column: type[Column]) -> None:
    """Add a kind of column of another package. A `Need` of a task can then name it."""
    known = KINDS.get(column.kind, column)
    if known is not column:
        raise DataError(
            f"the kind of column {column.kind!r} is already taken. Choose another name."
        )
    KINDS[column.kind] = column


def class_of(kind: str) -> type[Column]:
    found = KINDS[kind]
    if isinstance(found, str):
        module, _, name = found.partition(".")
        found = KINDS[kind] = getattr(import_module(f"headway.data.columns.{module}"), name)
    assert not isinstance(found, str)
    return found


def parse_field(raw: object, name: str, where: str) -> str:
    """Return the text of a field of a document."""
    return str(class_of("field")(name).parse(raw, f"{where}: the field {name!r}"))


# -- conversion of values, whatever their kind


def to_python(value: object) -> object:
    """Convert numbers and arrays of other packages to Python types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "OU":
        return [to_python(one) for one in value.tolist()]
    return list(value) if isinstance(value, tuple) and all_texts(value) else value


def all_texts(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(one, str) for one in values)


def value_text(value: Any, where: str) -> str:
    """Convert a label or a short field to text: numbers and booleans as in JSON, lists of texts
    joined with commas, a missing value as an empty text."""
    if is_missing(value):
        return ""
    if isinstance(value, str):
        return check_unicode(value, where)
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    if isinstance(value, list) and all_texts(value or [""]):
        return check_unicode(", ".join(value), where)
    raise DataError(
        f"{where} contains {json_text(value)}, which is neither text nor a finite number."
    )


def scalar_json(value: object, where: str) -> object:
    """Return a text or a finite number as a JSON value; a missing value becomes an empty text."""
    value = to_python(value)
    value_text(value, where)
    return "" if is_missing(value) else value


def label_text(value: object, where: str) -> str:
    """Return a label or a tag as text on one line."""
    return one_line(value_text(to_python(value), where), where)


def check_unicode(text: str, where: str) -> str:
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise DataError(f"{where} contains an unpaired surrogate, which is not valid Unicode text.")
    return text


def json_text(value: object) -> str:
    """Return the beginning of a value as JSON, for messages."""
    try:
        return json.dumps(value)[:40]
    except (TypeError, ValueError):
        return shown_value(value)


CLIPPED = 48
"""Maximum number of characters of a text in messages and tables: about half a terminal line."""


def clipped(text: str) -> str:
    """Return a text in quotes on one line, cut after `CLIPPED` characters."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= CLIPPED else f'"{line[: CLIPPED - 1]}…"'


def name_media(values: Sequence[object]) -> bool:
    """Whether all values are names of audio files, or all of images or videos."""
    names = [value for value in values if isinstance(value, str)]
    if len(names) < len(values):
        return False
    return all(map(is_audio, names)) or all(map(is_visual, names))
