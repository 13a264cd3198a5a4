"""Token streams of an input, and the outputs of a model for it."""

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
"""Names of the streams that supply the queries and the keys, for each kind of attention in an
encoder-decoder. Every other model has a single stream and one kind of attention, `self`."""


@dataclass(frozen=True)
class TokenStream:
    """Sequence of tokens that one stack of the model processes.

    Its name is `source` or `target` for a sequence-to-sequence model, `image` or `audio` for a
    media encoder, otherwise `text`.
    """

    name: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """Tokens as readable text, in which `▁` marks a space."""

    words: tuple[int, ...]
    """Index of the word that each token is part of; -1 for special tokens."""

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
    """One output of the model: a token, a label, a tag, a number or an embedding."""

    row: int | None
    """Position in the last stream from which the output is read; None if it is read from the whole
    stream."""

    id: int
    """Id of the token or label; -1 if it is unknown, or if the output is an embedding."""

    name: str


@dataclass(frozen=True)
class Reading:
    text: str
    task: str
    streams: dict[str, TokenStream]
    """Token streams by name, in the order in which the model computes them."""

    outputs: tuple[TracedOutput, ...]
    segments: tuple[int, ...] = ()
    """Segment id of each token. In a text pair: 0 for the first text, 1 for the second. In a
    tagger: class of the word shape, such as capitalized. Empty if the model has no segments."""

    n_given: int = 0
    """Number of prompt tokens if the model continued a text, otherwise 0."""

    direction: tuple[float, ...] = ()
    """Unit vector of the embedding without interventions, along which effects of interventions are
    measured. For a number it is (1,), and for all other outputs it is empty."""

    finished: bool = True
    """Whether the generated output ends with an end token."""

    media: MediaInput | None = None
    """Input image, video or recording; None for text."""

    hides: int | None = None
    """Random seed of the masked positions; None unless the model reconstructs media."""

    @property
    def answers(self) -> OutputKind | None:
        """Output kind of the task, such as label or text; None for a trace of an unknown task."""
        return None if self.row is None else self.row.answers

    @property
    def unit(self) -> str:
        """Plural name of this kind of input for messages, such as "texts"."""
        return "texts" if self.media is None else self.media.unit

    @property
    def row(self) -> Spec | None:
        """Task specification; None for a trace of an unknown task."""
        return spec_of(self.task) if self.task in SPECS else None

    @property
    def is_single_label(self) -> bool:
        return self.row is not None and self.row.is_single_label

    @property
    def labelled(self) -> bool:
        """Whether each output is a single label of the whole input or of a word."""
        return self.row is not None and (self.row.is_single_label or self.row.is_tagging)

    @property
    def fills_masks(self) -> bool:
        return self.row is not None and self.row.fills_masks

    @property
    def is_vector(self) -> bool:
        """Whether effects are measured on a vector: for embeddings, and for numbers as vectors with
        one component."""
        return bool(self.direction) or (self.row is not None and self.row.is_embedding)

    @property
    def continues(self) -> bool:
        """Whether the output continues the input in one stream, as in a language model."""
        return self.row is not None and self.row.continues

    @property
    def writes(self) -> bool:
        """Whether the output is generated token by token, so that position t predicts token t +
        1."""
        return self.continues or "target" in self.streams

    def sides(self, kind: str) -> tuple[str, str]:
        """Return the names of the streams that supply the queries and the keys of one kind of
        attention. If `kind` is the name of a stack (self-attention), both are the stream of that
        stack."""
        return SIDES.get(kind, (self.first.name, self.first.name))

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.streams.values()))

    def is_media(self, stream: str) -> bool:
        """Whether the positions of a stream are image patches or audio frames."""
        return self.media is not None and stream == self.first.name

    @property
    def first(self) -> TokenStream:
        return next(iter(self.streams.values()))

    @property
    def last(self) -> TokenStream:
        return list(self.streams.values())[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values of the reading, without the pixels of an image or the samples of a
        recording."""
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
    """Return a token for display, without the mark of a preceding space."""
    return piece.replace(SPACE_MARK, " ").strip(" ") or "␣"
