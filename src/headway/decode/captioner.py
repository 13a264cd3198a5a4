"""Pictures and videos in, captions out; on request with what each word looked at."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.decode.align import Attention, attention_of, word_numbers
from headway.decode.batching import batches
from headway.decode.engine import Engine, SourceSearch
from headway.decode.outputs import LINE_END
from headway.decode.recent import Recent
from headway.decode.search.hypothesis import Hypothesis
from headway.decode.search.search import Searcher, Specials, evaluating
from headway.decode.translation import Box, Look, Output
from headway.models.parts.vision import PictureFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.linear import packed
from headway.progress import OnProgress, unheard
from headway.settings.decode import DecodeSettings
from headway.settings.vision import GRID_STRIDE, PictureSettings
from headway.tokens.tokenizer import Tokenizer

Picture = NDArray[np.uint8]
"""T C Y X."""


@dataclass
class Summary:
    pictures: int = 0
    tokens: int = 0
    unfinished: int = 0
    seconds: float = 0.0


@dataclass
class Captioner:
    """Several models are an ensemble; words look with the eyes of the first. An `engine` writes
    without any of our models."""

    models: Sequence[Seq2Seq]
    tokenizer: Tokenizer
    settings: DecodeSettings = DecodeSettings()
    look: bool = False
    engine: Engine | None = None
    shape: PictureSettings | None = None
    """What the engine reads; of models it is known."""

    recent: Recent = field(default_factory=Recent)
    """Where searches of these models are kept for the next captioner."""

    between: OnProgress = unheard
    """Called between two batches."""

    summary: Summary = field(default_factory=Summary)

    def __post_init__(self) -> None:
        specials = Specials.of(self.tokenizer)
        self.searcher: SourceSearch
        self.attention: Attention
        if self.engine is None:
            self.searcher = self.recent(
                ("caption", self.settings, specials),
                lambda: Searcher(self.models, self.settings, specials),
            )
            self.attention = partial(attention_of, self.models[0])
        else:
            self.searcher = self.engine.searcher(self.settings, specials)
            self.attention = self.engine.attention

    def captions(self, pictures: Sequence[Picture], first: int = 0) -> list[list[Output]]:
        """Of each picture the best ones, from the best down.

        `first`: the number of the first picture, which tells them apart where captions are drawn.
        """
        found: dict[int, list[Output]] = {}
        start = time.perf_counter()
        with packed(self.models):
            for places in self._batches(pictures):
                sources = [pictures[place] for place in places]
                numbers = [[first + place] for place in places]
                hypotheses = self.searcher(sources, None, numbers)
                found |= dict(zip(places, self._written(sources, hypotheses), strict=True))
                self.between(len(found), len(pictures))
        best = [found[place][0] for place in range(len(pictures))]
        self.summary.pictures += len(best)
        self.summary.tokens += sum(len(one.token_log_probs) for one in best)
        self.summary.unfinished += sum(not one.finished for one in best)
        self.summary.seconds += time.perf_counter() - start
        return [found[place] for place in range(len(pictures))]

    def _batches(self, pictures: Sequence[Picture]) -> Iterator[list[int]]:
        width = self.settings.n_best if self.settings.sample else self.settings.beam
        return batches(self.rows(pictures), max(1, self.settings.batch_tokens // width))

    def rows(self, pictures: Sequence[Picture]) -> list[int]:
        """That each becomes, for the model that makes most of them."""
        return [max(shape.rows_of(*_size(one)) for shape in self._shapes()) for one in pictures]

    def _shapes(self) -> list[PictureSettings]:
        fronts = [model.source_front for model in self.models]
        found = [front.shape for front in fronts if isinstance(front, PictureFront)]
        return found if self.shape is None else [self.shape]

    def _written(
        self, pictures: Sequence[Picture], found: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Output]]:
        written = [[self._caption(h) for h in of_one] for of_one in found]
        if not self.look:
            return written
        pairs = [
            (picture, h) for picture, of_one in zip(pictures, found, strict=True) for h in of_one
        ]
        with evaluating(self.models):
            seen = iter(
                self.attention(
                    [picture for picture, _ in pairs],
                    [h.tokens for _, h in pairs],
                    self.tokenizer.bos,
                )
            )
        return [
            [
                replace(caption, looks=self._looks(picture, h, next(seen)))
                for h, caption in zip(hypotheses, captions, strict=True)
            ]
            for picture, hypotheses, captions in zip(pictures, found, written, strict=True)
        ]

    def _caption(self, h: Hypothesis) -> Output:
        tokens, logs = h.tokens, h.token_log_probs
        if self.tokenizer.target_begin is not None:  # it says nothing about the picture
            tokens, logs = tokens[1:], logs[1:]
        return Output(
            text=LINE_END.sub(" ", self.tokenizer.decode(tokens)),
            score=h.score,
            log_prob=h.log_prob,
            tokens=self.tokenizer.tokens(tokens),
            token_log_probs=logs,
            finished=h.finished,
        )

    def _looks(self, picture: Picture, h: Hypothesis, attention_TS: Tensor) -> list[Look]:
        shape = self._shapes()[0]
        begun = int(self.tokenizer.target_begin is not None)
        tokens = h.tokens[begun:]
        pieces = self.tokenizer.tokens(tokens)
        [mark] = self.tokenizer.tokens([self.tokenizer.unk])
        numbers = word_numbers(pieces, mark)
        return [
            looked(
                self.tokenizer.decode([tokens[i] for i in places]).strip(),
                attention_TS[[begun + i for i in places]].mean(0).numpy(),
                picture,
                shape,
            )
            for places in _places(numbers)
        ]


def _size(picture: Picture) -> tuple[int, int, int]:
    n_frames, _, height, width = picture.shape
    return n_frames, height, width


def _places(numbers: Sequence[int]) -> list[list[int]]:
    """The tokens of each word."""
    found: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        found.setdefault(number, []).append(place)
    return list(found.values())


def looked(word: str, seen_S: NDArray[Any], picture: Picture, shape: PictureSettings) -> Look:
    """What a word attended to, as a map over the picture."""
    n_frames, _, height, width = picture.shape
    grid = shape.grid_of(n_frames, height, width)
    grid_TYX = seen_S[shape.extra :].reshape(grid).astype(np.float32)
    grid_TYX = grid_TYX / max(float(grid_TYX.sum()), 1e-12)
    best = int(grid_TYX.argmax())
    t, y, x = (int(i) for i in np.unravel_index(best, grid))
    frames = (t * shape.tubelet, min((t + 1) * shape.tubelet, n_frames))
    return Look(word, cell(shape, y, x, height, width), frames, float(grid_TYX.max()), grid_TYX)


def cell(shape: PictureSettings, y: int, x: int, height: int, width: int) -> Box:
    """The pixels of a cell of the grid."""
    step, size = (GRID_STRIDE, GRID_STRIDE) if shape.stem == "grid" else (shape.step, shape.patch)
    left, top = x * step, y * step
    return left, top, min(left + size, width), min(top + size, height)
