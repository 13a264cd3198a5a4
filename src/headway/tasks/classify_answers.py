"""Classes as answers to lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from headway.config.run import Resolved
from headway.data.jsonl import parse_object, value_text
from headway.data.readings import TextReader
from headway.data.unlabelled import Question
from headway.decode.lines import live_windows, windows
from headway.errors import DataError
from headway.progress import OnProgress, unheard
from headway.tasks.answers import Facts, LabelAnswer, Show
from headway.tasks.classes import (
    Numbers,
    encoded,
    joined_fields,
    log_probs,
    text_reader,
)
from headway.tasks.kind import Use
from headway.text.tokenizer import Tokenizer

Example = tuple[str, ...]
"""A text; a text and its other half; or the fields of a document, in their order."""


@dataclass
class Classifier:
    """Lines in, classes out. Several models answer with the mean of their probabilities."""

    models: Sequence[nn.Module]
    tokenizer: Tokenizer
    settings: Resolved
    device: torch.device
    between: OnProgress = unheard
    n_texts: int = 0
    n_windowed: int = 0

    @classmethod
    def of(cls, use: Use) -> Classifier:
        opened = use.opened
        tokenizer = opened.vocab.target
        return cls(opened.models, tokenizer, use.settings, opened.device, use.between)

    def answers(self, lines: Iterable[Question], live: bool = False) -> Iterator[LabelAnswer]:
        number = 0
        for window in (live_windows if live else windows)(lines):
            examples = [
                self.example(line, f"line {number + i:,}") for i, line in enumerate(window, 1)
            ]
            number += len(window)
            for logs_C in self.log_probs(examples, self.between):
                yield self._answer(logs_C)

    def example(self, line: Question, where: str) -> Example:
        """What a line of input holds: a text, two with a tab between, or JSON with fields; or
        what a file has in the columns of training."""
        if not isinstance(line, str):
            return line
        data = self.settings.data
        if data.fields:
            values = parse_object(line, where) if line.strip() else {}
            return tuple(value_text(values.get(name), name, where) for name in data.fields)
        if not data.other_field:
            return (line,)
        first, tab, second = line.partition("\t")
        if not tab and line.strip():
            raise DataError(
                f"{where} has one text, and this model compares two. Put a tab between them: "
                f"{line[:60]!r}."
            )
        return first, second

    def log_probs(self, examples: Sequence[Example], on_progress: OnProgress = unheard) -> Numbers:
        if not examples:
            return np.zeros((0, len(self.settings.labels)))
        reader = self.reader(examples)
        limit = reader.max_len
        self.n_texts += len(examples)
        self.n_windowed += int((reader.needed > limit).sum())
        if self.settings.data.long == "error" and int(reader.needed.max()) > limit:
            place = int(np.argmax(reader.needed > limit))
            raise DataError(
                f"text {self.n_texts - len(examples) + place + 1:,} has {reader.needed[place]:,} "
                f"tokens, and the model reads {limit:,} at once. This run was trained with "
                "data.long=error; with data.long=windows long texts are read in windows."
            )
        found = [
            np.exp(log_probs(model, reader, self.device, on_progress=on_progress))
            for model in self.models
        ]
        return np.log(np.maximum(np.mean(found, axis=0), 1e-300))

    def reader(self, examples: Sequence[Example]) -> TextReader:
        data, model = self.settings.data, self.settings.model
        columns = [encoded(self.tokenizer, column) for column in zip(*examples, strict=True)]
        if data.fields:
            named = dict(zip(data.fields, columns, strict=True))
            columns = [joined_fields(self.tokenizer, named)]
        other = columns[1] if data.other_field else None
        return text_reader(columns[0], other, self.tokenizer, model.max_len)

    def _answer(self, logs_C: Numbers) -> LabelAnswer:
        labels, p_C = self.settings.labels, tuple(np.exp(logs_C).tolist())
        return LabelAnswer.of(labels, p_C, printed=_Printed(labels, p_C))

    def summary(self) -> str:
        text = f"{self.n_texts:,} text{'s' * (self.n_texts != 1)}"
        if self.n_windowed:
            text += f", {self.n_windowed:,} of them longer than the model reads, in windows"
        return text


@dataclass(frozen=True)
class _Printed:
    labels: Sequence[str]
    p_C: Sequence[float]

    @property
    def best(self) -> int:
        return max(range(len(self.p_C)), key=self.p_C.__getitem__)

    def lines(self, show: Show, number: int) -> str:
        label = self.labels[self.best]
        return f"{label}\t{self.p_C[self.best]:.4f}" if show.scores else label

    def facts(self) -> Facts:
        return {
            "label": self.labels[self.best],
            "probability": round(self.p_C[self.best], 6),
            "probabilities": {
                label: round(p, 6) for label, p in zip(self.labels, self.p_C, strict=True)
            },
        }
