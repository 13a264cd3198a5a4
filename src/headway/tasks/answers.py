"""What a model answers: frozen values, one class for each kind, and lists of them.

Every answer has a text; kinds add what they know besides. What `--json` prints and what is printed
for people is made when it is asked for, by the `printed` of the task that answered.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, SupportsIndex, cast, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headway.errors import UserError, suggest
from headway.storage import replace_file, replace_text

if TYPE_CHECKING:
    from headway.decode.output import Look
    from headway.decode.speech.word_times import Word

Facts = dict[str, Any]
"""What JSON can hold."""

Vector = NDArray[np.float32]
Array = NDArray[np.generic]


@dataclass(frozen=True)
class Show:
    """How answers are printed for people."""

    scores: bool = False
    """With the score of each."""

    numbered: bool = False
    """Several may be outputs of one input: its number is before each."""

    alignments: bool = False
    top: int | None = None
    """This many classes, each with its probability; None: the best alone."""

    form: str = "text"
    """Of what was said: `text`, `srt` or `vtt`."""


PLAIN = Show()


class Printed(Protocol):
    """An answer as programs and people read it."""

    def facts(self) -> Facts: ...

    def lines(self, show: Show, number: int) -> str:
        """One line, or several where several outputs were asked for; `number`: of the input."""
        ...


@dataclass(frozen=True)
class Plain:
    """An answer that is printed in one way."""

    text: str
    said: Facts

    def lines(self, show: Show, number: int) -> str:
        return self.text

    def facts(self) -> Facts:
        return dict(self.said)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """To one input. `str(answer)` is its text."""

    text: str = ""
    """The class, the tagged sentence, what was written or said."""

    score: float | None = None
    """A probability; of text the geometric mean of its tokens'. None where there is none."""

    id: object = None
    """The `id` of the input, where it had one."""

    place: str = ""
    """What was asked, as it was named: a file, or its place in a list."""

    row: Mapping[str, object] | None = field(default=None, repr=False, compare=False)
    """The row of the table that it answers, but for columns that hold media."""

    notes: tuple[str, ...] = ()
    """What one should know about the answer."""

    error: str = ""
    """Why there is no answer, where what was given cannot be read."""

    printed: Printed | None = field(default=None, repr=False, compare=False)

    @property
    def others(self) -> tuple[Self, ...]:
        """Next-best answers, of the same kind."""
        return ()

    def to_dict(self) -> Facts:
        """What `headway predict --json` prints."""
        facts = {"text": self.text} if self.printed is None else self.printed.facts()
        return {"error": self.error, **facts} if self.error else facts

    def lines(self, show: Show = PLAIN, number: int = 1) -> str:
        """What `headway predict` prints; `number`: which of the inputs it answers."""
        return self.text if self.printed is None else self.printed.lines(show, number)

    def save(self, path: str | Path) -> None:
        """As `Answers.save`, alone."""
        Answers([self]).save(path)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """What is there, each of one line at most."""
        said = (
            f"{one.name}={SHORT.repr(getattr(self, one.name))}" for one in fields(self)
            if one.repr and not _is_usual(one, getattr(self, one.name))
        )  # fmt: skip
        return f"{type(self).__name__}({', '.join(said)})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ANSWER_FIELDS:  # not yet there: it is being copied
            raise AttributeError(name)
        if self.error:
            raise AttributeError(f"no {name!r}, because there is no prediction: {self.error}")
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}; it has "
            f"{', '.join(attributes_of(type(self)))}."
        )

    def _repr_html_(self) -> str:
        return Answers([self])._repr_html_()


def _is_usual(one: Field[Any], value: object) -> bool:
    """Whether a value says nothing."""
    return one.default is not MISSING and value is one.default


SHORT = reprlib.Repr()
SHORT.maxtuple, SHORT.maxstring, SHORT.maxother = 4, 200, 80

ANSWER_FIELDS = frozenset(one.name for one in fields(Answer))


def mean_probability(log_probs: Sequence[float]) -> float | None:
    """The geometric mean of probabilities; of none there is none."""
    return float(np.exp(np.mean(log_probs))) if len(log_probs) else None


def attributes_of(kind: type[Answer]) -> list[str]:
    """What can be asked of an answer of a kind, in order."""
    named = [one.name for one in fields(kind) if one.name != "printed"]
    more = [name for name in dir(kind) if isinstance(getattr(kind, name), property)]
    return [*dict.fromkeys([*named, *more])]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LabelAnswer(Answer):
    """A class."""

    classes: tuple[str, ...]
    """All classes of the run, in its order ..."""

    shares: tuple[float, ...]
    """... and the probability of each."""

    @classmethod
    def of(
        cls, classes: Sequence[str], shares: Iterable[float], *, place: str = "",
        printed: Printed | None = None,
    ) -> LabelAnswer:  # fmt: skip
        """The likeliest class; of equal ones the first."""
        values = tuple(map(float, shares))
        best = max(range(len(values)), key=values.__getitem__)
        return cls(
            text=classes[best], score=values[best], place=place, printed=printed,
            classes=tuple(classes), shares=values,
        )  # fmt: skip

    @property
    def label(self) -> str:
        return self.text

    @property
    def probabilities(self) -> dict[str, float]:
        return dict(zip(self.classes, self.shares, strict=True))

    @property
    def others(self) -> tuple[Self, ...]:
        order = sorted(range(len(self.shares)), key=lambda i: -self.shares[i])
        return tuple(
            replace(self, text=self.classes[i], score=self.shares[i], printed=None)
            for i in order
            if self.classes[i] != self.text
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LabelsAnswer(Answer):
    """Any number of labels."""

    labels: tuple[str, ...]
    """Labels with a probability of at least `classify.threshold`, the likeliest first."""

    classes: tuple[str, ...]
    """All labels of the run, in its order ..."""

    shares: tuple[float, ...]
    """... and the probability of each, for itself."""

    @property
    def probabilities(self) -> dict[str, float]:
        return dict(zip(self.classes, self.shares, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NumberAnswer(Answer):
    """A number, in the unit of the training data."""

    value: float

    def __float__(self) -> float:
        return self.value


class Span(NamedTuple):
    """Words that belong together."""

    type: str
    first: int
    last: int
    """The last word of it, itself included."""

    text: str
    start: int | None = None
    """Where it is in the text, in characters; None where words were given."""

    end: int | None = None

    def facts(self) -> Facts:
        return {name: one for name, one in self._asdict().items() if one is not None}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TagAnswer(Answer):
    """A tag for each word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    marked: bool = False
    """Tags say where spans begin and end: B-, I-, O."""

    offsets: tuple[tuple[int, int], ...] = ()
    """Where each word begins and ends in `source`, in characters; empty where words were given."""

    source: str = ""
    """The text that the words were found in."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Empty where tags mark none."""
        from headway.metrics.spans import spans

        found = spans(self.tags) if self.marked else []
        return tuple(self._span(one.type, one.first, one.last) for one in found)

    def _span(self, kind: str, first: int, last: int) -> Span:
        if not self.offsets:
            return Span(kind, first, last, " ".join(self.words[first : last + 1]))
        start, end = self.offsets[first][0], self.offsets[last][1]
        return Span(kind, first, last, self.source[start:end], start, end)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TextAnswer(Answer):
    """Text that was written."""

    source: str = ""
    """What it was written for: the sentence, the prompt; empty for what is no text."""

    tokens: tuple[str, ...] = ()
    """Readable pieces. The end is not among them ..."""

    token_log_probs: tuple[float, ...] = ()
    """... but its log-probability is here, last, where the text is finished."""

    log_prob: float = 0.0
    """Of all tokens."""

    finished: bool = True
    """It came to its end by itself, before any limit."""

    alignment: tuple[tuple[int, int], ...] | tuple[Look, ...] | None = None
    """Pairs of words of source and text, from 0; of a picture where each word looked. None where it
    was not asked for: `alignments=True`."""

    rest: tuple[TextAnswer, ...] = field(default=(), repr=False)

    @property
    def others(self) -> tuple[Self, ...]:
        return cast(tuple[Self, ...], self.rest)


class Segment(NamedTuple):
    """The transcript of a stretch of a recording, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    log_prob: float | None = None
    """The mean over the tokens and the end; None where nothing was decoded, as of silence."""

    compression_ratio: float | None = None
    """Bytes of the text for each byte that zlib makes of it: high where it repeats itself."""

    no_speech_prob: float | None = None
    """The probability of Whisper's no-speech token; None of models without one."""

    temperature: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpokenAnswer(Answer):
    """Text that was said."""

    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()
    """Each with `text`, `start`, `end` and `confidence`."""

    seconds: float = 0.0
    log_prob: float = 0.0
    """The mean over tokens."""


class Guess(NamedTuple):
    word: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GapAnswer(Answer):
    """A text whose gaps are filled."""

    gaps: tuple[tuple[Guess, ...], ...] = ()
    """For each gap the likeliest words, as many as `n_best` says."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VectorAnswer(Answer):
    """A vector of an input."""

    vector: Vector = field(compare=False)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self.vector, dtype)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NearAnswer(VectorAnswer):
    """What is nearest to an input among those it was compared with."""

    cosine: float
    near: tuple[tuple[str, float], ...] = ()
    """The nearest and their cosines, from the nearest on."""


class Answers(list[Answer]):
    """Answers in the order of their inputs."""

    @overload
    def __getitem__(self, place: SupportsIndex) -> Answer: ...
    @overload
    def __getitem__(self, place: slice) -> Answers: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Answer | Answers:
        found = super().__getitem__(place)
        return found if isinstance(found, Answer) else Answers(found)

    def __add__(self, more: Iterable[Answer]) -> Answers:  # type: ignore[override]
        return Answers([*self, *more])

    def copy(self) -> Answers:
        return Answers(self)

    def __repr__(self) -> str:
        left = len(self) - MOST_REPR
        more = [f"… {left:,} more"] if left > 0 else []
        return f"Answers([{', '.join([*map(repr, self[:MOST_REPR]), *more])}])"

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self]

    @property
    def labels(self) -> list[str]:
        return [answer.label for answer in self]

    @property
    def scores(self) -> list[float | None]:
        return [answer.score for answer in self]

    @property
    def vectors(self) -> Vector:
        """(n, d)."""
        return np.stack([answer.vector for answer in self]) if self else np.zeros((0, 0), "f4")

    def to_dicts(self) -> list[Facts]:
        return [answer.to_dict() for answer in self]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Vectors where these are vectors, else texts."""
        if self and all(isinstance(answer, VectorAnswer) for answer in self):
            return np.asarray(self.vectors, dtype)
        return np.array(self.texts, str if dtype is None else dtype)

    def save(self, path: str | Path) -> None:
        """Write all answers to one file in the format of its ending.

        .txt: one line per answer; .csv, .tsv, .parquet: a table of the given columns and the
        answers; .jsonl: what `--json` prints; .npy: vectors; .srt, .vtt: subtitles; .conll: tagged
        words.
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending not in SAVERS:
            raise UserError(
                f"{path}: cannot save predictions as {ending or 'a file without an extension'}."
                f"{suggest(ending, SAVERS)}"
            )
        try:
            SAVERS[ending](self, path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}.") from error

    def _repr_html_(self) -> str:
        return table_html(self)


def _save_lines(answers: Answers, path: Path) -> None:
    for number, answer in enumerate(answers, 1):
        _check_line(answer.text, number, path)
    replace_text(path, "".join(f"{answer.text}\n" for answer in answers))


def _save_table(answers: Answers, path: Path) -> None:
    from headway.tasks.answer_tables import save_table

    save_table(answers, path)


def _check_line(text: str, number: int, path: Path) -> None:
    if len(text.splitlines()) > 1 or text.endswith("\n"):
        raise UserError(
            f"{path}: prediction {number:,} contains a line break, but a .txt file has one line "
            f"per prediction: {text[:60]!r}. Save as .jsonl."
        )


def _save_json(answers: Answers, path: Path) -> None:
    lines = (json.dumps(facts, ensure_ascii=False) for facts in answers.to_dicts())
    replace_text(path, "".join(f"{line}\n" for line in lines))


def _save_vectors(answers: Answers, path: Path) -> None:
    if not all(isinstance(answer, VectorAnswer) for answer in answers):
        raise _unfit(answers, path, "vectors of the task embed")
    save_array(path, answers.vectors)


def save_array(path: Path, values: Vector) -> None:
    def write(part: Path) -> None:
        with part.open("wb") as file:  # np.save would change the name
            np.save(file, values)

    replace_file(path, write)


def _save_subtitles(answers: Answers, path: Path) -> None:
    spoken = [answer for answer in answers if isinstance(answer, SpokenAnswer)]
    if len(spoken) < len(answers) or not answers:
        raise _unfit(answers, path, "transcripts of the task transcribe")
    if len(answers) > 1:
        raise UserError(
            f"{path}: a subtitle file is for one recording, but there are {len(answers):,} "
            f"predictions. Save each one: answers[0].save({path.name!r})"
        )
    from headway.decode.speech.subtitles import srt, vtt

    replace_text(path, (srt if path.suffix.lower() == ".srt" else vtt)(spoken[0].words))


def _save_columns(answers: Answers, path: Path) -> None:
    tagged = [answer for answer in answers if isinstance(answer, TagAnswer)]
    if len(tagged) < len(answers):
        raise _unfit(answers, path, "tagged words of the task tag")
    sentences = (
        "".join(f"{word}\t{tag}\n" for word, tag in zip(one.words, one.tags, strict=True))
        for one in tagged
    )
    replace_text(path, "".join(f"{sentence}\n" for sentence in sentences))


def _unfit(answers: Answers, path: Path, wanted: str) -> UserError:
    kinds = ", ".join(sorted({type(answer).__name__ for answer in answers})) or "none"
    return UserError(f"{path} can only hold {wanted}, but the predictions are of type {kinds}.")


SAVERS: dict[str, Callable[[Answers, Path], None]] = {
    ".txt": _save_lines,
    ".csv": _save_table,
    ".tsv": _save_table,
    ".parquet": _save_table,
    ".jsonl": _save_json,
    ".npy": _save_vectors,
    ".srt": _save_subtitles,
    ".vtt": _save_subtitles,
    ".conll": _save_columns,
}


MOST_REPR = 20
"""Answers that are shown where there are no notebooks."""

MOST_ROWS = 50
"""Answers that a notebook shows."""

CELL = "text-align:left;white-space:pre-wrap"


def table_html(answers: Sequence[Answer]) -> str:
    """For notebooks."""
    shown = answers[:MOST_ROWS]
    names = ["place"] * any(one.place for one in shown)
    names += ["source"] * any(getattr(one, "source", "") for one in shown)
    names += ["text", *["score"] * any(one.score is not None for one in shown)]
    head = _row("th", names)
    rows = "".join(_row("td", [_cell(one, name) for name in names]) for one in shown)
    left = len(answers) - len(shown)
    more = f"<p>… and {left:,} more</p>" if left else ""
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{more}"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag} style={CELL!r}>{cell}</{tag}>' for cell in cells)}</tr>"


def _cell(answer: Answer, name: str) -> str:
    if name == "score":
        return "" if answer.score is None else f"{answer.score:.4f}"
    if name != "text":
        return escape(str(getattr(answer, name, "")))
    if answer.error:
        return f'<span style="color:#b00">{escape(answer.error)}</span>'
    notes = "".join(f"<br><small>{escape(note)}</small>" for note in answer.notes)
    return (_shaded(answer) or escape(answer.text)) + notes


def _shaded(answer: Answer) -> str:
    """The tokens of a text, the redder the less likely; empty where they do not make it up."""
    if not isinstance(answer, TextAnswer) or len(answer.token_log_probs) < len(answer.tokens):
        return ""
    parts = [token.replace("▁", " ") for token in answer.tokens]
    if "".join(parts).strip() != answer.text.strip():
        return ""
    return "".join(
        f'<span title="{np.exp(log_prob):.3f}" style="background:rgba(214,69,65,'
        f'{0.6 * (1 - np.exp(log_prob)):.2f})">{escape(part)}</span>'
        for part, log_prob in zip(parts, answer.token_log_probs, strict=False)
    )
