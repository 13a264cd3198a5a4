"""Predictors for embeddings: vectors of the inputs, or the nearest candidates from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headway.data.predict_input import questions
from headway.decode.batching import windows
from headway.errors import DataError, UserError
from headway.metrics.retrieval import Vectors, cosine
from headway.settings.run import Resolved
from headway.tasks.answers import Answer, Facts, NearAnswer, Plain, Show, VectorAnswer, save_array
from headway.tasks.contrast import Side, unit_of, vectors_of
from headway.tasks.intake import Line, intake_of
from headway.tasks.items import Pass
from headway.tasks.media_answers import note_silence, unread
from headway.tasks.media_inputs import Given
from headway.tasks.specs import spec_of
from headway.tasks.task import Use

TOP = 5


class Vectorizer:
    """Predictor of one vector per input, printed as JSON."""

    def __init__(self, use: Use) -> None:
        self.use, self.n_given, self.n_failed = use, 0, 0
        opened = use.opened
        # Inputs are single examples, even if the run was trained on pairs.
        alone = replace(use.settings.data, other_field="", fields=())
        self.settings: Resolved = replace(use.settings, data=alone)
        words = None if opened.words is None else opened.words.target
        self.intake = intake_of(self.settings, words)

    def vectors(self, values: Sequence[object]) -> Vectors:
        """Vectors of inputs that were read."""
        if not values:
            return np.zeros((0, 0), np.float32)
        columns, opened = self.intake.columns(values), self.use.opened
        side = Side(columns, self.intake.cut(columns))
        self.intake.refuse(side.cuts.needed, self.n_given)
        asked = Pass(opened.model, opened.device, on_progress=self.use.between)
        return vectors_of(asked, self.settings, self.intake, side)

    def asked(self, lines: Iterable[Line]) -> Iterator[Given]:
        return self.intake.asked(lines, self.use.opened.folder, self.settings)

    def answers(self, lines: Iterable[Line], live: bool = False) -> Iterator[Answer]:
        found = self.asked(lines)
        for window in windows(found, self.intake.at_first, live=live):
            x_ND = iter(self.vectors([one.values for one in window if one.values is not None]))
            self.n_given += len(window)
            for one in window:
                if one.values is None:
                    self.n_failed += 1
                    yield from self.missing(one)
                else:
                    yield from self.answered(one, next(x_ND))

    def answered(self, one: Given, x_D: Vectors) -> Iterator[Answer]:
        made = VectorAnswer(
            text=f"{len(x_D):,} numbers", place=one.name, vector=x_D.astype(np.float32),
            printed=_Printed(name_of(one), x_D),
        )  # fmt: skip
        yield note_silence(made, one)

    def missing(self, one: Given) -> Iterator[Answer]:
        yield unread(one.name, one.error)

    def counted(self) -> str:
        unit = "lines" if self.use.opened.words is not None else unit_of(spec_of(self.settings))
        failed = f" ({self.n_failed:,} unreadable)" if self.n_failed else ""
        return f"{self.n_given:,} {unit.removesuffix('s') if self.n_given == 1 else unit}{failed}"

    def summary(self) -> str:
        return f"{self.counted()} read"


class Kept(Vectorizer):
    """Predictor that saves all vectors to one file, if `path` is set; unreadable inputs get NaN."""

    path: Path | None = None

    def answered(self, one: Given, x_D: Vectors) -> Iterator[Answer]:
        if self.path is not None:
            self.found.append(x_D)
        yield from ()

    def missing(self, one: Given) -> Iterator[Answer]:
        if self.path is not None:
            self.found.append(np.full(self.settings.model.d_model, np.nan, np.float32))
        yield unread(one.name, one.error)

    def answers(self, lines: Iterable[Line], live: bool = False) -> Iterator[Answer]:
        self.found: list[Vectors] = []
        yield from super().answers(lines, live)
        if self.path is None:
            return
        vectors = np.stack(self.found) if self.found else np.zeros((0, 0), np.float32)
        try:
            save_array(self.path, vectors)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}.") from error

    def summary(self) -> str:
        return f"{self.n_given:,} vectors written to {self.path}"


class Nearest(Vectorizer):
    """Predictor of the nearest candidates for each input, with their cosines."""

    candidates: list[str]
    top: int

    def answered(self, one: Given, x_D: Vectors) -> Iterator[Answer]:
        like_S = (cosine(x_D[None]) @ self.known_SD.T)[0]
        order = np.argsort(-like_S, kind="stable")[: self.top]
        near = tuple((self.candidates[i], float(like_S[i])) for i in order)
        text, like = near[0]
        [name] = own = name_of(one)
        facts: Facts = {**own, "nearest": [{name: text, "cosine": like} for text, like in near]}
        made = NearAnswer(
            text=text, cosine=like, near=near, place=one.name, vector=x_D.astype(np.float32),
            printed=Plain("\n".join(f"{like:.4f}\t{text}" for text, like in near), facts),
        )  # fmt: skip
        yield note_silence(made, one)

    def read(self, path: str) -> None:
        """Load the candidates: the lines of a text file, or a media file, folder or list."""
        lines: Iterable[Line] = [path]
        if self.use.opened.words is not None:
            texts = questions(path, "texts", self.use.settings)
            lines = [text for text in texts if isinstance(text, str) and text.strip()]
        found = list(self.asked(lines))
        for one in found:
            if one.values is None:
                raise DataError(f"--nearest {path}: {one.error}")
        if not found:
            raise DataError(f"{path} is empty, but --nearest needs candidates to compare with.")
        self.candidates = [next(iter(name_of(one).values())) for one in found]
        self.known_SD = cosine(self.vectors([one.values for one in found]))

    def summary(self) -> str:
        return f"{self.counted()} compared with {len(self.candidates):,} candidates"


def name_of(one: Given) -> dict[str, str]:
    """The input in JSON output: a text, or the name of a file."""
    return {"file": one.name} if one.name else {"text": str(one.values[0])}


def predictor(use: Use) -> Vectorizer:
    to, nearest, top = (use.options.get(name) for name in ("to", "nearest", "top"))
    if to and nearest:
        raise UserError("--to and --nearest cannot be used together.")
    if top is not None and not nearest:
        raise UserError("--top needs --nearest FILE: it is the number of its lines to print.")
    if top is not None and top < 1:
        raise UserError(f"--top {top} must be at least 1.")
    if to:
        file = Kept(use)
        file.path = Path(str(to))
        return file
    if not nearest:
        return Vectorizer(use)
    found = Nearest(use)
    found.top = top or TOP
    found.read(str(nearest))
    return found


@dataclass(frozen=True)
class _Printed:
    asked: dict[str, str]
    x_D: Vectors

    @property
    def numbers(self) -> list[float]:
        return [round(float(value), 6) for value in self.x_D]

    def lines(self, show: Show, number: int) -> str:
        return json.dumps(self.numbers)

    def facts(self) -> Facts:
        return {**self.asked, "vector": self.numbers}
