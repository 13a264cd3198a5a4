"""Columns of tagged sentences: their words, and one tag per word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import counted
from headway.data.columns.column import (
    Column,
    Rows,
    Sample,
    StoreFacts,
    StoreTools,
    TokenColumn,
    Value,
    check_unicode,
    label_text,
    to_python,
)
from headway.data.columns.label import add_classes, numbers_of
from headway.data.columns.text import text_facts
from headway.data.table import is_missing, shown_value
from headway.errors import DataError

if TYPE_CHECKING:
    from headway.data.check import Findings
    from headway.data.scan import DatasetScan
    from headway.tokens.tokenizer import Tokenizer
    from headway.tokens.word_cache import FlatIds

TEXT = "text"
"""Name of the array that stores the tokens of the words."""


@dataclass(frozen=True)
class ListColumn(Column):
    """Column with a list of texts per example."""

    default: ClassVar[Value] = ()

    def matches(self, sample: Sample) -> str | None:
        lists = all(isinstance(value, list) for value in sample.values)
        return None if lists else "not all values are lists"

    def to_json(self, raw: object, where: str) -> object:
        found = super().to_json(raw, where)
        if is_missing(raw):
            return []
        if not isinstance(found, list):
            raise _not_a_list(raw, where)
        return found


@dataclass(frozen=True)
class WordsColumn(ListColumn, TokenColumn):
    """Column with the words of a sentence. It stores the tokens of the words, the number of tokens
    of each word, and, if the tokenizer ignores case, the letter case of each word."""

    kind: ClassVar[str] = "words"
    is_words: ClassVar[bool] = True

    def parse(self, raw: object, where: str) -> Value:
        found = to_python(raw)
        if not isinstance(found, list):
            raise _not_a_list(raw, where)
        if not all(isinstance(word, str) for word in found):
            raise DataError(f"{where} must be a list of strings, not {str(found)[:40]}.")
        return [check_unicode(str(word), where) for word in found]

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        tokenizer = tools.tokenizers[TEXT]
        found = {
            TEXT: text_facts(tokenizer, tools.lengths),
            "pieces": {"kind": "pieces", "dtype": "<u4", "lengths": tools.lengths},
        }
        if not tokenizer.is_cased:
            found["shapes"] = {"kind": "shapes", "dtype": "<u2", "lengths": tools.lengths}
        return found

    def tokenize(
        self, values: Sequence[Sequence[str]], continues: NDArray[np.bool_], tokenizer: Tokenizer
    ) -> dict[str, FlatIds]:
        found = tokenizer.encode_words(values)._asdict()
        return {name: flat for name, flat in found.items() if flat is not None}


@dataclass(frozen=True)
class TagsColumn(ListColumn):
    """Column with one tag per word."""

    kind: ClassVar[str] = "tags"
    is_counted: ClassVar[bool] = True

    def parse(self, raw: object, where: str) -> Value:
        found = to_python(raw)
        if not isinstance(found, list):
            raise _not_a_list(raw, where)
        return [label_text(tag, where) for tag in found]

    def scan(self, value: Value) -> Sequence[str]:
        return list(value)

    def findings(self, scan: DatasetScan, report: Findings) -> None:
        names = scan.labels
        if names.misfits:
            text = (
                f"{counted(names.misfits, 'tags', report.which)} "
                f"{'does' if names.misfits == 1 else 'do'} not fit the scheme "
                f"{scan.source.scheme} and are converted as closely as possible; the first is at "
                f"{names.first_misfit}."
            )
            report.add("warning", "misfits", names.misfits, text)
        add_classes(scan, report, "tag")

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<u4", "lengths": tools.lengths}}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        return {self.name: numbers_of(values, places, tools.labels, "tag")}


def _not_a_list(raw: object, where: str) -> DataError:
    return DataError(f"{where} is {shown_value(raw)}, but a list is needed.")
