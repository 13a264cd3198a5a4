"""Preprocessing of texts, pairs of texts and documents with fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from headway.data.batches import (
    FixedShapes,
    IntArray,
    StepPlan,
    fixed_shapes,
    layout_of,
    pad_rows,
    with_special_tokens,
)
from headway.data.causal_lm import DEFAULT_EPOCH, FieldStream
from headway.data.columns.column import parse_field
from headway.data.masking import CounterRandom
from headway.data.readers.jsonl import parse_object
from headway.data.store import Columns
from headway.data.text_windows import FlatSequences, TextReader
from headway.data.token_store import TokenStore
from headway.decode.batching import FIRST_WINDOW
from headway.errors import DataError
from headway.metrics.baselines import TextPair
from headway.models.parts.output_heads import ModelInput
from headway.nn.devices import CPU
from headway.nn.layout import Layout
from headway.settings.data import DataSettings
from headway.settings.listed import ensure_list
from headway.settings.run import Resolved
from headway.specs.task_settings import FillSettings
from headway.tasks.dataset import EpochSeed, PositionInfo
from headway.tasks.masked_text import MaskedTextDataset, room_of
from headway.tasks.media_inputs import LoadedInput
from headway.tasks.preprocess.preprocessor import InputLine, Preprocessor, TextParts, UnsplitDataset
from headway.tokens.tokenizer import Tokenizer

DROP = 8
"""Salt in the random seed of word dropout. It makes the dropped words independent of other random
choices with the same seed and epoch."""


@dataclass(frozen=True)
class TextDataset:
    """Texts with special tokens around them. Long texts are split into overlapping windows."""

    reader: TextReader
    tokenizer: Tokenizer
    segments: bool = False
    """Whether the model has segment embeddings for the two texts of a pair."""

    drop: float = 0.0
    """Word dropout: probability that a word is dropped in training; 0: no dropout."""

    @property
    def lengths(self) -> IntArray:
        return self.reader.lengths

    @property
    def example_index(self) -> IntArray:
        return self.reader.example

    @property
    def full_lengths(self) -> IntArray:
        return self.reader.full_lengths

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max())

    def collate(
        self,
        rows: IntArray,
        device: torch.device = CPU,
        fixed: FixedShapes | None = None,
        draw: EpochSeed | None = None,
    ) -> ModelInput:
        read = self.reader.read(rows)
        if self.drop and draw is not None:
            read = self._thinned(rows, read, draw)
        layout = layout_of(read.lengths, fixed)
        segments_N = pad_rows(read.segments, layout.n_rows) if self.segments else None
        return ModelInput(pad_rows(read.tokens, layout.n_rows), layout, segments_N)

    def _thinned(self, rows: IntArray, read: FlatSequences, draw: EpochSeed) -> FlatSequences:
        """Return the windows after word dropout. At least one word of each window is kept."""
        reader, draws = self.reader, CounterRandom(draw.seed, draw.epoch)
        example, start, _ = (part[rows] for part in reader.windows)
        places = reader.text.offsets[example] + start
        before, behind = map(len, reader.around)
        left = []
        for text, place in zip(np.split(read.tokens, np.cumsum(read.lengths)[:-1]), places,
                               strict=True):  # fmt: skip
            inside = text[before : len(text) - behind]
            starts = self.tokenizer.word_starts(inside)
            drawn = draws.uniform(DROP + draw.view, place + np.flatnonzero(starts))
            kept = drawn >= self.drop
            kept[:1] |= not kept.any()
            words = inside[kept[np.cumsum(starts) - 1]]
            left.append(np.concatenate([text[:before], words, text[len(text) - behind :]]))
        tokens, lengths = np.concatenate(left), np.array([len(text) for text in left], np.int64)
        return FlatSequences(tokens, lengths, np.zeros_like(tokens))

    def to_model_input(self, stream: ModelInput) -> ModelInput:
        return stream

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes:
        tokens = plan.part_limit(micro_tokens)
        return fixed_shapes(plan, tokens, tokens, self.longest)

    def describe_positions(self, row: int) -> list[PositionInfo]:
        return describe_tokens(self.reader.read(np.array([row])).tokens.tolist(), self.tokenizer)


@dataclass(frozen=True)
class SourceTextDataset(UnsplitDataset):
    """Source texts of sequence-to-sequence tasks, which are never split."""

    texts: TokenStore
    tokenizer: Tokenizer

    @cached_property
    def lengths(self) -> IntArray:
        more = 1 if self.tokenizer.source_begin is None else 2
        return np.asarray(self.texts.lengths, dtype=np.int64) + more

    def collate(
        self,
        rows: IntArray,
        device: torch.device = CPU,
        fixed: FixedShapes | None = None,
        draw: EpochSeed | None = None,
    ) -> ModelInput:
        words = self.tokenizer
        tokens, lengths = with_special_tokens(
            *self.texts.gather(rows), words.source_begin, words.eos
        )
        if fixed is None:
            layout = Layout.of(lengths.tolist())
        else:
            layout = Layout.fixed(
                lengths.tolist(), n_rows=fixed.source_rows, n_sequences=fixed.n_sequences,
                longest=fixed.longest, n_dummies=fixed.n_dummies,
            )  # fmt: skip
        return ModelInput(pad_rows(tokens, layout.n_rows), layout)

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes:
        longest = max(plan.source_lengths.max(), plan.target_lengths.max())
        return fixed_shapes(plan, *plan.part_limits(micro_tokens), int(longest))

    def describe_positions(self, row: int) -> list[PositionInfo]:
        return describe_tokens(self.tokenizer.as_source(self.texts[row].tolist()), self.tokenizer)


def describe_tokens(ids: Sequence[int], tokenizer: Tokenizer) -> list[PositionInfo]:
    special = tokenizer.specials
    pieces = zip(ids, tokenizer.tokens(list(ids)), strict=True)
    return [PositionInfo(text=text, special=id in special) for id, text in pieces]


@dataclass(frozen=True)
class TextPreprocessor(Preprocessor):
    at_first: ClassVar[int] = FIRST_WINDOW
    tokenizer: Tokenizer
    max_len: int
    fields: tuple[str, ...] = ()
    pairs: bool = False
    segments: bool = False
    windows: bool = True
    """Whether texts that are too long are split into windows; if not, they raise an error."""

    drop: float = 0.0
    """Word dropout: probability that a word is dropped in training; 0: no dropout."""

    @classmethod
    def of(cls, settings: Resolved, tokenizer: Tokenizer | None) -> TextPreprocessor:
        assert tokenizer is not None
        data, model = settings.data, settings.model
        return cls(
            tokenizer, model.max_len, data.fields, bool(data.other_field),
            getattr(model, "n_segments", 0) > 1, data.on_long == "split",
            settings.embed.drop_words,
        )  # fmt: skip

    def parse(
        self, lines: Iterable[InputLine], folder: Path, settings: Resolved
    ) -> Iterator[LoadedInput]:
        for number, line in enumerate(ensure_list(lines), 1):
            assert not isinstance(line, LoadedInput)
            yield LoadedInput("", parse_texts(line, f"line {number:,}", settings.data))

    def input_dataset(self, columns: Columns) -> TextDataset:
        if columns.fields:
            text, other = join_fields(self.tokenizer, columns.parts), None
        else:
            text, other = columns["text"], columns.other
        reader = text_reader(text, other, self.tokenizer, self.max_len)
        return TextDataset(reader, self.tokenizer, self.segments and other is not None, self.drop)

    def check_lengths(self, needed: IntArray, before: int | None = None) -> None:
        limit = self.max_len
        if self.windows or not len(needed) or int(needed.max()) <= limit:
            return
        if before is None:
            raise DataError(
                f"{int((needed > limit).sum()):,} texts are longer than the {limit:,} tokens that "
                f"the model reads at once; the longest has {int(needed.max()):,} tokens. Read "
                "long texts in windows (data.on_long=split) or increase model.max_len."
            )
        place = int(np.argmax(needed > limit))
        raise DataError(
            f"text {before + place + 1:,} has {needed[place]:,} tokens, but the model reads at "
            f"most {limit:,}. Shorten the text, or train again with data.on_long=split instead of "
            "data.on_long=error to read long texts in windows."
        )

    def masked_dataset(self, columns: Columns, how: FillSettings) -> MaskedTextDataset:
        return MaskedTextDataset(columns["text"], self.tokenizer, how, room_of(how, self.max_len))

    def columns(self, examples: Sequence[TextParts]) -> Columns:
        """Return a dataset in memory with these texts."""
        names = self.fields or (("text", "other") if self.pairs else ("text",))
        stores = [encode_store(self.tokenizer, column) for column in zip(*examples, strict=True)]
        return Columns(dict(zip(names, stores, strict=True)), fields=self.fields)

    def texts(self, columns: Columns, most: int | None = None, first: int = 0) -> list[TextPair]:
        return texts_of(columns, self.tokenizer, most, first)


def parse_texts(line: str | TextParts, where: str, data: DataSettings) -> TextParts:
    """Return the texts in a line of input: one text, two separated by a tab, or the fields of a
    JSON object. Texts from the columns of a file are returned unchanged."""
    if not isinstance(line, str):
        return line
    if data.fields:
        values = parse_object(line, where) if line.strip() else {}
        return tuple(parse_field(values.get(name), name, where) for name in data.fields)
    if not data.other_field:
        return (line,)
    first, tab, second = line.partition("\t")
    if not tab and line.strip():
        raise DataError(
            f"{where} has no tab, but this model compares two texts separated by a tab: "
            f"{line[:60]!r}."
        )
    return first, second


def texts_of(
    texts: Columns, tokenizer: Tokenizer, most: int | None = None, first: int = 0
) -> list[TextPair]:
    """Return stored texts decoded from their tokens. The fields of a document are joined by
    spaces."""
    last = texts.n if most is None else min(first + most, texts.n)
    if texts.fields:
        stores = list(texts.parts.values())
        return [
            (" ".join(tokenizer.decode(store[i].tolist()) for store in stores), "")
            for i in range(first, last)
        ]
    other = texts.other
    return [
        (
            tokenizer.decode(texts["text"][i].tolist()),
            "" if other is None else tokenizer.decode(other[i].tolist()),
        )
        for i in range(first, last)
    ]


def text_reader(
    text: TokenStore, other: TokenStore | None, tokenizer: Tokenizer, max_len: int
) -> TextReader:
    return TextReader(
        text=text,
        other=other,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        max_len=max_len,
        pair_ends=tokenizer.pair_ends,
        between=tokenizer.between,
        ends=tokenizer.text_ends,
    )


def encode_store(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenStore:
    found = tokenizer.encode_flat(list(texts))
    return TokenStore(found.ids.astype(np.uint32), found.lengths)


def join_fields(tokenizer: Tokenizer, stores: Mapping[str, TokenStore]) -> TokenStore:
    """Return one text per document, in which every field is between its marks."""
    stream = FieldStream.of(stores, tokenizer)
    n = len(next(iter(stores.values())))
    return TokenStore.of(stream.document(DEFAULT_EPOCH, number)[1:-1] for number in range(n))
