"""Base class of the kinds of columns, and the registry of kinds.

A column is something that a task reads, such as its text or its label. It has a name in the task, a
setting that names it in files, and a class for its kind. The class decides which values match,
parses a cell of any data source, checks the values, and stores them for training. To add a kind,
write a class and `register` it.
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

from headway.data.sniff import ALL_MEDIA, is_media_file, media_types
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
"""Parsed value of a cell. It is a text, a label, a list of words or tags, or an image, video or
audio item; stored media are given by their number. Registered columns may return other types."""

SPLITS = ("train", "valid")

Rows: TypeAlias = "FlatIds | NDArray[Any]"
"""Encoded values to store: sequences of different lengths, or one number per example."""

StoreFacts = dict[str, str]
"""Description of a stored array in the manifest: its `kind` and `dtype`, and the dtype of its
`lengths` if it stores sequences of different lengths."""


@dataclass(frozen=True)
class Sample:
    """First values of a table column, without missing and empty ones."""

    values: Sequence[object]
    typed: bool = True
    """Whether values keep their types; False if all values are texts, as in CSV files."""

    folder: Path | None = None
    """Folder of the file, to which paths in the values are relative; None for a table in memory."""


@dataclass(frozen=True)
class StoreTools:
    """Tokenizers, class indices and number formats with which columns encode their values."""

    tokenizers: Mapping[str, Tokenizer]
    """Tokenizers by the names of the columns that hold text."""

    labels: Mapping[str, int]
    """Index of each label or tag, by its name."""

    lengths: str = "<i4"
    """NumPy data type of stored lengths."""


@dataclass(frozen=True)
class Column(ABC):
    """Column that a task reads. Each kind of column is a subclass."""

    kind: ClassVar[str]
    """Name of the kind, used by tasks and in the manifest of prepared data."""

    is_text: ClassVar[bool] = False
    """Whether the values are texts that are tokenized."""

    is_media: ClassVar[bool] = False
    """Whether the values are images, videos or audio."""

    noun: ClassVar[str] = ""
    """Noun with its article for one value in messages, such as `an image`. Empty for values that
    are not media."""

    is_image: ClassVar[bool] = False
    is_audio: ClassVar[bool] = False
    is_moving: ClassVar[bool] = False
    """Whether the values are videos."""

    item_axes: ClassVar[int | None] = None
    """Maximum number of axes of an array in memory that is one value. An array with more axes holds
    several values. None: no limit."""

    is_label: ClassVar[bool] = False
    """Whether the values are targets (labels or numbers)."""

    is_class: ClassVar[bool] = False
    """Whether a value is one class or a set of classes, rather than a number."""

    is_counted: ClassVar[bool] = False
    """Whether the data check counts the labels that `scan` finds in this column."""

    is_several: ClassVar[bool] = False
    """Whether an example may have any number of labels."""

    is_field: ClassVar[bool] = False
    """Whether the column is a field of a document. A document needs at least one non-empty
    field."""

    is_words: ClassVar[bool] = False
    """Whether the values are the words of a sentence."""

    is_region: ClassVar[bool] = False
    """Whether the column selects a part of a media file instead of having a value."""

    is_named_by_need: ClassVar[bool] = True
    """Whether stored values are named after the task's `Need`; otherwise they are named after the
    kind of column."""

    default: ClassVar[Value | None] = None
    """Value of an empty row; None if an empty row has no value for this column."""

    name: str
    """Name of the values in the task, such as `text` or `label`."""

    setting: str = ""
    """Setting in `DataSettings` that names the column in a file; empty if it cannot be renamed."""

    aliases: tuple[str, ...] = ()
    """Other names under which the column is recognized."""

    optional: bool = False
    """Whether the column may be missing from the data."""

    given_name: str = field(default="", kw_only=True)
    """Name given by the user, or stored with a run. It is tried before all other names."""

    is_strict: bool = field(default=False, kw_only=True)
    """Whether `given_name` is the only accepted name."""

    @property
    def accepted_names(self) -> tuple[str, ...]:
        return (*filter(None, [self.given_name]), self.name, *self.aliases)

    @property
    def option(self) -> str:
        """Name of the column as a command-line option."""
        return self.setting.removesuffix("_field")

    @property
    def python_names(self) -> tuple[str, ...]:
        """Names of the Python keyword arguments that name the column."""
        return (self.name,)

    def with_settings(self, data: DataSettings) -> Self:
        """Return the column configured by those settings that affect its values, such as
        separators."""
        return self

    @abstractmethod
    def matches(self, sample: Sample) -> str | None:
        """Return None if the sampled values can belong to this kind of column, otherwise the reason
        why not."""

    @abstractmethod
    def parse(self, raw: object, where: str) -> Value:
        """Convert a cell of a file, a table in memory or an input for prediction.

        A missing value becomes an empty value. An invalid value raises a `DataError` that begins
        with `where`.
        """

    def is_plain(self, value: object) -> bool:
        """Whether `parse` would return the value unchanged. This quick test may return False for
        values that are parsed unchanged, but never True for values that `parse` changes."""
        return False

    def to_json(self, raw: object, where: str) -> object:
        """Convert a cell of a table in memory to a JSON value. The table is written to a file, from
        which `parse` reads the value."""
        if isinstance(raw, np.ndarray):
            raw = raw.tolist()
        if isinstance(raw, list | tuple):
            return [scalar_json(one, where) for one in raw]
        return scalar_json(raw, where)

    def could_hold(self, value: object) -> bool:
        """Whether a table column with an accepted name can be this column, given its first
        value."""
        return True

    def show(self, value: Value) -> str:
        """Return a short text that represents a value in the summary of columns."""
        if isinstance(value, list):
            return f"{clipped(' '.join(map(str, value)))}   {len(value):,} words"
        return clipped(value) if isinstance(value, str) else shown_value(value)

    # -- data check

    def scan(self, value: Value) -> Sequence[str]:
        """Return the labels in a value, which the data check counts. Empty for columns without
        labels."""
        return ()

    def findings(self, scan: DatasetScan, report: Findings) -> None:  # noqa: B027 (optional)
        """Add findings about unusual values of a split to the report."""

    def hint(self, scan: DatasetScan) -> str:
        """Return a hint that another kind of column fits the values better; empty if there is
        none."""
        return ""

    # -- prepared data

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        """Return descriptions of the arrays that store the values, by array name."""
        return {}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        """Return the encoded values for each array of `stores`, except for token arrays, which
        `tokenize` returns."""
        return {}

    def writer(self, files: GrowingFiles, tools: StoreTools) -> ColumnWriter:
        """Return a writer that appends values to the files of the column. Files of an interrupted
        attempt are continued."""
        return ColumnWriter(self, files, tools)

    @classmethod
    def open(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> Any:
        """Open a stored array of a split. `facts`: its description in the manifest, plus its `name`
        and, for media, their `form`."""
        from headway.data.token_store import TokenStore

        if "lengths" in facts:
            return TokenStore.open(_path(folder, split, facts), facts["dtype"], facts["lengths"])
        return cls.from_stored(cls.stored(folder, split, facts))

    @staticmethod
    def stored(folder: Path, split: str, facts: Mapping[str, Any]) -> NDArray[Any]:
        """Return the stored numbers of a split, one per example."""
        return np.fromfile(_path(folder, split, facts), facts["dtype"])

    @classmethod
    def hashes(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> NDArray[Any] | None:
        """Return a content hash of each example; None if the kind of column has no hashes."""
        return None

    @classmethod
    def from_stored(cls, values: NDArray[Any]) -> NDArray[Any]:
        """Convert stored numbers, one per example, to the numbers used in training."""
        return values


class TokenColumn(Column):
    """Column whose values are stored as tokens."""

    @abstractmethod
    def tokenize(
        self, values: Sequence[Any], continues: NDArray[np.bool_], tokenizer: Tokenizer
    ) -> dict[str, FlatIds]:
        """Return the tokens of the values, by array name. `continues`: whether each value continues
        the previous one, so that no space is inserted before it."""


class ColumnWriter:
    """Appends values to the files of one column, for training and validation data."""

    def __init__(self, column: Column, files: GrowingFiles, tools: StoreTools) -> None:
        self.column, self.files, self.tools = column, files, tools
        self.stores = column.stores(tools)
        for split in SPLITS:
            for name, facts in self.stores.items():
                for file in stored_files(split, name, facts):
                    files.start(file)

    def encode(self, examples: Sequence[Example]) -> dict[str, Rows]:
        """Return the encoded values of examples for each stored array, except for token arrays."""
        name = self.column.name
        values = [one.values.get(name, "") for one in examples]
        return self.column.encode(values, [one.place for one in examples], self.tools)

    def append(
        self, split: str, rows: Mapping[str, Rows], lengths: NDArray[np.int64] | None = None
    ) -> None:
        """Append encoded values to a split. `lengths`: lengths of the sequences, if several entries
        of `rows` form one sequence; by default, each entry is a sequence."""
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
    """Return the names of the files of a stored array. An array of sequences has two files, for
    values and for lengths; other arrays have one."""
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
"""Column classes by kind. Tasks and manifests name the kind. Classes of this package are given by
their module and name, and are imported on first use."""


def register(column: type[Column]) -> None:
    """Register a kind of column, for example from another package, so that tasks can use it."""
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


# -- conversion of values of any kind


def to_python(value: object) -> object:
    """Return a NumPy scalar, array of texts or tuple of texts as a Python value; other values are
    returned unchanged."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "OU":
        return [to_python(one) for one in value.tolist()]
    return list(value) if isinstance(value, tuple) and all_texts(value) else value


def all_texts(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(one, str) for one in values)


def value_text(value: Any, where: str) -> str:
    """Return a label or a short field as text. Numbers and booleans are written as in JSON, lists
    of texts are joined with commas, and a missing value becomes an empty text."""
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
    """Return the first characters of a value in JSON notation, for messages."""
    try:
        return json.dumps(value)[:40]
    except (TypeError, ValueError):
        return shown_value(value)


CLIPPED = 48
"""Maximum number of characters of a text in messages and tables: about half a terminal line."""


def clipped(text: str) -> str:
    """Return a text in quotes on one line, shortened to about `CLIPPED` characters."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= CLIPPED else f'"{line[: CLIPPED - 1]}…"'


def name_media(values: Sequence[object]) -> bool:
    """Whether all values are names of media files that may have the same modality."""
    names = [value for value in values if isinstance(value, str) and is_media_file(value)]
    shared = set(ALL_MEDIA).intersection(*map(media_types, names))
    return len(names) == len(values) and bool(shared)
