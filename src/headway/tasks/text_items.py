"""Texts in memory as the model of a run reads them, one by one: to look at, to study, to prove by.

What stands around a text, between two and in front of fields is the intake's business, as in
training and in answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headway.data.store import Columns
from headway.data.token_store import TokenStore
from headway.tasks.fill_answers import gaps_in
from headway.tasks.intake_text import TextCuts, TextIntake, parse_texts
from headway.tasks.opened import Opened
from headway.tasks.tag_answers import sentence_of, word_rule
from headway.tasks.tags import encoded, word_items

THE_TEXT = "the text"
"""What it is called in errors."""


class TextItem(NamedTuple):
    ids: list[int]
    segments: Sequence[int] = ()
    """1 for the second text of a pair, where the model tells them apart, else 0; or the shape of
    the word that a token is of, where the model reads that."""

    rows: list[int] | None = None
    """Those that are asked; None: the text as a whole."""

    example: int = 0
    """The number of the text that it is, or is a window of."""

    needed: int = 0
    """Rows of that text, read whole."""


def text_items(run: Opened, lines: Sequence[str], max_len: int | None = None) -> list[TextItem]:
    """Lines as people give them: a tab between two texts, or JSON with fields; in windows where
    they are too long."""
    intake = _intake(run, max_len)
    texts = [parse_texts(line, THE_TEXT, run.settings.data) for line in lines]
    return list(_items(intake.cut(intake.columns(texts))))


def frame_tokens(
    run: Opened, texts: Sequence[Sequence[int]], others: Sequence[Sequence[int]] | None = None
) -> list[TextItem]:
    """Tokens of texts, or of pairs of them."""
    sides = {"text": texts} if others is None else {"text": texts, "other": others}
    columns = Columns({name: TokenStore.of(side) for name, side in sides.items()})
    return list(_items(_intake(run, None).cut(columns)))


def gapped_item(run: Opened, line: str) -> TextItem:
    """A text with gaps, which are what is asked; without one every token is."""
    tokens, gaps = gaps_in(line, run.vocab.source)
    item = frame_tokens(run, [tokens])[0]
    before = len(run.vocab.source.text_ends[0])
    rows = [before + gap for gap in gaps] or list(range(before, len(item.ids)))
    return item._replace(rows=rows)


def tagged_item(run: Opened, line: str) -> TextItem:
    """A text whose words are asked, each by its first piece."""
    tokenizer = run.vocab.source
    sentence = sentence_of(line, THE_TEXT, word_rule(run.folder)).words
    words = encoded([sentence], tokenizer, run.settings.tag)
    read, first, _ = word_items(words, tokenizer, run.shape).reader.read(np.arange(1))
    needed = len(tokenizer.as_text(words.text.ids.tolist()))
    return TextItem(read.tokens.tolist(), read.segments.tolist(), first.tolist(), needed=needed)


def _intake(run: Opened, max_len: int | None) -> TextIntake:
    intake = TextIntake.of(run.settings, run.vocab.source)
    return intake if max_len is None else replace(intake, max_len=min(max_len, intake.max_len))


def _items(cuts: TextCuts) -> Iterator[TextItem]:
    for row, example in enumerate(cuts.owner.tolist()):
        stream = cuts.collate(np.array([row]))
        ids = stream.values.tolist()
        known = stream.segments_N
        segments = [0] * len(ids) if known is None else known.tolist()
        yield TextItem(ids, segments, example=example, needed=int(cuts.needed[example]))
