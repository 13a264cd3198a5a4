"""Texts of one split as arrays, and the files they are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.tokens import TokenStore, side


@dataclass(frozen=True)
class TextSet:
    """One split. Token ids are without special tokens, and no text is cut."""

    text: TokenStore
    """Of documents made of fields: the body."""

    other: TokenStore | None = None
    """The second texts, where there are pairs of texts."""

    labels: NDArray[np.int64] | None = None
    """The number of the label of each example."""

    pieces: TokenStore | None = None
    """Of tagged sentences: how many tokens each word has."""

    tags: TokenStore | None = None
    """Of tagged sentences: the number of the tag of each word."""

    fields: Mapping[str, TokenStore] = field(default_factory=dict)
    """Of documents made of fields: each field; an empty sequence where a document lacks it."""

    n_bytes: int = 0
    """UTF-8 bytes of `text`."""

    def __len__(self) -> int:
        return len(self.text)


def open_set(folder: Path, number: int, facts: Mapping[str, Any]) -> TextSet:
    """The first (training) or second (validation) split, by what is known of its making."""
    split = ("train", "valid")[number]

    def store(name: str, dtype: str = facts["dtype"]) -> TokenStore:
        return TokenStore.open(side(folder / split, name), dtype, "<i8")

    columns, kind = facts["columns"], facts["kind"]
    labels = None
    if (folder / f"{split}.labels").exists():
        labels = np.fromfile(folder / f"{split}.labels", "<i4").astype(np.int64)
    tagged = kind == "tagged"
    fields = {name: store(name) for name in columns} if kind == "fields" else {}
    return TextSet(
        text=store(columns[-1]) if kind == "fields" else store("text"),
        other=store("other") if kind != "fields" and "other" in columns else None,
        labels=labels,
        pieces=store("pieces", "<u4") if tagged else None,
        tags=store("tags", "<u4") if tagged else None,
        fields=fields,
        n_bytes=facts["n_bytes"][number],
    )


def in_memory(opened: TextSet) -> TextSet:
    """The same without files behind it."""

    def copied(store: TokenStore | None) -> TokenStore | None:
        return None if store is None else store.in_memory()

    return replace(
        opened,
        text=opened.text.in_memory(),
        other=copied(opened.other),
        pieces=copied(opened.pieces),
        tags=copied(opened.tags),
        fields={name: store.in_memory() for name, store in opened.fields.items()},
    )
