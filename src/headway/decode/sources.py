"""Sources of a writer: images, and text lines, which are split if they are too long for the
model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.decode.align import AlignmentLink, align_words, source_words, word_numbers
from headway.decode.batching import LAST_WINDOW
from headway.decode.logits_processors import NO_TEXT_CONSTRAINTS, TextConstraints
from headway.decode.output import AttendedRegion, GenerationResult, Output, PixelBox, WritingSummary
from headway.decode.split_text import split_text
from headway.errors import Option, UserError
from headway.settings.vision import GRID_STRIDE, ImageSettings
from headway.tokens.tokenizer import Tokenizer

OnLong = Literal["split", "cut", "error"]


@dataclass(frozen=True)
class SourcePart:
    """Source, or one part of a source that was too long for the model."""

    number: tuple[int, ...]
    """Index of the source, and for a split source, that of the part (both from 0). Random draws
    depend on these numbers."""

    model_input: Any
    """Input of the model, such as token ids or an image."""

    text: str = ""
    ids: Sequence[int] = ()
    """Tokens of the text without begin and end tokens; empty for images."""

    constraints: TextConstraints = NO_TEXT_CONSTRAINTS
    cut: bool = False
    """Whether the line was truncated."""


class Sources(Protocol):
    @property
    def at_once(self) -> int:
        """Maximum number of sources that are held in memory."""
        ...

    def parts(
        self, given: Sequence[Any], wishes: Sequence[TextConstraints], first: int
    ) -> list[list[SourcePart]]:
        """Split sources into parts that fit the model. `first`: index of the first source."""
        ...

    def model_inputs(self, sources: Sequence[Any]) -> list[Any]:
        """Convert sources to model inputs, without splitting them."""
        ...

    def rows(self, given: Any) -> int:
        """Return the number of encoder positions of a model input."""
        ...

    def with_attention(
        self, output: Output, part: SourcePart, tokens: Sequence[int], attention_TS: Tensor,
        target: Tokenizer,
    ) -> Output:  # fmt: skip
        """Return the output with the source words or image regions that each of its words attends
        to."""
        ...

    def merge_parts(
        self, source: Any, parts: Sequence[SourcePart], found: Sequence[list[Output]]
    ) -> GenerationResult: ...


@dataclass(frozen=True)
class TextSources:
    tokenizer: Tokenizer
    room: float
    """Maximum number of tokens of a line that is not split."""

    on_long: OnLong = "split"
    summary: WritingSummary = field(default_factory=WritingSummary)
    at_once: int = LAST_WINDOW

    def parts(
        self, given: Sequence[str], wishes: Sequence[TextConstraints], first: int
    ) -> list[list[SourcePart]]:
        pairs = zip(given, self.tokenizer.encode_batch(given), wishes, strict=True)
        return [
            self._of_line(line, ids, wish, number)
            for number, (line, ids, wish) in enumerate(pairs, first)
        ]

    def model_inputs(self, sources: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer.as_source(ids) for ids in self.tokenizer.encode_batch(sources)]

    def rows(self, given: Sequence[int]) -> int:
        return len(given)

    def _of_line(
        self, line: str, ids: list[int], wish: TextConstraints, number: int
    ) -> list[SourcePart]:
        if not line.strip():
            self.summary.empty += 1
            return []
        if len(ids) <= self.room:
            return [self._part(number, 0, line, ids, wish)]
        room = int(self.room)
        too_long = (
            f"line {number + 1:,} has {len(ids):,} tokens, but this model translates at most "
            f"{room:,}"
        )
        if self.on_long == "error":
            raise UserError(
                f"{too_long} at once. Split the line, or use {Option('on_long', 'split')} or "
                f"{Option('on_long', 'cut')}."
            )
        if self.on_long == "cut":
            self.summary.cut.append(number + 1)
            return [replace(self._part(number, 0, line, ids[:room], wish), cut=True)]
        if wish != NO_TEXT_CONSTRAINTS:
            raise UserError(
                f"{too_long} at once. A line with a prefix or constraints cannot be split "
                f"automatically. Split it yourself, or use {Option('on_long', 'cut')}."
            )
        self.summary.split += 1
        texts = split_text(line, room, self._count)
        pairs = zip(texts, self.tokenizer.encode_batch(texts), strict=True)
        return [
            self._part(number, n, text, part[:room], wish) for n, (text, part) in enumerate(pairs)
        ]

    def _part(
        self, line: int, n: int, text: str, ids: list[int], wish: TextConstraints
    ) -> SourcePart:
        return SourcePart((line, n), self.tokenizer.as_source(ids), text, ids, wish)

    def _count(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer.encode_batch(texts)]

    def _words(self, part: SourcePart, attention_TS: Tensor) -> tuple[list[int], Tensor]:
        """Return the index of the word that contains each source token, and the attention without
        the column of the begin token."""
        begins = int(self.tokenizer.source_begin is not None)
        return source_words(part.text, part.ids, self.tokenizer), attention_TS[:, begins:]

    def with_attention(
        self, output: Output, part: SourcePart, tokens: Sequence[int], attention_TS: Tensor,
        target: Tokenizer,
    ) -> Output:  # fmt: skip
        read, attention_TS = self._words(part, attention_TS)
        written = word_numbers(output.tokens, *target.tokens([target.unk]))
        return replace(output, alignment=align_words(attention_TS, read, written))

    def copied(self, part: SourcePart, n_tokens: int, attention_TS: Tensor) -> list[str]:
        """Return the source word that each target token attends to most. It replaces unknown target
        tokens."""
        read, attention_TS = self._words(part, attention_TS)
        words = part.text.split()
        best_T = attention_TS[:n_tokens, : len(part.ids)].argmax(1).tolist()
        return [words[min(read[i], len(words) - 1)] for i in best_T]

    def merge_parts(
        self, source: str, parts: Sequence[SourcePart], found: Sequence[list[Output]]
    ) -> GenerationResult:
        if not parts:
            return GenerationResult(source, [Output("")])
        # If one part has fewer outputs than another, its last output is repeated.
        n_best = max(len(outputs) for outputs in found)
        words = [len(part.text.split()) for part in parts]
        ranked = [
            join_outputs([outputs[min(n, len(outputs) - 1)] for outputs in found], words)
            for n in range(n_best)
        ]
        return GenerationResult(source, ranked, len(parts), parts[0].cut)


ByteArray = NDArray[np.uint8]
"""Array of 8-bit pixels (T C Y X): frames, colour channels, rows and columns."""


@dataclass(frozen=True)
class ImageSources:
    """Images and videos as sources.

    `shapes`: input shapes of the models. The first shape defines the patches to which attended
    regions refer.
    """

    shapes: Sequence[ImageSettings]
    at_once: int = 256

    def parts(
        self, given: Sequence[ByteArray], wishes: Sequence[TextConstraints], first: int
    ) -> list[list[SourcePart]]:
        asked = enumerate(zip(given, wishes, strict=True), first)
        return [[SourcePart((number,), image, constraints=wish)] for number, (image, wish) in asked]

    def model_inputs(self, sources: Sequence[ByteArray]) -> list[ByteArray]:
        return list(sources)

    def rows(self, given: ByteArray) -> int:
        """Return the number of encoder positions of an image or video. In an ensemble, return the
        largest."""
        n_frames, _, height, width = given.shape
        return max(shape.rows_of(n_frames, height, width) for shape in self.shapes)

    def with_attention(
        self, output: Output, part: SourcePart, tokens: Sequence[int], attention_TS: Tensor,
        target: Tokenizer,
    ) -> Output:  # fmt: skip
        of_words: dict[int, list[int]] = {}
        for place, word in enumerate(word_numbers(output.tokens, *target.tokens([target.unk]))):
            of_words.setdefault(word, []).append(place)
        looks = [
            _look(
                target.decode([tokens[i] for i in places]).strip(),
                attention_TS[places].mean(0).numpy(),
                part.model_input,
                self.shapes[0],
            )
            for places in of_words.values()
        ]
        return replace(output, attended_regions=looks)

    def merge_parts(
        self, source: ByteArray, parts: Sequence[SourcePart], found: Sequence[list[Output]]
    ) -> GenerationResult:
        return GenerationResult("", found[0])


def _look(
    word: str, seen_S: NDArray[Any], image: ByteArray, shape: ImageSettings
) -> AttendedRegion:
    """Return the region of the image that one word of a caption attended to."""
    n_frames, _, height, width = image.shape
    grid = shape.grid_of(n_frames, height, width)
    grid_TYX = seen_S[shape.extra :].reshape(grid).astype(np.float32)
    grid_TYX = grid_TYX / max(float(grid_TYX.sum()), 1e-12)
    best = int(grid_TYX.argmax())
    t, y, x = (int(i) for i in np.unravel_index(best, grid))
    frames = (t * shape.tubelet, min((t + 1) * shape.tubelet, n_frames))
    return AttendedRegion(
        word, _cell(shape, y, x, height, width), frames, float(grid_TYX.max()), grid_TYX
    )


def _cell(shape: ImageSettings, y: int, x: int, height: int, width: int) -> PixelBox:
    """Return the pixel box of the patch in row `y` and column `x`."""
    step, size = (GRID_STRIDE, GRID_STRIDE) if shape.stem == "grid" else (shape.step, shape.patch)
    left, top = x * step, y * step
    return left, top, min(left + size, width), min(top + size, height)


def join_outputs(parts: Sequence[Output], source_words: Sequence[int]) -> Output:
    """Join the outputs for the parts of one line. `source_words`: number of source words in each
    part."""
    if len(parts) == 1:
        return parts[0]
    alignment: list[AlignmentLink] | None = None
    if all(part.alignment is not None for part in parts):
        alignment, before, after = [], 0, 0
        for part, n_words in zip(parts, source_words, strict=True):
            pairs = part.alignment or []
            alignment += [(before + source, after + target) for source, target in pairs]
            before, after = before + n_words, after + len(part.text.split())
    return Output(
        text=" ".join(part.text for part in parts if part.text),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        tokens=[token for part in parts for token in part.tokens],
        token_log_probs=[value for part in parts for value in part.token_log_probs],
        finished=all(part.finished for part in parts),
        alignment=alignment,
    )
