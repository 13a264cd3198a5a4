"""A text as a model reads it: its tokens by stream, and the outputs of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.decode.align import word_numbers
from headway.settings.task_rows import spec_of
from headway.specs.tasks import SPECS, OutputKind, Spec
from headway.tokens.pieces import SPACE_MARK
from headway.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from headway.inside.capture.media import MediaInput


SIDES = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""Streams of the queries and of the keys for each kind of attention of a sequence-to-sequence
model. Every other model has one kind, `self`, in its only stream."""


@dataclass(frozen=True)
class TokenStream:
    """Tokens that are read together.

    The name is `source` or `target` for a sequence-to-sequence model, `image` or `audio` for an
    encoder of media, otherwise `text`.
    """

    name: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """Readable pieces; `▁` is a space."""

    words: tuple[int, ...]
    """Number of the word that each token is part of; -1 for special tokens."""

    special: tuple[bool, ...]

    @classmethod
    def of(cls, name: str, ids: list[int], tokenizer: Tokenizer) -> TokenStream:
        special = tuple(i in tokenizer.specials and i != tokenizer.unk for i in ids)
        ordinary = [i for i, apart in zip(ids, special, strict=True) if not apart]
        numbers = iter(_words(ordinary, tokenizer))
        words = tuple(-1 if apart else next(numbers) for apart in special)
        return cls(name, tuple(ids), tuple(tokenizer.tokens(ids)), words, special)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class TracedOutput:
    """One output of the model."""

    row: int | None
    """Position of the last stream that it is read from; None: the whole stream."""

    id: int
    """Token or label that was chosen; -1 for a vector."""

    name: str


@dataclass(frozen=True)
class Reading:
    text: str
    task: str
    streams: dict[str, TokenStream]
    """In the order of reading."""

    outputs: tuple[TracedOutput, ...]
    segments: tuple[int, ...] = ()
    """Segment of each token: 1 for the second text of a pair; for a tagger the shape of the
    token."""

    n_given: int = 0
    """Number of given tokens in a text that the model continued."""

    direction: tuple[float, ...] = ()
    """Unit vector of an embedding without changes; effects of changes are measured along it."""

    finished: bool = True
    """Whether a generated output ended with an end token."""

    media: MediaInput | None = None
    """The image, video or recording, if the input is not a text."""

    hides: int | None = None
    """Seed of the hidden positions of media, for a model that reconstructs them."""

    @property
    def answers(self) -> OutputKind | None:
        """Kind of the outputs; None for a trace of an unknown task."""
        return None if self.row is None else self.row.answers

    @property
    def unit(self) -> str:
        """Plural name of the inputs, for messages."""
        return "texts" if self.media is None else self.media.unit

    @property
    def row(self) -> Spec | None:
        """Row of the task table; None for a trace of an unknown task."""
        return spec_of(self.task) if self.task in SPECS else None

    @property
    def is_single_label(self) -> bool:
        return self.row is not None and self.row.is_single_label

    @property
    def labelled(self) -> bool:
        """Whether each output is one label: that of the input, or of a word."""
        return self.row is not None and (self.row.is_single_label or self.row.is_tagging)

    @property
    def fills_masks(self) -> bool:
        return self.row is not None and self.row.fills_masks

    @property
    def is_vector(self) -> bool:
        """Whether the output is a vector, or changes are measured along one."""
        return bool(self.direction) or (self.row is not None and self.row.is_embedding)

    @property
    def continues(self) -> bool:
        """Whether the output follows the input in the same stream."""
        return self.row is not None and self.row.continues

    @property
    def writes(self) -> bool:
        """Whether the model generated its output token by token, so that row t predicts token t +
        1."""
        return self.continues or "target" in self.streams

    def sides(self, kind: str) -> tuple[str, str]:
        """Streams of the rows and columns of a kind of attention; for a stack its stream, twice."""
        return SIDES.get(kind, (self.first.name, self.first.name))

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.streams.values()))

    def is_media(self, stream: str) -> bool:
        """Whether a stream is the image or recording."""
        return self.media is not None and stream == self.first.name

    @property
    def first(self) -> TokenStream:
        return next(iter(self.streams.values()))

    @property
    def last(self) -> TokenStream:
        return list(self.streams.values())[-1]

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without the pixels of an image or the samples of a recording."""
        found = asdict(replace(self, media=None))
        del found["media"], found["hides"]
        return found if self.media is None else {**found, "media": self.media.to_dict()}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Reading:
        streams = {
            name: TokenStream(
                name, *(tuple(values[key]) for key in ("ids", "pieces", "words", "special"))
            )
            for name, values in facts["streams"].items()
        }
        outputs = tuple(TracedOutput(**values) for values in facts["outputs"])
        segments = tuple(facts.get("segments", ()))
        direction = tuple(facts.get("direction", ()))
        more = {name: facts[name] for name in ("n_given", "finished") if name in facts}
        return cls(
            facts["text"], facts["task"], streams, outputs, segments, direction=direction, **more
        )


def _words(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    pieces = tokenizer.tokens(ids)
    if any(SPACE_MARK in piece for piece in pieces):
        return word_numbers(pieces)
    return [int(number) - 1 for number in tokenizer.word_starts(ids).cumsum()] if ids else []


def display_piece(piece: str) -> str:
    """A token for display: without the mark of the space before it."""
    return piece.replace(SPACE_MARK, " ").strip(" ") or "␣"
