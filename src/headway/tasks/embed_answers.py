"""Predictors for embeddings: vectors of the inputs, or the nearest candidates from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from headway.data.predict_input import questions
from headway.decode.batching import windows
from headway.errors import DataError, Option, UserError
from headway.metrics.retrieval import Float32Array, cosine
from headway.settings.effects import CallFacts, check_options
from headway.settings.run import Resolved
from headway.settings.task_rows import spec_of
from headway.tasks.answers import (
    Answer,
    NearestAnswer,
    VectorAnswer,
    save_array,
)
from headway.tasks.contrast import PairSide, unit_of, vectors_of
from headway.tasks.dataset import EvalPass
from headway.tasks.media_answers import note_silence, unreadable_answer
from headway.tasks.media_inputs import LoadedInput
from headway.tasks.preprocess.preprocessor import InputLine, preprocessor_of
from headway.tasks.task import InferenceRequest

TOP = 5
"""Default number of nearest candidates: short enough for a line or a screen."""


class EmbeddingPredictor:
    """Predictor that prints one embedding vector per input as JSON."""

    def __init__(self, use: InferenceRequest) -> None:
        self.use, self.n_given, self.n_failed = use, 0, 0
        opened = use.opened
        # Read single examples, even if the run was trained on pairs.
        alone = replace(use.settings.data, other_field="", fields=())
        self.settings: Resolved = replace(use.settings, data=alone)
        words = None if opened.words is None else opened.words.target
        self.preprocessor = preprocessor_of(self.settings, words)

    def vectors(self, values: Sequence[object]) -> Float32Array:
        """Return the embeddings of preprocessed inputs (n, d)."""
        if not values:
            return np.zeros((0, 0), np.float32)
        columns, opened = self.preprocessor.columns(values), self.use.opened
        side = PairSide(columns, self.preprocessor.input_dataset(columns))
        self.preprocessor.check_lengths(side.inputs.full_lengths, self.n_given)
        asked = EvalPass(opened.model, opened.device, on_progress=self.use.between)
        return vectors_of(asked, self.settings, self.preprocessor, side)

    def parse(self, lines: Iterable[InputLine]) -> Iterator[LoadedInput]:
        return self.preprocessor.parse(lines, self.use.opened.folder, self.settings)

    def answers(self, lines: Iterable[InputLine], live: bool = False) -> Iterator[Answer]:
        found = self.parse(lines)
        for window in windows(found, self.preprocessor.at_first, live=live):
            x_ND = iter(self.vectors([one.values for one in window if one.values is not None]))
            self.n_given += len(window)
            for one in window:
                if one.values is None:
                    self.n_failed += 1
                    yield from self.answer_unreadable(one)
                else:
                    yield from self.answer_for(one, next(x_ND))

    def answer_for(self, one: LoadedInput, x_D: Float32Array) -> Iterator[Answer]:
        yield note_silence(vector_answer(one, x_D), one)

    def answer_unreadable(self, one: LoadedInput) -> Iterator[Answer]:
        yield unreadable_answer(one.name, one.error)

    def count_text(self) -> str:
        unit = "lines" if self.use.opened.words is not None else unit_of(spec_of(self.settings))
        failed = f" ({self.n_failed:,} unreadable)" if self.n_failed else ""
        return f"{self.n_given:,} {unit.removesuffix('s') if self.n_given == 1 else unit}{failed}"

    def summary(self) -> str:
        return f"{self.count_text()} read"


class EmbeddingFilePredictor(EmbeddingPredictor):
    """Predictor that saves all embeddings to one file if `path` is set. Inputs that cannot be read
    get NaN."""

    path: Path | None = None

    def answer_for(self, one: LoadedInput, x_D: Float32Array) -> Iterator[Answer]:
        if self.path is not None:
            self.vectors_found.append(x_D)
        yield from ()

    def answer_unreadable(self, one: LoadedInput) -> Iterator[Answer]:
        if self.path is not None:
            self.vectors_found.append(np.full(self.settings.model.d_model, np.nan, np.float32))
        yield unreadable_answer(one.name, one.error)

    def answers(self, lines: Iterable[InputLine], live: bool = False) -> Iterator[Answer]:
        self.vectors_found: list[Float32Array] = []
        yield from super().answers(lines, live)
        if self.path is None:
            return
        vectors = (
            np.stack(self.vectors_found) if self.vectors_found else np.zeros((0, 0), np.float32)
        )
        try:
            save_array(self.path, vectors)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}.") from error

    def summary(self) -> str:
        return f"{self.n_given:,} vectors written to {self.path}"


class NearestPredictor(EmbeddingPredictor):
    """Predictor that finds the nearest candidates for each input, with their cosine
    similarities."""

    candidates: list[str]
    top: int

    def answer_for(self, one: LoadedInput, x_D: Float32Array) -> Iterator[Answer]:
        like_S = (cosine(x_D[None]) @ self.candidates_SD.T)[0]
        order = np.argsort(-like_S, kind="stable")[: self.top]
        near = tuple((self.candidates[i], float(like_S[i])) for i in order)
        text, like = near[0]
        made = NearestAnswer(
            text=text, cosine=like, near=near, vector=x_D.astype(np.float32), place=one.name,
            source=text_of(one),
        )  # fmt: skip
        yield note_silence(made, one)

    def read(self, path: str) -> None:
        """Load the candidates from `path`: the lines of a text file, or a media file, folder or
        list."""
        lines: Iterable[InputLine] = [path]
        if self.use.opened.words is not None:
            texts = questions(path, self.use.settings)
            lines = [text for text in texts if isinstance(text, str) and text.strip()]
        found = list(self.parse(lines))
        for one in found:
            if one.values is None:
                raise DataError(f"{Option('nearest', path)}: {one.error}")
        if not found:
            raise DataError(
                f"{Option('nearest', path)}: the file is empty. Give a file with at least one "
                "candidate."
            )
        self.candidates = [one.name or str(one.values[0]) for one in found]
        self.candidates_SD = cosine(self.vectors([one.values for one in found]))

    def summary(self) -> str:
        return f"{self.count_text()} compared with {len(self.candidates):,} candidates"


def text_of(one: LoadedInput) -> str | None:
    """Return the text of an input; None for media, which have a name instead."""
    return None if one.name else str(one.values[0])


def vector_answer(one: LoadedInput, x_D: Float32Array) -> VectorAnswer:
    return VectorAnswer(
        text=f"{len(x_D):,} numbers", vector=x_D.astype(np.float32), place=one.name,
        source=text_of(one),
    )  # fmt: skip


def predictor(use: InferenceRequest) -> EmbeddingPredictor:
    to, nearest, top = (use.options.get(name) for name in ("to", "nearest", "top"))
    if to and nearest:
        raise UserError(
            f"conflicting options: use either {Option('to')} or {Option('nearest')}, not both."
        )
    if top is not None and top < 1:
        raise UserError(f"{Option('top', top)} must be at least 1.")
    check_options(CallFacts(row=spec_of(use.settings), options=use.options))
    if to:
        file = EmbeddingFilePredictor(use)
        file.path = Path(str(to))
        return file
    if not nearest:
        return EmbeddingPredictor(use)
    found = NearestPredictor(use)
    found.top = top or TOP
    found.read(str(nearest))
    return found
