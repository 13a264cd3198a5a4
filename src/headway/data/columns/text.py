"""Columns of texts that are tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from headway.data.columns.column import (
    Sample,
    StoreFacts,
    StoreTools,
    TokenColumn,
    Value,
    all_texts,
    check_unicode,
    clipped,
    json_text,
    name_media,
    to_python,
    value_text,
)
from headway.data.sniff import is_number
from headway.data.table import is_missing
from headway.errors import DataError

if TYPE_CHECKING:
    from headway.tokens.tokenizer import Tokenizer
    from headway.tokens.word_cache import FlatIds


@dataclass(frozen=True)
class TextColumn(TokenColumn):
    """Column with a text per example."""

    kind: ClassVar[str] = "text"
    is_text: ClassVar[bool] = True
    item_axes: ClassVar[int | None] = 0
    default: ClassVar[Value] = ""

    def matches(self, sample: Sample) -> str | None:
        if not all(isinstance(value, str) for value in sample.values):
            return "not all values are texts"
        if name_media(sample.values):
            return "the values name media files"
        if not sample.typed and all(map(is_number, sample.values)):
            return "all values are numbers"
        return None

    def parse(self, raw: object, where: str) -> Value:
        raw = to_python(raw)
        if isinstance(raw, str):
            return check_unicode(raw, where)
        if is_missing(raw):
            return ""
        raise DataError(f"{where} contains {json_text(raw)}, which is not text.")

    def is_plain(self, value: object) -> bool:
        return type(value) is str and value.isascii()

    def to_json(self, raw: object, where: str) -> object:
        return self.parse(raw, where)

    def show(self, value: Value) -> str:
        if not isinstance(value, str):
            return super().show(value)
        words = len(value.split())
        return f"{clipped(value)}   {words:,} word{'s' * (words != 1)}"

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: text_facts(tools.tokenizers[self.name], tools.lengths)}

    def tokenize(
        self, texts: Sequence[str], continues: NDArray[np.bool_], tokenizer: Tokenizer
    ) -> dict[str, FlatIds]:
        return {self.name: tokenizer.encode_parts(texts, continues)}


@dataclass(frozen=True)
class CaptionColumn(TextColumn):
    """Column with one or several texts per image, video or recording. Each text becomes a separate
    example."""

    def matches(self, sample: Sample) -> str | None:
        if all(isinstance(value, list) and all_texts(value) for value in sample.values):
            return None
        return super().matches(sample)

    def parse(self, raw: object, where: str) -> Value:
        raw = to_python(raw)
        texts = (raw or [""]) if isinstance(raw, list) else [raw]
        return [value_text(text, where).strip() for text in texts]

    def is_plain(self, value: object) -> bool:
        return False

    def to_json(self, raw: object, where: str) -> object:
        raw = to_python(raw)
        if isinstance(raw, list) and all_texts(raw):
            return [TextColumn.parse(self, text, where) for text in raw]
        return TextColumn.parse(self, raw, where)


def text_facts(tokenizer: Tokenizer, lengths: str) -> StoreFacts:
    from headway.data.token_store import token_dtype

    return {"kind": "text", "dtype": token_dtype(tokenizer.vocab_size), "lengths": lengths}
