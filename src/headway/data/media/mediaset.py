"""Media of one split as arrays, and the files they are in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data.fold import Hashes
from headway.data.media.decoding import UNREADABLE, VALUES, read_facts
from headway.data.media.reading import Form
from headway.data.media.source import Target
from headway.data.media.store import PictureStore, SoundStore
from headway.data.tokens import TokenStore, side


@dataclass(frozen=True)
class MediaSet:
    """One split."""

    items: PictureStore | SoundStore
    hashes: Hashes
    """Equal for items that hold the same: several captions of one picture, say."""

    labels: NDArray[np.int64] | None = None
    """The number of the label of each item."""

    texts: TokenStore | None = None
    """Ids without special tokens."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def pictures(self) -> PictureStore:
        assert isinstance(self.items, PictureStore)
        return self.items

    @property
    def sounds(self) -> SoundStore:
        assert isinstance(self.items, SoundStore)
        return self.items


def open_set(folder: Path, split: str, form: Form, target: Target, dtype: str) -> MediaSet:
    """A split of what lies in the folder; `dtype` is that of tokens."""
    facts = read_facts(folder)
    facts = facts[facts["marks"] & UNREADABLE == 0]
    rows = np.fromfile(folder / f"{split}.rows", "<i8")
    store: PictureStore | SoundStore
    if form.what == "sounds":
        store = SoundStore.open(folder / VALUES, facts["height"].astype(np.int64), form.rate)
    else:
        assert form.size is not None
        shape = (form.frames, form.channels, *form.size)
        store = PictureStore.open(folder / VALUES, shape)
    labels, texts = None, None
    if target == "label":
        labels = np.fromfile(folder / f"{split}.labels", "<i4").astype(np.int64)
    elif target == "text" and (folder / f"{split}.texts.tokens").exists():
        texts = TokenStore.open(side(folder / split, "texts"), dtype)
    return MediaSet(store.rows(rows), facts["hash"][rows], labels, texts)
