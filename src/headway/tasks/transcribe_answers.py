"""Prediction of transcripts: text, words with times, or subtitles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.data.media.audio import stream_windows
from headway.data.media.open_item import WHOLE, ItemFormat, is_file
from headway.data.sniff import AUDIO, extension
from headway.data.source import Example, media_examples
from headway.decode.speech.recognizer import Recognizer, recognizer_of
from headway.decode.speech.transcriber import AnyFloatArray, Transcriber, Transcript
from headway.decode.speech.transcriber import WindowSegment as SpokenWindow
from headway.errors import DataError, Option, UserError, suggest
from headway.settings.listed import ensure_list
from headway.settings.model import AudioSettings
from headway.settings.run import RunSettings
from headway.tasks.answers import Answer, AnswerSegment, TranscriptAnswer
from headway.tasks.media_answers import unreadable_answer
from headway.tasks.media_inputs import LoadedInput, check_kind, found_file
from headway.tasks.preprocess.preprocessor import media_settings_of
from headway.tasks.task import InferenceRequest

BLOCK_S = 4.0
"""Length in seconds of the blocks in which an audio file is decoded, so that a long file need not
fit into memory."""

FORMATS = ("text", "srt", "vtt")


@dataclass(frozen=True)
class NamedRecording:
    """Recording to transcribe, with the name that the user gave."""

    name: str
    blocks: Iterable[AnyFloatArray]
    """Blocks of samples, decoded lazily during iteration; read errors are raised then."""


@dataclass
class TranscriptPredictor:
    transcriber: Transcriber
    settings: RunSettings
    folder: Path
    n_failed: int = field(default=0, init=False)

    @classmethod
    def of(cls, use: InferenceRequest) -> TranscriptPredictor:
        form = use.options.get("format") or "text"
        if form not in FORMATS:
            raise UserError(
                f"unknown value {form!r} for {Option('format')}.{suggest(form, FORMATS)}"
            )
        times = bool(use.options.get("json")) or form != "text"
        return cls(transcriber_of(use, times=times), use.settings, use.opened.folder)

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        names: list[str] = []

        def recordings() -> Iterator[Iterable[AnyFloatArray]]:
            for named in open_recordings(lines, self.folder, self.shape, self.settings):
                names.append(named.name)
                yield named.blocks

        for place, found in enumerate(self.transcriber.transcribe(recordings(), live=live)):
            if isinstance(found, DataError):
                self.n_failed += 1
                yield unreadable_answer(names[place], str(found))
            else:
                yield answer_of(names[place], found)

    @property
    def shape(self) -> AudioSettings:
        return self.transcriber.shape

    def summary(self) -> str:
        text = self.transcriber.summary.text()
        return text + (f"; {self.n_failed:,} could not be read" if self.n_failed else "")


def transcriber_of(use: InferenceRequest, *, times: bool) -> Transcriber:
    opened, shape = use.opened, media_settings_of(use.settings)
    assert isinstance(shape, AudioSettings)
    tokenizer, decode, weight = (
        opened.vocab.target,
        use.settings.decode,
        use.settings.transcribe.ctc,
    )

    def made() -> Recognizer:
        if opened.engine is not None:
            return opened.engine.recognizer(tokenizer, decode, weight)
        [model] = opened.writers
        return recognizer_of(model, tokenizer, decode, weight)

    heard = opened.search_cache(("transcribe", decode, weight), made)
    return Transcriber(heard, tokenizer, decode, shape, times=times, between=use.between)


def open_recordings(
    lines: Iterable[str | LoadedInput | Example],
    folder: Path,
    shape: AudioSettings,
    settings: RunSettings,
) -> Iterator[NamedRecording]:
    """Yield the recordings that each line names: an audio file of any length, a folder, or a list
    of paths. Names that are not found are looked up in `folder`, the folder of the run."""
    form = ItemFormat.of("audio", shape)
    for line in ensure_list(lines):
        if isinstance(line, LoadedInput):
            yield NamedRecording(line.name, _whole(line))
            continue
        if isinstance(line, Example):  # from a list or folder that is already open
            name, items = line.place, [line]
        else:
            name = line.strip()
            try:
                path = found_file(name, folder)
                check_kind(path, "audio")
                if is_file(path) and extension(path) in AUDIO:
                    yield NamedRecording(name, _reading(path, shape))
                    continue
                items = list(media_examples([str(path)], settings.data, "audio"))
            except UserError as error:
                yield NamedRecording(name, _failing(error))
                continue
        for item in items:
            blocks = _opening(item, form)
            if not item.problem and item.medium.part == WHOLE:
                file = Path(item.medium.path)
                if is_file(file) and extension(file) in AUDIO:
                    blocks = _reading(file, shape)
            yield NamedRecording(name if len(items) == 1 else item.place, blocks)


def _whole(given: LoadedInput) -> Iterator[AnyFloatArray]:
    """Yield the samples of a recording that is already in memory, as one block."""
    if given.values is None:
        raise DataError(given.error)
    yield given.values


def _reading(path: Path, shape: AudioSettings) -> Iterator[AnyFloatArray]:
    for _, samples in stream_windows(path, shape.rate, BLOCK_S):
        yield samples


def _opening(item: Example, form: ItemFormat) -> Iterator[AnyFloatArray]:
    """Yield the samples of a region of an audio file or of an array, as one block."""
    yield item.medium.read(form).values


def _failing(error: UserError) -> Iterator[AnyFloatArray]:
    raise DataError(str(error))
    yield


def answer_of(name: str, found: Transcript) -> TranscriptAnswer:
    segments = tuple(segment_of(one) for one in found.segments)
    text = " ".join(found.text.split())
    notes = []
    if any(one.transcript.is_doubtful for one in found.segments):
        notes.append("parts of the transcript are unreliable: repetitive or improbable")
    if not text:
        notes.append("no speech found")
    return TranscriptAnswer(
        text=text,
        score=math.exp(found.log_prob) if text else None,
        place=name,
        notes=tuple(notes),
        segments=segments,
        words=tuple(found.words),
        seconds=found.seconds,
        log_prob=found.log_prob,
    )


def segment_of(part: SpokenWindow) -> AnswerSegment:
    heard = part.transcript
    return AnswerSegment(
        start=part.start,
        end=part.end,
        text=heard.text,
        tokens=heard.tokens,
        log_prob=heard.log_prob,
        compression_ratio=heard.compression_ratio,
        no_speech_prob=heard.no_speech,
        temperature=heard.temperature,
        silent=heard.is_silent,
        doubtful=heard.is_doubtful,
        tries=heard.n_attempts,
    )
