"""Vectors of lines that people give, the nearest sentences of a file, and scores on a test set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from headway.config.data import DataSettings
from headway.config.listed import listed
from headway.config.run import Resolved
from headway.data.prepare import evaluation_set
from headway.data.readings import flat_tokens
from headway.data.unlabelled import questions
from headway.decode.lines import live_windows, windows
from headway.errors import DataError, UserError
from headway.progress import OnProgress, unheard
from headway.tasks.answers import Answer, Facts, NearAnswer, Show, VectorAnswer, save_array
from headway.tasks.contrast import partners
from headway.tasks.kind import Use
from headway.tasks.scores import Scores
from headway.tasks.vectors import (
    Vectors,
    bag_retrieval,
    cosine,
    reader_of,
    retrieval,
    text_keys,
    text_vectors,
)
from headway.text.tokenizer import Tokenizer

TOP = 5


class Vectorizer:
    """One vector a line, printed as JSON."""

    def __init__(
        self, model: nn.Module, tokenizer: Tokenizer, settings: Resolved, device: torch.device
    ) -> None:
        self.model, self.tokenizer, self.device = model.eval(), tokenizer, device
        self.max_len, self.normalise = settings.model.max_len, settings.embed.normalise
        self.on_long, self.lines = settings.data.long, 0
        self.between: OnProgress = unheard

    def vectors(self, texts: Sequence[str]) -> Vectors:
        texts = list(listed(texts))
        flat = self.tokenizer.encode_flat(texts)
        reader = reader_of(flat_tokens(flat.ids, flat.lengths), self.tokenizer, self.max_len)
        if self.on_long == "error" and (reader.needed > self.max_len).any():
            number = int(np.argmax(reader.needed > self.max_len))
            raise DataError(
                f"a line has {reader.needed[number]:,} tokens, and the model reads "
                f"{self.max_len:,}: {texts[number][:60]!r}. Shorten it, or train with "
                "data.long=windows."
            )
        return text_vectors(
            self.model, reader, self.device, normalise=self.normalise, on_progress=self.between
        )

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        for window in (live_windows if live else windows)(lines):
            self.lines += len(window)
            yield from self.answered(window, self.vectors(window))

    def answered(self, lines: Sequence[str], x_ND: Vectors) -> Iterator[Answer]:
        for line, x_D in zip(lines, x_ND, strict=True):
            vector, printed = x_D.astype(np.float32), _Printed(line, x_D)
            yield VectorAnswer(text=f"{len(x_D):,} numbers", vector=vector, printed=printed)

    def summary(self) -> str:
        return f"{self.lines:,} line{'s' * (self.lines != 1)} read"


class ToFile(Vectorizer):
    """All vectors into one file; nothing is printed."""

    path: Path

    def answered(self, lines: Sequence[str], x_ND: Vectors) -> Iterator[Answer]:
        self.found.append(x_ND)
        yield from ()

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        self.found: list[Vectors] = []
        yield from super().answers(lines, live)
        vectors = np.concatenate(self.found) if self.found else np.zeros((0, 0), np.float32)
        try:
            save_array(self.path, vectors)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}.") from error

    def summary(self) -> str:
        return f"{self.lines:,} vectors in {self.path}"


class Nearest(Vectorizer):
    """The lines of a file that are nearest to each input, with their cosines."""

    candidates: list[str]
    top: int

    def answered(self, lines: Sequence[str], x_ND: Vectors) -> Iterator[Answer]:
        like_TS = cosine(x_ND) @ self.known_SD.T
        for line, x_D, like_S in zip(lines, x_ND, like_TS, strict=True):
            order = np.argsort(-like_S, kind="stable")[: self.top]
            near = tuple((self.candidates[i], float(like_S[i])) for i in order)
            text, like = near[0]
            yield NearAnswer(
                text=text, cosine=like, near=near, vector=x_D.astype(np.float32),
                printed=_PrintedNearest(line, near),
            )  # fmt: skip

    def read(self, path: str, settings: Resolved) -> None:
        texts = questions(path, "texts", settings)
        self.candidates = [text for text in texts if isinstance(text, str) and text.strip()]
        if not self.candidates:
            raise DataError(f"{path} holds no line to compare with.")
        self.known_SD = cosine(self.vectors(self.candidates))

    def summary(self) -> str:
        return (
            f"{self.lines:,} line{'s' * (self.lines != 1)} compared with {len(self.candidates):,}"
        )


def predictor(use: Use) -> Vectorizer:
    to, nearest, top = (use.options.get(name) for name in ("to", "nearest", "top"))
    if to and nearest:
        raise UserError("--to writes vectors and --nearest compares them: one of them at a time.")
    if top is not None and not nearest:
        raise UserError("--top says how many lines of --nearest FILE are printed; give both.")
    if top is not None and top < 1:
        raise UserError(f"--top {top} must be at least 1.")
    kind = ToFile if to else Nearest if nearest else Vectorizer
    opened = use.opened
    made = kind(opened.model, opened.vocab.target, use.settings, opened.device)
    made.between = use.between
    if isinstance(made, ToFile):
        made.path = Path(str(to))
    if isinstance(made, Nearest):
        made.top = top or TOP
        made.read(str(nearest), use.settings)
    return made


def evaluation(use: Use, files: DataSettings) -> Scores:
    """How often a text finds its partner among all, beside tf-idf."""
    settings, device = use.settings, use.opened.device
    model, tokenizer = use.opened.model, use.opened.vocab.target
    texts, _ = evaluation_set("texts", replace(settings, data=files), tokenizer, ())
    a, b = partners(texts, tokenizer, settings.model.max_len)
    normalise = settings.embed.normalise
    with use.progress.stage("reading", texts.n, "texts") as stage:
        x_ND, y_ND = (
            text_vectors(model, side, device, normalise=normalise, on_progress=stage.update)
            for side in (a, b)
        )
    found = retrieval(x_ND, y_ND, text_keys(b.text))
    bag = bag_retrieval(a.text, b.text, tokenizer.vocab_size)
    what = "its partner" if "other" in texts else "the other half of its words"
    n = texts.n
    rows = [
        ("accuracy", f"{100 * found.accuracy:.2f} %", f"a text finds {what} first, of {n:,}"),
        ("mrr", f"{100 * found.mrr:.2f}", "mean of 1/rank, times 100"),
        ("bag of words", f"{100 * bag.accuracy:.2f} %", "accuracy of tf-idf"),
        ("chance", f"{100 / max(1, n):.2f} %", "accuracy"),
    ]
    values = {"accuracy": 100 * found.accuracy, "mrr": 100 * found.mrr}
    trivial = {"accuracy": 100 * bag.accuracy, "mrr": 100 * bag.mrr}
    facts = {**values, "texts": n, "baseline": trivial}
    return Scores(values, rows=rows, facts=facts, find_baselines=lambda: {"bag of words": trivial})


@dataclass(frozen=True)
class _Printed:
    line: str
    x_D: Vectors

    @property
    def numbers(self) -> list[float]:
        return [round(float(value), 6) for value in self.x_D]

    def lines(self, show: Show, number: int) -> str:
        return json.dumps(self.numbers)

    def facts(self) -> Facts:
        return {"text": self.line, "vector": self.numbers}


@dataclass(frozen=True)
class _PrintedNearest:
    line: str
    near: Sequence[tuple[str, float]]

    def lines(self, show: Show, number: int) -> str:
        return "\n".join(f"{like:.4f}\t{text}" for text, like in self.near)

    def facts(self) -> Facts:
        found = [{"text": text, "cosine": like} for text, like in self.near]
        return {"text": self.line, "nearest": found}
