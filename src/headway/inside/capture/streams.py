"""One text as a model reads it: its tokens by stream, and what the model answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.decode.align import word_numbers
from headway.tasks.specs import SPECS, Answers, spec_of
from headway.tokens.pieces import SPACE_MARK
from headway.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from headway.inside.capture.media import Media


SIDES = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""Of the attention of a model that writes one stream from another: who asks, and who is attended
to. Every other model has one way, `self`, in its only stream."""


@dataclass(frozen=True)
class Stream:
    """Tokens that are read together: `source` and `target` of a model that writes one from the
    other, else `text`; of an encoder of patches or of sound `picture` or `sound`."""

    name: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """Readable; `▁` is a space."""

    words: tuple[int, ...]
    """The number of the word that each token is part of; -1 for special tokens."""

    special: tuple[bool, ...]

    @classmethod
    def of(cls, name: str, ids: list[int], tokenizer: Tokenizer) -> Stream:
        special = tuple(i in tokenizer.specials and i != tokenizer.unk for i in ids)
        ordinary = [i for i, apart in zip(ids, special, strict=True) if not apart]
        numbers = iter(_words(ordinary, tokenizer))
        words = tuple(-1 if apart else next(numbers) for apart in special)
        return cls(name, tuple(ids), tuple(tokenizer.tokens(ids)), words, special)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Output:
    """One thing that the model answers."""

    row: int | None
    """The row of the last stream that it is read from; None: all of them."""

    id: int
    """The token or label that was chosen; -1 for a vector."""

    name: str


@dataclass(frozen=True)
class Reading:
    text: str
    task: str
    streams: dict[str, Stream]
    """What is read first comes first."""

    outputs: tuple[Output, ...]
    segments: tuple[int, ...] = ()
    """Of an encoder: 1 for the second text of a pair."""

    n_given: int = 0
    """Of a text that the model went on with: the tokens that were given."""

    direction: tuple[float, ...] = ()
    """Of a vector as answer: where it points, unchanged; changes are measured along it."""

    finished: bool = True
    """Whether an output that the model wrote ended by itself."""

    media: Media | None = None
    """The picture, video or recording that was read, where it was no text."""

    hides: int | None = None
    """Of media with hidden rows, which are what is asked: the number by which they are chosen."""

    @property
    def answers(self) -> Answers | None:
        """What kind of answer it has; None for a trace of a task that is not ours."""
        return spec_of(self.task).answers if self.task in SPECS else None

    @property
    def unit(self) -> str:
        """What there are several of, for people."""
        return "texts" if self.media is None else self.media.unit

    @property
    def labelled(self) -> bool:
        return self.answers in ("label", "tags")

    @property
    def continues(self) -> bool:
        """Whether the answer stands behind what was given, in one stream."""
        return self.task in SPECS and spec_of(self.task).continues

    @property
    def writes(self) -> bool:
        """Whether the model wrote its answer token by token, so that row t says token t + 1."""
        return self.continues or "target" in self.streams

    def sides(self, kind: str) -> tuple[str, str]:
        """Of a kind of attention the stream of its rows and that of its columns; of a stack the
        stream that it reads, twice."""
        return SIDES.get(kind, (self.first.name, self.first.name))

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.streams.values()))

    def is_media(self, stream: str) -> bool:
        """Whether a stream is the picture or recording."""
        return self.media is not None and stream == self.first.name

    @property
    def first(self) -> Stream:
        return next(iter(self.streams.values()))

    @property
    def last(self) -> Stream:
        return list(self.streams.values())[-1]

    def facts(self) -> dict[str, Any]:
        """As JSON, without the pixels of a picture or the samples of a recording."""
        found = asdict(replace(self, media=None))
        del found["media"], found["hides"]
        return found if self.media is None else {**found, "media": self.media.facts()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Reading:
        streams = {
            name: Stream(
                name, *(tuple(values[key]) for key in ("ids", "pieces", "words", "special"))
            )
            for name, values in facts["streams"].items()
        }
        outputs = tuple(Output(**values) for values in facts["outputs"])
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


def shown(piece: str) -> str:
    """A token as people see it: without the mark of the space before it."""
    return piece.replace(SPACE_MARK, " ").strip(" ") or "␣"
