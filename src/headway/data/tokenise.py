"""Items to token arrays in files, block by block, counting what is left out on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.example import Example, Source
from headway.data.report import Finding, Report
from headway.data.survey import is_empty
from headway.data.tally import LIMITS, unknown_text
from headway.data.textcheck import listed
from headway.data.tokens import lengths_file, side, token_dtype, tokens_file
from headway.data.workplace import GrowingFiles
from headway.errors import DataError
from headway.text.tokenizer import Tokenizer
from headway.text.words import Flat

SHOWN = {"documents": 2_000}
MOST_SHOWN = 20_000
"""Validation examples kept as text."""

MOST_UNKNOWN = 1_000
SPLITS = ("train", "valid")


@dataclass(frozen=True)
class Routed:
    """An item and where it goes."""

    item: Example
    valid: bool
    first: bool
    """Whether its example begins with it."""


class Router:
    """Which items are for training and which for validation, where both come from one source:
    by example, or by characters, so many of which are for training. Of `blank` examples, which may
    have many pieces, one without text is left, to be counted."""

    def __init__(
        self, held_out: NDArray[np.bool_], cut: int | None, blank: NDArray[np.bool_] | None = None
    ) -> None:
        self.held_out = held_out
        self.cut = cut
        self.blank = np.zeros(len(held_out), np.bool_) if blank is None else blank
        self.row = 0
        self.characters = 0
        self.first = True

    def route(self, block: list[Example]) -> list[Routed]:
        routed: list[Routed] = []
        for item in block:
            if self.row < len(self.blank) and self.blank[self.row]:
                item = item._replace(values=dict.fromkeys(item.values, ""))
                routed += [self._blank(item)] * item.ends
            elif self.cut is not None:
                routed += self._by_character(item)
            else:
                routed.append(self._by_row(item))
            self.first = item.ends
            self.row += item.ends
            self.characters += len(item.values.get("text", ""))
        return routed

    def _blank(self, item: Example) -> Routed:
        behind = self.cut is not None and self.characters >= self.cut
        return Routed(item, bool(self.held_out[self.row]) or behind, True)

    def _by_row(self, item: Example) -> Routed:
        if self.row >= len(self.held_out):
            raise DataError("the training files have grown while they were read. Start again.")
        return Routed(item, bool(self.held_out[self.row]), self.first)

    def _by_character(self, item: Example) -> Iterator[Routed]:
        assert self.cut is not None
        left = self.cut - self.characters
        text = item.text("text")
        if left >= len(text):
            # A document that is cut exactly behind this piece ends here for training.
            ends = item.ends or left == len(text)
            yield Routed(item._replace(ends=ends), False, self.first)
        elif left <= 0:
            yield Routed(item, True, self.first or left == 0)
        else:
            yield Routed(item._replace(values={"text": text[:left]}, ends=True), False, self.first)
            yield Routed(item._replace(values={"text": text[left:]}), True, True)


@dataclass
class Count:
    """What has been done, as JSON keeps it."""

    blocks: int = 0
    n: list[int] = field(default_factory=lambda: [0, 0])
    """Examples of training and validation; and so the following."""

    tokens: list[int] = field(default_factory=lambda: [0, 0])
    n_bytes: list[int] = field(default_factory=lambda: [0, 0])
    characters: int = 0
    unfinished: list[int] = field(default_factory=lambda: [0, 0])
    """Tokens so far of a document that goes on in the next block."""

    dropped: dict[str, int] = field(default_factory=lambda: {"empty": 0, "validation_empty": 0})
    over_long: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, LIMITS), 0))
    unknown_tokens: int = 0
    unknown_characters: list[str] = field(default_factory=list)
    shown: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Tokeniser:
    """Writes `train.*` and `valid.*`: a token store for each column, numbers of labels, and for
    tagged sentences the tags and the number of pieces of each word."""

    def __init__(
        self, source: Source, tokenizer: Tokenizer, labels: Mapping[str, int], folder: Path,
        count: Count, files: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`count` and `files` are what an earlier attempt recorded."""
        self.source = source
        self.tokenizer = tokenizer
        self.labels = labels
        self.count = count
        self.files = GrowingFiles(folder, files or {})
        self.dtype = token_dtype(tokenizer.vocab_size)
        for split in SPLITS:
            for column in [*source.columns, *(["tags", "pieces"] * (source.kind == "tagged"))]:
                name = side(Path(split), column)
                self.files.start(str(tokens_file(name)))
                self.files.start(str(lengths_file(name)))
            if self._labelled:
                self.files.start(f"{split}.labels")
        self.files.start("valid.jsonl")

    @property
    def _labelled(self) -> bool:
        return self.source.kind in ("labelled", "fields") and bool(self.labels)

    def __enter__(self) -> Tokeniser:
        return self

    def __exit__(self, *exception: object) -> None:
        self.files.close()

    def add(self, routed: list[Routed]) -> None:
        """The next block."""
        kept: list[Routed] = []
        for one in routed:
            if one.first and one.item.ends and is_empty(one.item, self.source):
                self.count.dropped["validation_empty" if one.valid else "empty"] += 1
            else:
                kept.append(one)
        if kept:
            self._encode(kept)
        self.count.blocks += 1

    def _encode(self, kept: list[Routed]) -> None:
        valid = np.array([one.valid for one in kept], np.bool_)
        ends = np.array([one.item.ends for one in kept], np.bool_)
        items = [one.item for one in kept]
        columns: dict[str, Flat] = {}
        if self.source.kind == "tagged":
            columns["text"], columns["pieces"] = self.tokenizer.encode_words(
                [item.several("words") for item in items]
            )
            columns["tags"] = Flat.of(
                [[self._label(tag, item) for tag in item.several("tags")] for item in items]
            )
        else:
            goes_on = np.array([not one.first for one in kept], np.bool_)
            for column in self.source.columns:
                texts = [item.text(column) for item in items]
                columns[column] = self.tokenizer.encode_parts(texts, goes_on)
        for number, which in enumerate((~valid, valid)):
            self._write(number, columns, which, ends[which])
            if self._labelled:
                numbers = [self._label(item.text("label"), item) for item in _where(items, which)]
                data = np.array(numbers, "<i4").tobytes()
                self.files.write(f"{SPLITS[number]}.labels", data)
        self._measure(kept, columns)

    def _label(self, name: str, item: Example) -> int:
        if name not in self.labels:
            what = "tag" if self.source.kind == "tagged" else "label"
            if not name:
                field = self.source.settings.data.label_field
                raise DataError(f"{item.place} has no {what} ({field!r}).")
            known = listed(list(self.labels))
            raise DataError(f"{item.place}: unknown {what} {name!r}. Known: {known}.")
        return self.labels[name]

    def _write(
        self, number: int, columns: Mapping[str, Flat], rows: NDArray[np.bool_],
        ends: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """The rows of one split. Pieces of a document become one sequence."""
        totals = np.zeros(int(ends.sum()), np.int64)
        for column, flat in columns.items():
            part = flat.rows(rows)
            lengths = part.lengths
            if self.source.kind == "documents":
                done = np.cumsum(lengths) + self.count.unfinished[number]
                lengths = np.diff(done[ends], prepend=0)
                if len(done):
                    self.count.unfinished[number] = int(done[-1] - (done[ends].max(initial=0)))
            dtype = self.dtype if column not in ("tags", "pieces") else "<u4"
            name = side(Path(SPLITS[number]), column)
            self.files.write(str(tokens_file(name)), part.ids.astype(dtype).tobytes())
            self.files.write(str(lengths_file(name)), lengths.astype("<i8").tobytes())
            if column not in ("tags", "pieces"):
                totals += lengths
                self.count.tokens[number] += len(part.ids)
        self.count.n[number] += len(totals)
        if number == 0:
            for limit in LIMITS:
                self.count.over_long[str(limit)] += int((totals > limit).sum())

    def _measure(self, kept: list[Routed], columns: Mapping[str, Flat]) -> None:
        """Bytes and characters; what the tokenizer lacks; the examples that are shown."""
        texts = self.source.columns
        body = texts[-1] if self.source.kind == "fields" else texts[0]
        shown: list[str] = []
        most = SHOWN.get(self.source.kind, MOST_SHOWN)
        for one in kept:
            self.count.n_bytes[one.valid] += len(one.item.text(body).encode())
            if not one.valid:
                self.count.characters += sum(len(one.item.values[name]) for name in texts)
            elif one.first and self.count.shown < most:
                shown.append(json.dumps(self.source.shown(one.item)) + "\n")
                self.count.shown += 1
        self.files.write("valid.jsonl", "".join(shown).encode())
        if not self.tokenizer.covers_everything:
            for column in texts:
                self._look_for_unknown([one.item.text(column) for one in kept], columns[column])

    def _look_for_unknown(self, texts: list[str], flat: Flat) -> None:
        where = np.flatnonzero(flat.ids == self.tokenizer.unk)
        self.count.unknown_tokens += len(where)
        found = set(self.count.unknown_characters)
        for row in np.unique(np.searchsorted(np.cumsum(flat.lengths), where, side="right")):
            if len(found) < MOST_UNKNOWN:
                found |= self.tokenizer.unknown_characters(texts[row])
        self.count.unknown_characters = sorted(found)

    def add_to(self, report: Report) -> None:
        """The part of the report that needs a tokenizer."""
        count = self.count
        for number, which in enumerate(("training", "validation")):
            if not count.n[number]:
                text = f"no {which} {report.unit} are left. Give more, or others with --valid-text."
                report.findings.append(Finding("error", "nothing-left", 0, text))
        report.over_long = {int(limit): n for limit, n in count.over_long.items()}
        report.sizes |= {
            "tokens": count.tokens[0], "valid_tokens": count.tokens[1],
            "characters": count.characters, "vocabulary": self.tokenizer.vocab_size,
            "examples": count.n[0], "valid_examples": count.n[1],
        }  # fmt: skip
        if count.unknown_tokens:
            text = unknown_text(count.unknown_tokens, set(count.unknown_characters))
            report.findings.append(Finding("warning", "unknown", count.unknown_tokens, text))


def _where(items: list[Example], rows: NDArray[np.bool_]) -> list[Example]:
    return [items[i] for i in np.flatnonzero(rows)]
