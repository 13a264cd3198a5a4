"""Model inputs for single texts in memory, for inspection, studies and proofs.

The preprocessor adds special tokens around texts, between two texts and before fields, as in
training and prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headway.data.store import Columns
from headway.data.token_store import TokenStore
from headway.tasks.fill_answers import gaps_in
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.preprocess.text import TextDataset, TextPreprocessor, parse_texts
from headway.tasks.tag_answers import sentence_of, word_rule
from headway.tasks.tags import columns_of, encoded, words_of_store

THE_TEXT = "the text"
"""Name of the text in error messages."""


class TextItem(NamedTuple):
    ids: list[int]
    segments: Sequence[int] = ()
    """Segment of each token: 1 for the second text of a pair, otherwise 0. For models that read
    word shapes: the word shape of each token."""

    rows: list[int] | None = None
    """Positions that each have a prediction; None: one prediction for the whole text."""

    example: int = 0
    """Index of the text that this window belongs to."""

    needed: int = 0
    """Number of tokens of the whole text, which may exceed the length of the window."""


def text_items(run: LoadedRun, lines: Sequence[str], max_len: int | None = None) -> list[TextItem]:
    """Return the items for lines of user input: a text, two texts separated by a tab, or JSON with
    fields. Long texts are split into windows."""
    intake = _preprocessor(run, max_len)
    texts = [parse_texts(line, THE_TEXT, run.settings.data) for line in lines]
    return list(_items(intake.input_dataset(intake.columns(texts))))


def frame_tokens(
    run: LoadedRun, texts: Sequence[Sequence[int]], others: Sequence[Sequence[int]] | None = None
) -> list[TextItem]:
    """Return the items for tokenized texts, or pairs of texts. Special tokens are added."""
    sides = {"text": texts} if others is None else {"text": texts, "other": others}
    columns = Columns({name: TokenStore.of(side) for name, side in sides.items()})
    return list(_items(_preprocessor(run, None).input_dataset(columns)))


def gapped_item(run: LoadedRun, line: str) -> TextItem:
    """Return an item that predicts the gaps of a text, or every token if the text has no gaps."""
    tokens, gaps = gaps_in(line, run.vocab.source)
    item = frame_tokens(run, [tokens])[0]
    before = len(run.vocab.source.text_ends[0])
    rows = [before + gap for gap in gaps] or list(range(before, len(item.ids)))
    return item._replace(rows=rows)


def tagged_item(run: LoadedRun, line: str) -> TextItem:
    """Return an item that predicts a tag for each word of a text, at the first sub-word token of
    the word."""
    tokenizer = run.vocab.source
    sentence = sentence_of(line, THE_TEXT, word_rule(run.folder)).words
    words = encoded([sentence], tokenizer, run.settings.tag)
    read, first, _ = words_of_store(columns_of(words), tokenizer, run.shape).reader.read(
        np.arange(1)
    )
    needed = len(tokenizer.as_text(words.text.ids.tolist()))
    return TextItem(read.tokens.tolist(), read.segments.tolist(), first.tolist(), needed=needed)


def _preprocessor(run: LoadedRun, max_len: int | None) -> TextPreprocessor:
    intake = TextPreprocessor.of(run.settings, run.vocab.source)
    return intake if max_len is None else replace(intake, max_len=min(max_len, intake.max_len))


def _items(cuts: TextDataset) -> Iterator[TextItem]:
    for row, example in enumerate(cuts.example_index.tolist()):
        stream = cuts.collate(np.array([row]))
        ids = stream.values.tolist()
        known = stream.segments_N
        segments = [0] * len(ids) if known is None else known.tolist()
        yield TextItem(ids, segments, example=example, needed=int(cuts.full_lengths[example]))
