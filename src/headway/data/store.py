"""Prepared data as it is read in training: the columns of both splits, memory-mapped from files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import Report
from headway.data.columns.column import SPLITS, class_of
from headway.data.hashing import UInt64Array
from headway.data.manifest import DataManifest, load_manifest
from headway.data.media.open_item import ItemFormat
from headway.data.media.store import AudioStore, ImageStore
from headway.data.sniff import MediaType
from headway.data.token_store import TokenStore
from headway.errors import DataError, Option
from headway.specs.needs import MEDIA
from headway.tokens.tokenizer import Tokenizer, Vocabularies

DATA = "data"
"""Name of the folder in a run folder that contains the prepared data."""

IntArray = NDArray[np.int64]
ColumnStore = TokenStore | ImageStore | AudioStore | IntArray | NDArray[np.float32]
Ragged = Literal["text", "other", "source", "target", "tags", "pieces", "shapes", "labels"]


class Columns(Mapping[str, ColumnStore]):
    """Columns of one split, by name. Each has one entry for each of the `n` examples.

    - `text`, `other`, `source`, `target` and the fields of documents: token ids, not truncated and
      without special tokens
    - `label`: index of the label
    - `labels`: indices of several labels
    - `number`: target of a regression
    - `tags`: index of the tag of each word of `text`
    - `pieces`: number of tokens of each word
    - `shapes`: letter case of each word, if the tokenizer ignores case
    - `image`, `video`: pixels
    - `audio`: samples
    """

    def __init__(
        self,
        stores: Mapping[str, ColumnStore],
        *,
        fields: Sequence[str] = (),
        places: Sequence[str] = (),
        hashes: UInt64Array | None = None,
        n_bytes: int = 0,
    ) -> None:
        self._stores = dict(stores)
        self.n = min((len(store) for store in self._stores.values()), default=0)
        self.fields = tuple(fields)
        """Names of the columns that are fields of a document, in order. The last field is the
        body."""

        self.places = places
        """File and line of each example; empty if unknown."""

        self.n_bytes = n_bytes
        """Total number of UTF-8 bytes of the texts; for documents with fields, of their bodies."""

        self._hashes = hashes

    @overload
    def __getitem__(self, name: Ragged) -> TokenStore: ...
    @overload
    def __getitem__(self, name: Literal["label"]) -> IntArray: ...
    @overload
    def __getitem__(self, name: Literal["number"]) -> NDArray[np.float32]: ...
    @overload
    def __getitem__(self, name: Literal["image", "video"]) -> ImageStore: ...
    @overload
    def __getitem__(self, name: Literal["audio"]) -> AudioStore: ...
    @overload
    def __getitem__(self, name: str) -> ColumnStore: ...
    def __getitem__(self, name: str) -> ColumnStore:
        try:
            return self._stores[name]
        except KeyError:
            have = ", ".join(self._stores)
            raise MissingColumn(
                f"the prepared data has no column {name!r}, only {have}: it was prepared for "
                f"another task. Choose another folder: {Option('out')}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        """Return the number of columns, as in every mapping. The number of examples is `n`."""
        return len(self._stores)

    def tokens(self, name: str) -> TokenStore:
        """Return a column of texts by its name."""
        store = self[name]
        assert isinstance(store, TokenStore), name
        return store

    @property
    def body(self) -> TokenStore:
        """Texts of the examples; for documents with fields, the last field."""
        return self.tokens(self.fields[-1] if self.fields else "text")

    @property
    def other(self) -> TokenStore | None:
        """Second texts of pairs; None for single texts."""
        return self["other"] if "other" in self else None  # noqa: SIM401 `get` knows less

    @property
    def parts(self) -> dict[str, TokenStore]:
        """Fields of the documents, by name."""
        return {name: self.tokens(name) for name in self.fields}

    @property
    def media(self) -> ImageStore | AudioStore:
        """Images, videos or audio of the split."""
        for name in MEDIA:
            if isinstance(found := self.get(name), ImageStore | AudioStore):
                return found
        raise MissingColumn(
            "the prepared data has no images, videos or audio: it was prepared for another task. "
            f"Choose another folder: {Option('out')}"
        )

    @property
    def images(self) -> ImageStore:
        assert isinstance(self.media, ImageStore)
        return self.media

    @property
    def audio(self) -> AudioStore:
        assert isinstance(self.media, AudioStore)
        return self.media

    @property
    def hashes(self) -> UInt64Array:
        """Content hashes of the media of each example. For example, all captions of the same image
        have the same hash."""
        assert self._hashes is not None
        return self._hashes

    def with_stores(self, stores: Mapping[str, ColumnStore]) -> Columns:
        """Return a copy in which these columns are replaced or added."""
        return Columns(
            {**self._stores, **stores}, fields=self.fields, places=self.places,
            hashes=self._hashes, n_bytes=self.n_bytes,
        )  # fmt: skip

    def in_memory(self) -> Columns:
        """Return a copy whose texts are in memory instead of in mapped files."""
        texts = {k: v.in_memory() for k, v in self.items() if isinstance(v, TokenStore)}
        return self.with_stores(texts)


class MissingColumn(DataError, KeyError):
    """Error that the prepared data lacks a requested column."""

    __str__ = DataError.__str__


@dataclass(frozen=True)
class PreparedData:
    """Data that has been checked, split and stored for training."""

    train: Columns
    """Training examples."""

    valid: Columns
    """Validation examples."""

    vocab: Vocabularies | None = None
    """Vocabularies of the texts; None if there are no texts."""

    labels: tuple[str, ...] = ()
    """Names of the labels or tags, in the order of their indices."""

    valid_examples: list[dict[str, Any]] = field(default_factory=list)
    """First validation examples as they are in the files, by column names; all of them for pairs.
    Media are represented by their `place`, and long documents by their beginning."""

    report: Report = field(default_factory=Report)
    """Report of the data check."""

    dropped: dict[str, int] = field(default_factory=dict)
    """Number of examples left out, by reason."""

    fingerprint: str = ""
    """Checksum of the contents of the inputs, of the settings of data and tokenizer, and of the
    stored data. It does not depend on the paths of the files."""

    @property
    def is_media(self) -> bool:
        return any(name in self.train for name in MEDIA)

    @property
    def modality(self) -> MediaType:
        """Modality of the media: `image`, `video` or `audio`."""
        found = next(name for name in MEDIA if name in self.train)
        assert found != "text"
        return found

    @property
    def vocabularies(self) -> Vocabularies:
        assert self.vocab is not None, "there are no texts"
        return self.vocab

    @property
    def input_tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the inputs; None if there are no texts."""
        return None if self.vocab is None else self.tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the inputs. There must be texts."""
        return self.vocabularies.source

    @property
    def valid_pairs(self) -> list[tuple[str, str]]:
        return [(one["source"], one["target"]) for one in self.valid_examples]

    def save_tokenizer(self, path: Path) -> None:
        """Save the vocabularies to a file. If there are no texts, nothing is written."""
        if self.vocab is not None:
            self.vocab.save(path)


class ImpossibleData(DataError):
    """Error that training on the data is impossible. `report` has all findings."""

    def __init__(self, report: Report) -> None:
        errors = [one for one in report.findings if one.level == "error"]
        text = " ".join(one.text for one in errors)
        super().__init__("\n".join([text, *(line for one in errors for line in one.shown())]))
        self.report = report


def load_prepared(folder: Path) -> PreparedData:
    """Load the prepared data from the folder of a run."""
    data = folder / DATA
    made = load_manifest(data)
    lines = (data / "valid.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    examples = [json.loads(line) for line in lines]
    words = data / "tokenizer.json"
    train, valid = (open_columns(data, split, made) for split in SPLITS)
    return PreparedData(
        train=train,
        valid=valid,
        vocab=Vocabularies.load(words) if words.exists() else None,
        labels=tuple(made.get("labels", ())),
        valid_examples=examples,
        report=Report.from_dict(json.loads((data / "report.json").read_text(encoding="utf-8"))),
        dropped=made.get("dropped", {}),
        fingerprint=made["fingerprint"],
    )


def open_columns(folder: Path, split: str, made: DataManifest) -> Columns:
    """Open a split of prepared data as described in its manifest (`made`)."""
    stores: dict[str, ColumnStore] = {}
    hashes = None
    form = _form(made["form"]) if "form" in made else None
    for name, facts in made["columns"].items():
        column = class_of(facts["kind"])
        known = {**facts, "name": name, "form": form}
        stores[name] = column.open(folder, split, known)
        if hashes is None:
            hashes = column.hashes(folder, split, known)
    n_bytes = made["n_bytes"][SPLITS.index(split)]
    return Columns(stores, fields=made["fields"], n_bytes=n_bytes, hashes=hashes)


def _form(values: DataManifest) -> ItemFormat:
    size = values["size"]
    return ItemFormat(**{**values, "size": None if size is None else tuple(size)})
