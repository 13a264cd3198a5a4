"""Prediction of tags for sentences, which are given one per line or in CoNLL columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from headway.data.predict_input import Question
from headway.data.sniff import DOCUMENT
from headway.data.store import DATA
from headway.data.text_words import WordRule
from headway.decode.batching import windows
from headway.errors import DataError
from headway.progress import OnProgress, no_progress
from headway.settings.listed import ensure_list
from headway.specs.metrics import has_span_tags
from headway.specs.needs import WORDS
from headway.tasks.answers import Answer, TagAnswer, WordAnswer
from headway.tasks.dataset import EvalPass
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.tags import TaggingDataset, TaggingEvaluator
from headway.tasks.task import InferenceRequest


@dataclass
class TaggingPredictor:
    """Predictor of tags. An ensemble averages the log-probabilities of its models."""

    run: LoadedRun
    evaluator: TaggingEvaluator
    rule: WordRule = field(default_factory=WordRule)
    """Rule that splits texts into words, as in training."""

    between: OnProgress = no_progress
    n_sentences: int = 0
    n_words: int = 0
    n_windowed: int = 0
    n_cut: int = 0

    @classmethod
    def of(cls, use: InferenceRequest) -> TaggingPredictor:
        opened = use.opened
        evaluator = TaggingEvaluator(use.settings, opened.vocab.target)
        return cls(opened, evaluator, word_rule(opened.folder), use.between)

    def answers(self, lines: Iterable[Question], live: bool = False) -> Iterator[Answer]:
        """Yield one answer per line.

        If the first line that is not empty has a tab, the input is in CoNLL columns: one word per
        line, with empty lines between sentences. Otherwise each line is a sentence, which is split
        into words as in training, or JSON with a list of `words`. A `Question` that is not a string
        is a list of words.
        """
        source = iter(ensure_list(lines))
        before: list[Question] = []
        for line in source:
            before.append(line)
            if not isinstance(line, str) or (line.strip() and not line.startswith(DOCUMENT)):
                break
        if not before:
            return
        whole = chain(before, source)
        if isinstance(before[-1], str) and "\t" in before[-1]:
            yield from self._columns(whole, live)
            return
        number = 0
        for window in windows(whole, live=live):
            sentences: list[InputSentence] = []
            for line in window:
                number += 1
                sentences.append(
                    sentence_of(line, f"line {number:,}", self.rule)
                    if isinstance(line, str) else InputSentence([*line])
                )  # fmt: skip
            found = self.tags([one.words for one in sentences], self.between)
            for one, tags in zip(sentences, found, strict=True):
                yield sentence_answer(one, tags)

    def _columns(self, lines: Iterable[str], live: bool) -> Iterator[Answer]:
        """Yield the answers for CoNLL columns. A sentence is tagged when the empty line after it
        has been read."""
        for group in windows(_sentences(lines), live=live):
            sentences = [words for words, _ in group]
            for (words, ends), tags in zip(group, self.tags(sentences, self.between), strict=True):
                for word, tag in zip(words, tags, strict=True):
                    yield WordAnswer(word=word, text=tag)
                if ends is not None:
                    yield WordAnswer(text=ends)

    def tags(
        self, sentences: Sequence[Sequence[str]], on_progress: OnProgress = no_progress
    ) -> list[list[str]]:
        """Return the most likely valid tags of each sentence, in the BIO scheme. A sentence is a
        list of words, or a string that is parsed like a line of input."""
        sentences = [
            sentence_of(words, f"sentence {number:,}", self.rule).words
            if isinstance(words, str)
            else words
            for number, words in enumerate(ensure_list(sentences), 1)
        ]
        if not any(sentences):
            self.n_sentences += len(sentences)
            return [[] for _ in sentences]
        dataset = self._dataset(sentences)
        asked = EvalPass.of_run(self.run, on_progress)
        lengths = [len(words) for words in sentences]
        with torch.no_grad():
            return self.evaluator.predict_dataset(asked, dataset, lengths).tags

    def _dataset(self, sentences: Sequence[Sequence[str]]) -> TaggingDataset:
        columns = self.evaluator.columns(sentences, self.n_sentences)
        dataset = self.evaluator.dataset(columns)
        needed = columns["text"].lengths + dataset.reader.n_special
        self.n_sentences += len(sentences)
        self.n_words += int(columns["pieces"].lengths.sum())
        self.n_windowed += int((needed > self.evaluator.settings.model.max_len).sum())
        self.n_cut += dataset.reader.cut_words
        return dataset

    def summary(self) -> str:
        some = "s" * (self.n_sentences != 1)
        text = f"{self.n_words:,} words in {self.n_sentences:,} sentence{some}"
        if self.n_windowed:
            text += f"; {self.n_windowed:,} too long to read at once and read in windows"
        if self.n_cut:
            text += f"; {self.n_cut:,} very long words were cut off"
        return text


class InputSentence(NamedTuple):
    """Words of one sentence to tag, with their offsets if they come from a text."""

    words: list[str]
    offsets: tuple[tuple[int, int], ...] = ()
    source: str | None = None


def sentence_of(line: str, where: str, rule: WordRule) -> InputSentence:
    """Return the words of a line, which is a text, or JSON with a list of words. `where`: location
    of the line for error messages."""
    if line.lstrip().startswith("{"):
        with suppress(ValueError):  # a sentence may begin with a brace
            values = json.loads(line)
            found = next((values[name] for name in WORDS.names if name in values), None)
            if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
                raise DataError(
                    f'{where} must contain a list of words, such as {{"words": ["a", "word"]}}.'
                )
            return InputSentence(found)
    words = rule.words(line)
    return InputSentence(
        [one.text for one in words], tuple((one.start, one.end) for one in words), line
    )


def word_rule(folder: Path) -> WordRule:
    """Return the rule by which the run in this folder splits texts into words. It is inferred from
    the validation sentences in the folder; without them, it is the default rule."""
    path = folder / DATA / "valid.jsonl"
    try:
        return _rule_of(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, TypeError, AttributeError):
        return WordRule()


@lru_cache(16)
def _rule_of(path: Path, changed: int) -> WordRule:
    with path.open(encoding="utf-8") as file:
        return WordRule.of(json.loads(line).get("words", ()) for line in file)


def sentence_answer(sentence: InputSentence, tags: Sequence[str]) -> TagAnswer:
    """Return the answer for a sentence, with a text such as `Ada/B-per Lovelace/I-per wrote`. Words
    outside of spans have no tag in the text."""
    words = sentence.words
    marked = has_span_tags(tuple(tags))
    shown = [
        word if marked and tag == "O" else f"{word}/{tag}"
        for word, tag in zip(words, tags, strict=True)
    ]
    return TagAnswer(
        text=" ".join(shown), words=tuple(words), tags=tuple(tags), marked=marked,
        offsets=sentence.offsets, source=sentence.source,
    )  # fmt: skip


def _sentences(lines: Iterable[str]) -> Iterator[tuple[list[str], str | None]]:
    """Yield the words of each sentence, with the empty line after it, or with None at the end of
    the input."""
    words: list[str] = []
    for line in lines:
        if not line.strip() or line.startswith(DOCUMENT):
            yield words, line
            words = []
        else:
            words.append(line.split("\t")[0].strip() or line.strip())
    if words:
        yield words, None
