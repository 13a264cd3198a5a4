"""Answers (predictions) of models: one frozen class for each kind, and lists of answers.

Every answer has a text; each kind adds its own fields. `tasks/format.py` converts the fields to
printed lines, JSON, table cells and HTML.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, cast, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headway.errors import UserError, suggest
from headway.storage import replace_file, replace_text

if TYPE_CHECKING:
    from headway.decode.output import AttendedRegion
    from headway.decode.speech.word_times import WordTiming
    from headway.tasks.format import PrintOptions

JsonDict = dict[str, Any]
"""JSON object as a Python dictionary."""

Float32Array = NDArray[np.float32]
AnyArray = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """Answer to one input. `str(answer)` is its text."""

    text: str = ""
    """Class label, tagged sentence, generated text or transcript."""

    score: float | None = None
    """Probability of the answer; for generated text the geometric mean over its tokens. None if not
    available."""

    id: object = None
    """The `id` of the input, if it had one."""

    place: str = ""
    """Name of the input: a file name, or the line in a list of files."""

    source: str | None = None
    """Input text; None if the input is not a text, or if the answer does not keep it."""

    row: Mapping[str, object] | None = field(default=None, repr=False, compare=False)
    """Row of the input table, without its media columns; None if the input was not a table row."""

    notes: tuple[str, ...] = ()
    """Remarks about the answer, for example that the input was truncated."""

    error: str = ""
    """Reason why there is no answer, if the input could not be read; otherwise empty."""

    silent: bool = False
    """Whether the input is silent audio, so that the answer is meaningless."""

    @property
    def others(self) -> tuple[Self, ...]:
        """Alternative answers of the same type, best first."""
        return ()

    def to_dict(self) -> JsonDict:
        """Return the JSON object that `headway predict --json` prints."""
        from headway.tasks.format import to_json

        return to_json(self)

    def lines(self, show: PrintOptions | None = None, number: int = 1) -> str:
        """Format the answer as `headway predict` prints it.

        Args:
            show: Output options, such as scores.
            number: 1-based index of the input.
        """
        from headway.tasks.format import PrintOptions, to_lines

        return to_lines(self, show or PrintOptions(), number)

    def save(self, path: str | Path) -> None:
        """Write this answer to a file, as `Answers.save` does.

        Args:
            path: File whose extension selects the format.
        """
        Answers([self]).save(path)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults, each shortened."""
        said = (
            f"{one.name}={SHORT.repr(getattr(self, one.name))}" for one in fields(self)
            if one.repr and not _is_default(one, getattr(self, one.name))
        )  # fmt: skip
        return f"{type(self).__name__}({', '.join(said)})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ANSWER_FIELDS:  # not set yet while the object is copied
            raise AttributeError(name)
        if self.error:
            raise AttributeError(
                f"{name!r} is not available, because the prediction failed: {self.error}"
            )
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}. Its attributes: "
            f"{', '.join(attributes_of(type(self)))}."
        )

    def _repr_html_(self) -> str:
        return Answers([self])._repr_html_()


def _is_default(one: Field[Any], value: object) -> bool:
    return one.default is not MISSING and value is one.default


SHORT = reprlib.Repr()
SHORT.maxtuple, SHORT.maxstring, SHORT.maxother = 4, 200, 80

ANSWER_FIELDS = frozenset(one.name for one in fields(Answer))


def mean_probability(log_probs: Sequence[float]) -> float | None:
    """Return the geometric mean of the probabilities, given their logarithms; None if there are
    none."""
    return float(np.exp(np.mean(log_probs))) if len(log_probs) else None


def attributes_of(kind: type[Answer]) -> list[str]:
    """Return the names of the public fields and properties of an answer class, in order."""
    named = [one.name for one in fields(kind)]
    more = [name for name in dir(kind) if isinstance(getattr(kind, name), property)]
    return [*dict.fromkeys([*named, *more])]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LabelAnswer(Answer):
    """Answer of a classifier with one class per input."""

    classes: tuple[str, ...]
    """Names of all classes of the run, in the order of the model's outputs."""

    probs: tuple[float, ...]
    """Probability of each class, in the order of `classes`."""

    log_probs: tuple[float, ...] = ()
    """Log-probability of each class label as generated text, if a language model chose among the
    labels; otherwise empty."""

    top: int | None = None
    """How many of the most likely classes were requested (top-k); None: only the best."""

    @classmethod
    def of(cls, classes: Sequence[str], shares: Iterable[float], **other: Any) -> LabelAnswer:
        """Build the answer from the probability of each class.

        Args:
            classes: Names of all classes.
            shares: Probability of each class. The first of equally likely classes is chosen.
            **other: Further fields of the answer.
        """
        values = tuple(map(float, shares))
        best = max(range(len(values)), key=values.__getitem__)
        return cls(
            text=classes[best], score=values[best], classes=tuple(classes), probs=values, **other
        )

    @property
    def label(self) -> str:
        """The most likely class."""
        return self.text

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of each class, by class name."""
        return dict(zip(self.classes, self.probs, strict=True))

    @property
    def others(self) -> tuple[Self, ...]:
        order = sorted(range(len(self.probs)), key=lambda i: -self.probs[i])
        return tuple(
            replace(self, text=self.classes[i], score=self.probs[i])
            for i in order
            if self.classes[i] != self.text
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LabelsAnswer(Answer):
    """Answer of a multi-label classifier: any number of labels."""

    labels: tuple[str, ...]
    """Predicted labels, most likely first: those with a probability of at least
    `classify.threshold`."""

    classes: tuple[str, ...]
    """Names of all labels of the run, in the order of the model's outputs."""

    probs: tuple[float, ...]
    """Independent probability of each label, in the order of `classes`."""

    top: int | None = None
    """How many of the most likely labels were requested (top-k); None: only the predicted ones."""

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of each label, by label name."""
        return dict(zip(self.classes, self.probs, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NumberAnswer(Answer):
    """Answer of a regression model: a number in the unit of the training data."""

    value: float
    """Predicted number, in the unit of the training data."""

    def __float__(self) -> float:
        return self.value


class AnswerSpan(NamedTuple):
    """Span of consecutive words with one type, such as a named entity."""

    type: str
    first: int
    last: int
    """Index of the last word, inclusive."""

    text: str
    start: int | None = None
    """Start in the text, in characters; None if the input was a list of words."""

    end: int | None = None

    def facts(self) -> JsonDict:
        return {name: one for name, one in self._asdict().items() if one is not None}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TagAnswer(Answer):
    """Answer of a tagger: one tag for each word."""

    words: tuple[str, ...]
    """Words of the sentence."""

    tags: tuple[str, ...]
    """One tag per word."""

    marked: bool = False
    """Whether the tags mark spans with prefixes such as B- and I-."""

    offsets: tuple[tuple[int, int], ...] = ()
    """Start and end of each word in `source`, in characters; empty if the input was a list of
    words."""

    @property
    def spans(self) -> tuple[AnswerSpan, ...]:
        """Spans that the tags mark; empty for tags that do not mark spans."""
        from headway.metrics.spans import spans

        found = spans(self.tags) if self.marked else []
        return tuple(self._span(one.type, one.first, one.last) for one in found)

    def _span(self, kind: str, first: int, last: int) -> AnswerSpan:
        if self.source is None or not self.offsets:
            return AnswerSpan(kind, first, last, " ".join(self.words[first : last + 1]))
        start, end = self.offsets[first][0], self.offsets[last][1]
        return AnswerSpan(kind, first, last, self.source[start:end], start, end)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WordAnswer(Answer):
    """One line of CoNLL output: a word with its tag, or the separator line between two
    sentences."""

    word: str = ""
    """The word; empty for a separator line, whose content is `text`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TextAnswer(Answer):
    """Generated text, such as a translation, caption or continuation."""

    tokens: tuple[str, ...] = ()
    """Generated tokens in readable form, without the end token."""

    token_log_probs: tuple[float, ...] = ()
    """Log-probability of each generated token; the last one is that of the end token if the text is
    finished."""

    log_prob: float = 0.0
    """Sum of the log-probabilities of all tokens."""

    ranking_score: float = 0.0
    """Log-probability with the length penalty applied, by which `others` are ranked."""

    finished: bool = True
    """Whether generation ended with an end token, not at a length limit."""

    stopped_by: str | None = None
    """Stop string that ended generation; None if there was none."""

    parts: int = 1
    """Number of parts that a long source was split into; 1: not split."""

    cut: bool = False
    """Whether the end of a long source was truncated."""

    size: tuple[int, int] | None = None
    """Height and width in pixels of the image that `alignment` refers to; None for texts."""

    alignment: tuple[tuple[int, int], ...] | tuple[AttendedRegion, ...] | None = None
    """Alignment of the output words. Texts: pairs of word indices of source and output, from 0.
    Images: the region that each word attended to. None without `alignments=True`."""

    rest: tuple[TextAnswer, ...] = field(default=(), repr=False)
    """Storage of the next-best answers, which `others` returns."""

    @property
    def others(self) -> tuple[Self, ...]:
        return cast(tuple[Self, ...], self.rest)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ContinuationAnswer(TextAnswer):
    """Text that continues a prompt; the prompt is in `source`."""

    prompted: bool = True
    """Whether the prompt is printed before the text."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FieldAnswer(ContinuationAnswer):
    """Generated field of a document, such as its title or body."""

    field: str
    """Name of the generated field."""

    document: Mapping[str, str]
    """All fields of the document, including the generated one, by name."""


class AnswerSegment(NamedTuple):
    """Transcript of a section of a recording, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    log_prob: float | None = None
    """Mean log-probability over the tokens and the end token; None if nothing was decoded, as for
    silence."""

    compression_ratio: float | None = None
    """Length of the text in bytes divided by its length after zlib compression. Repetitive text has
    a high ratio."""

    no_speech_prob: float | None = None
    """Probability of Whisper's no-speech token; None for models without one."""

    temperature: float = 0.0
    silent: bool = False
    doubtful: bool = False
    """Whether the text is unreliable, because it is repetitive or improbable."""

    tries: int = 1
    """Number of decoding attempts, each at a higher temperature."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TranscriptAnswer(Answer):
    """Transcript of an audio recording."""

    segments: tuple[AnswerSegment, ...] = ()
    """Transcripts of consecutive sections of the recording."""

    words: tuple[WordTiming, ...] = ()
    """Words of the transcript with `text`, `start`, `end` (in seconds) and `confidence`."""

    seconds: float = 0.0
    """Length of the recording in seconds."""

    log_prob: float = 0.0
    """Mean log-probability of the tokens."""


class TokenGuess(NamedTuple):
    word: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GapAnswer(Answer):
    """Input text with its gaps filled by the most likely words."""

    gaps: tuple[tuple[TokenGuess, ...], ...] = ()
    """The `n_best` most likely words for each gap."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VectorAnswer(Answer):
    """Embedding vector of one input."""

    vector: Float32Array = field(compare=False)
    """The embedding: an array of shape (d,)."""

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> AnyArray:
        return np.array(self.vector, dtype)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NearestAnswer(VectorAnswer):
    """Candidate nearest to an input by cosine similarity of embeddings."""

    cosine: float
    """Cosine similarity of the input and its nearest candidate."""

    near: tuple[tuple[str, float], ...] = ()
    """Nearest candidates with their cosines, nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpeakerAnswer(NearestAnswer):
    """Speaker of a recording: the nearest enrolled speaker, or the result of a comparison with one
    other recording."""

    against: str | None = None
    """Name of the recording to compare with; None if the speaker is identified among enrolled
    speakers."""

    threshold: float | None = None
    """Minimum cosine that counts as the same speaker; None if the speaker is identified among
    enrolled speakers, or if the run has logged no threshold."""

    @property
    def same(self) -> bool | None:
        """Whether the cosine reaches the threshold, which means the same speaker; None without a
        threshold."""
        return None if self.threshold is None else self.cosine >= self.threshold


class Answers(list[Answer]):
    """List of answers, in the order of their inputs."""

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
        """Text of each answer."""
        return [answer.text for answer in self]

    @property
    def labels(self) -> list[str]:
        """Label of each answer, for a classifier with one class per input."""
        return [answer.label for answer in self]

    @property
    def scores(self) -> list[float | None]:
        """Score of each answer."""
        return [answer.score for answer in self]

    @property
    def vectors(self) -> Float32Array:
        """Embedding vectors of all answers, as an array of shape (n, d)."""
        return np.stack([answer.vector for answer in self]) if self else np.zeros((0, 0), "f4")

    def to_dicts(self) -> list[JsonDict]:
        """Return all answers as JSON objects."""
        return [answer.to_dict() for answer in self]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> AnyArray:
        """Return the vectors if all answers have one, otherwise the texts."""
        if self and all(isinstance(answer, VectorAnswer) for answer in self):
            return np.asarray(self.vectors, dtype)
        return np.array(self.texts, str if dtype is None else dtype)

    def save(self, path: str | Path) -> None:
        """Write all answers to one file.

        Args:
            path: File whose extension selects the format. `.txt`: one line per answer. `.csv`,
                `.tsv`, `.parquet`: columns of the input and the answers. `.jsonl`: output of
                `--json`. `.npy`: vectors. `.srt`, `.vtt`: subtitles. `.conll`: tagged words.

        Example:
            >>> run(["Danke.", "Guten Tag."]).save("answers.csv")
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
        from headway.tasks.format import to_html

        return to_html(self)


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
            f"per prediction: {text[:60]!r}. Save as .jsonl instead."
        )


def _save_json(answers: Answers, path: Path) -> None:
    lines = (json.dumps(facts, ensure_ascii=False) for facts in answers.to_dicts())
    replace_text(path, "".join(f"{line}\n" for line in lines))


def _save_vectors(answers: Answers, path: Path) -> None:
    if not all(isinstance(answer, VectorAnswer) for answer in answers):
        raise _unsupported_format(answers, path, "vectors of the task embed")
    save_array(path, answers.vectors)


def save_array(path: Path, values: Float32Array) -> None:
    def write(part: Path) -> None:
        with part.open("wb") as file:  # np.save would change the name
            np.save(file, values)

    replace_file(path, write)


def _save_subtitles(answers: Answers, path: Path) -> None:
    spoken = [answer for answer in answers if isinstance(answer, TranscriptAnswer)]
    if len(spoken) < len(answers) or not answers:
        raise _unsupported_format(answers, path, "transcripts of the task transcribe")
    if len(answers) > 1:
        raise UserError(
            f"{path}: a subtitle file holds one recording, but there are {len(answers):,} "
            f"predictions. Save each prediction separately: answers[0].save({path.name!r})"
        )
    from headway.decode.speech.subtitles import srt, vtt

    replace_text(path, (srt if path.suffix.lower() == ".srt" else vtt)(spoken[0].words))


def _save_columns(answers: Answers, path: Path) -> None:
    tagged = [answer for answer in answers if isinstance(answer, TagAnswer)]
    if len(tagged) < len(answers):
        raise _unsupported_format(answers, path, "tagged words of the task tag")
    sentences = (
        "".join(f"{word}\t{tag}\n" for word, tag in zip(one.words, one.tags, strict=True))
        for one in tagged
    )
    replace_text(path, "".join(f"{sentence}\n" for sentence in sentences))


def _unsupported_format(answers: Answers, path: Path, wanted: str) -> UserError:
    kinds = ", ".join(sorted({type(answer).__name__ for answer in answers})) or "none"
    return UserError(
        f"{path}: a {path.suffix} file can only contain {wanted}, but the predictions are of type "
        f"{kinds}. Save them as .jsonl instead."
    )


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
"""Maximum number of answers that a `repr` shows: one screen."""
