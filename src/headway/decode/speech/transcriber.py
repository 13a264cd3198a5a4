"""Transcribe recordings: split them into windows, detect wrong transcripts, and compute word times.

Wrong transcripts are recognized by repetition, low probability or silence (Radford et al. 2022,
§4.5). A decoder that fails often repeats itself, and repetitive text compresses well.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.decode.align import word_numbers
from headway.decode.batching import batches
from headway.decode.search.job import Hypothesis
from headway.decode.speech.recognizer import Recognizer
from headway.decode.speech.word_times import WordTiming, make_word_timings, snap_to_pauses
from headway.errors import DataError
from headway.progress import OnProgress, no_progress
from headway.settings.audio import AudioSettings
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

FULL_SCALE = 32768.0
"""Largest magnitude of 16-bit samples. Samples are divided by it, so that they are between −1 and
1."""

NO_SPEECH = 0.6
"""Probability of the no-speech token above which a doubtful window counts as silent; Whisper's
value."""

MOST_RATIO = 2.4
"""Compression ratio above which a transcript counts as repetitive; Whisper's value (Radford et al.
2022, §4.5)."""

LEAST_LOG_PROB = -1.0
"""Mean log-probability below which a transcript is doubtful; Whisper's value."""

SPEECH_LEVEL = 10 ** (-60 / 20)
"""Amplitude below which there is no speech: −60 dB relative to full scale. It is compared with the
loudest tenth of a second."""


def compression_ratio(text: str) -> float:
    """Return the size of the text in bytes divided by its compressed size. It is below 1 for short
    texts."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


@dataclass(frozen=True)
class TranscriptCheck:
    """Measures of whether the transcript of a window is wrong: repetition, low probability, or a
    missing end."""

    ratio: float
    log_prob: float
    """Mean log-probability of the tokens, including that of the end token."""

    finished: bool

    @property
    def is_repetitive(self) -> bool:
        return self.ratio > MOST_RATIO or not self.finished

    @property
    def is_doubtful(self) -> bool:
        return self.is_repetitive or self.log_prob < LEAST_LOG_PROB

    def is_better_than(self, other: TranscriptCheck) -> bool:
        """Return whether this transcript is preferable. A transcript without repetition is better;
        otherwise the higher log-probability decides."""
        return (not self.is_repetitive, self.log_prob) > (not other.is_repetitive, other.log_prob)


def is_too_quiet_for_speech(samples: NDArray[np.floating[Any]], rate: int) -> bool:
    """Return whether every tenth of a second is too quiet for speech."""
    step = max(1, rate // 10)
    if not len(samples):
        return True
    ends = np.arange(0, len(samples), step)
    power = np.add.reduceat(samples.astype(np.float64) ** 2, ends) / step
    return bool(np.sqrt(power.max()) < SPEECH_LEVEL)


@dataclass(frozen=True)
class WindowTranscript:
    """Transcript of one window, with its quality measures and word times."""

    text: str
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    """Log-probabilities of the tokens, including that of the end token if there is one."""

    temperature: float = 0.0
    """Temperature at which the transcript was sampled; 0 if it was not sampled."""

    no_speech: float | None = None
    """Probability of the no-speech token; None if the model has no such token or it was not needed.
    It is computed only with word times or for a doubtful transcript."""

    words: tuple[WordTiming, ...] = ()
    """Words with start and end times relative to the window; empty if word times were not
    requested."""

    n_attempts: int = 1
    is_silent: bool = False
    is_doubtful: bool = False
    """Whether all attempts at the window gave a repetitive or improbable transcript."""

    @property
    def log_prob(self) -> float | None:
        """Mean log-probability of the tokens, including the end token; None if nothing was
        decoded."""
        return sum(self.log_probs) / len(self.log_probs) if self.log_probs else None

    @property
    def compression_ratio(self) -> float:
        return compression_ratio(self.text)


@dataclass(frozen=True)
class WindowSegment:
    """Transcript of a window, with the start and end of the window in the recording."""

    start: float
    end: float
    transcript: WindowTranscript


@dataclass
class Transcript:
    segments: list[WindowSegment] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(part.transcript.text for part in self.segments if part.transcript.text)

    @property
    def words(self) -> list[WordTiming]:
        return [
            replace(word, start=word.start + part.start, end=word.end + part.start)
            for part in self.segments
            for word in part.transcript.words
        ]

    @property
    def seconds(self) -> float:
        return self.segments[-1].end if self.segments else 0.0

    @property
    def log_prob(self) -> float:
        """Mean log-probability of all tokens, including end tokens, in windows with speech."""
        found = [
            one
            for part in self.segments
            if part.transcript.text
            for one in part.transcript.log_probs
        ]
        return sum(found) / len(found) if found else 0.0


@dataclass
class TranscriptionSummary:
    recordings: int = 0
    seconds: float = 0.0
    windows: int = 0
    silent: int = 0
    doubtful: int = 0
    took: float = 0.0

    def text(self) -> str:
        unit = "recording" if self.recordings == 1 else "recordings"
        said = f"{self.recordings:,} {unit}, {self.seconds:,.1f} s of audio"
        if self.windows > self.recordings:
            said += f" in {self.windows:,} windows"
        for n, what in ((self.silent, "silent"), (self.doubtful, "doubtful")):
            said += f", {n:,} {what}" if n else ""
        return f"{said}, {self.took:.1f} s ({self.seconds / max(self.took, 1e-9):,.1f}× real time)"


class Transcriber:
    """Transcribes windows in batches of similar length. Results are in input order.

    `times`: whether to compute word times. `guard`: whether silent windows give no text, and
    doubtful ones are transcribed again in other ways. `between`: called between batches.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        tokenizer: Tokenizer,
        settings: DecodeSettings,
        shape: AudioSettings,
        *,
        times: bool = False,
        guard: bool = True,
        between: OnProgress = no_progress,
    ) -> None:
        self.tokenizer, self.settings, self.shape = tokenizer, settings, shape
        self.times, self.guard, self.between = times, guard, between
        self.recognizer = recognizer
        self.summary = TranscriptionSummary()

    @property
    def window_s(self) -> float:
        """Maximum duration of a window in seconds."""
        return self.shape.pad_s or self.shape.max_rows * self.shape.row_seconds

    def transcribe(
        self, recordings: Iterable[Iterable[Any]], *, live: bool = False
    ) -> Iterator[Transcript | DataError]:
        """Transcribe recordings in order.

        A recording is a sequence of blocks of samples (16-bit or float) at the sampling rate of the
        model. If a recording cannot be read, the error is yielded in its place and the others
        continue. `live`: yield each transcript as soon as its recording is read. Only the windows
        of one batch are in memory, whatever the length of the recordings.
        """
        waiting: deque[tuple[Transcript, list[DataError]]] = deque()
        pending: list[tuple[Transcript, AudioWindow]] = []
        rows = 0
        for blocks in recordings:
            found, failed = Transcript(), list[DataError]()
            waiting.append((found, failed))
            try:
                for window in windows_of(map(_as_float, blocks), self.shape.rate, self.window_s):
                    pending.append((found, window))
                    rows += self.shape.rows_of(len(window.samples))
                    if rows >= self._room:
                        self._answer(pending)
                        pending, rows = [], 0
            except DataError as error:
                failed.append(error)
            if live or not pending:
                self._answer(pending)
                pending, rows = [], 0
                yield from self._given(waiting)
        self._answer(pending)
        yield from self._given(waiting)

    @property
    def _room(self) -> int:
        return max(1, self.settings.batch_tokens // self.settings.width)

    def _given(
        self, waiting: deque[tuple[Transcript, list[DataError]]]
    ) -> Iterator[Transcript | DataError]:
        while waiting:
            found, failed = waiting.popleft()
            self.summary.recordings += 1
            self.summary.seconds += found.seconds
            yield failed[0] if failed else found

    def _answer(self, pending: Sequence[tuple[Transcript, AudioWindow]]) -> None:
        heard = self.transcribe_windows([window.samples for _, window in pending])
        for (found, window), said in zip(pending, heard, strict=True):
            end = window.start + len(window.samples) / self.shape.rate
            found.segments.append(WindowSegment(window.start, end, said))

    def transcribe_windows(self, waves: Sequence[Any]) -> list[WindowTranscript]:
        """Transcribe windows of samples (16-bit or float) at the sampling rate of the model."""
        start = time.perf_counter()
        floats = [_as_float(wave) for wave in waves]
        found: dict[int, WindowTranscript] = {}
        speaking = []
        for place, wave in enumerate(floats):
            if not len(wave) or (self.guard and is_too_quiet_for_speech(wave, self.shape.rate)):
                found[place] = WindowTranscript("", is_silent=True)
            else:
                speaking.append(place)
        lengths = [self.shape.rows_of(len(floats[place])) for place in speaking]
        for group in batches(lengths, self._room):
            places = [speaking[number] for number in group]
            heard = self._batch([floats[place] for place in places])
            found |= dict(zip(places, heard, strict=True))
            self.between(len(found), len(waves))
        results = [found[place] for place in range(len(waves))]
        self.summary.windows += len(results)
        self.summary.silent += sum(heard.is_silent for heard in results)
        self.summary.doubtful += sum(heard.is_doubtful for heard in results)
        self.summary.took += time.perf_counter() - start
        return results

    def _batch(self, waves: Sequence[AnyFloatArray]) -> list[WindowTranscript]:
        said = self.recognizer.recognize(waves)
        heat = self.settings.temperature if self.settings.sample else 0.0
        tries, heats = [1] * len(waves), [heat] * len(waves)
        doubts = [self._doubt(found) for found in said]
        if self.guard:
            self._try_again(waves, said, doubts, tries, heats)
        heard = [
            WindowTranscript(
                self._text(found),
                tuple(found.tokens),
                tuple(found.token_log_probs),
                heat,
                n_attempts=n,
                is_doubtful=doubt.is_doubtful,
            )
            for found, doubt, n, heat in zip(said, doubts, tries, heats, strict=True)
        ]
        for place, found in enumerate(heard):
            if self.guard and found.is_doubtful:
                no_speech = self.recognizer.no_speech(waves[place])
                if no_speech is not None and no_speech > NO_SPEECH:
                    found = WindowTranscript("", is_silent=True, n_attempts=found.n_attempts)
                heard[place] = replace(found, no_speech=no_speech)
        return self._with_times(waves, said, heard) if self.times else heard

    def _try_again(
        self,
        waves: Sequence[AnyFloatArray],
        said: list[Hypothesis],
        doubts: list[TranscriptCheck],
        tries: list[int],
        heats: list[float],
    ) -> None:
        """Transcribe doubtful windows in other ways until none is doubtful. For each window, the
        best transcript is kept."""
        for temperature in self.recognizer.temperatures:
            places = [place for place, doubt in enumerate(doubts) if doubt.is_doubtful]
            if not places:
                return
            others = self.recognizer.retry([waves[place] for place in places], temperature)
            for place, other in zip(places, others, strict=True):
                tries[place] += 1
                doubt = self._doubt(other)
                same = other.tokens == said[place].tokens  # not better, except for rounding
                if not same and doubt.is_better_than(doubts[place]):
                    said[place], doubts[place], heats[place] = other, doubt, temperature

    def _doubt(self, found: Hypothesis) -> TranscriptCheck:
        n = max(1, len(found.token_log_probs))
        ratio = compression_ratio(self._text(found))
        return TranscriptCheck(ratio, sum(found.token_log_probs) / n, found.finished)

    def _text(self, found: Hypothesis) -> str:
        return self.tokenizer.decode(found.tokens).strip()

    def _with_times(
        self,
        waves: Sequence[AnyFloatArray],
        said: Sequence[Hypothesis],
        heard: Sequence[WindowTranscript],
    ) -> list[WindowTranscript]:
        spoken = [place for place, found in enumerate(heard) if found.text]
        if not spoken:
            return list(heard)
        readings = self.recognizer.align(
            [waves[place] for place in spoken], [said[place].tokens for place in spoken]
        )
        results = list(heard)
        for place, (of_tokens, no_speech) in zip(spoken, readings, strict=True):
            found = said[place]
            pieces = self.tokenizer.tokens(found.tokens)
            numbers = word_numbers(pieces)
            words = make_word_timings(
                self._words(found, numbers), pieces, numbers, of_tokens, found.token_log_probs,
                self.shape.row_seconds,
            )  # fmt: skip
            exact = snap_to_pauses(words, waves[place], self.shape.rate)
            results[place] = replace(heard[place], words=tuple(exact), no_speech=no_speech)
        return results

    def _words(self, found: Hypothesis, numbers: Sequence[int]) -> list[str]:
        """Return the texts of the words. If the words of the transcript do not match its tokens,
        the texts are decoded from the tokens."""
        words = self._text(found).split()
        n_words = max(numbers, default=-1) + 1
        if len(words) == n_words:
            return words
        pieces: list[list[int]] = [[] for _ in range(n_words)]
        for token, number in zip(found.tokens, numbers, strict=True):
            pieces[number].append(token)
        return [self.tokenizer.decode(ids).strip() for ids in pieces]


def _as_float(wave: Any) -> AnyFloatArray:
    samples = np.asarray(wave)
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / FULL_SCALE
    return samples.astype(np.float32, copy=False)


AnyFloatArray = NDArray[np.floating[Any]]

SEARCHED = 1 / 3
"""Fraction of a window, at its end, that is searched for the quietest point to cut at."""

QUIET_S = 0.2
"""Duration in seconds of the quiet stretch in whose middle a window ends. It is at most a quarter
of the searched part."""


@dataclass(frozen=True)
class AudioWindow:
    start: float
    """Start of the window in seconds, relative to the recording."""

    samples: AnyFloatArray


def windows_of(
    blocks: Iterable[AnyFloatArray], rate: int, longest_s: float
) -> Iterator[AudioWindow]:
    """Split a recording into windows of at most `longest_s` seconds.

    The recording is a sequence of blocks of samples. The windows cover it without overlaps or gaps.
    A short recording is one window, even if it has no samples.
    """
    longest = max(1, int(longest_s * rate))
    enough = int((1 + SEARCHED) * longest) + 1
    held: AnyFloatArray = np.zeros(0, np.float32)
    done = 0
    source = iter(blocks)
    ended = False
    while not ended or len(held) > longest:
        while len(held) < enough and not ended:
            block = next(source, None)
            ended = block is None
            held = held if block is None else np.concatenate([held, block])
        if len(held) > longest:
            is_last = len(held) < enough
            # Divide the rest between two windows, so that the last one is not very short.
            ends = (len(held) // 3, 2 * len(held) // 3) if is_last else (_first(longest), longest)
            cut = quiet_place(held, *ends, rate)
            yield AudioWindow(done / rate, held[:cut])
            held, done = held[cut:], done + cut
    if len(held) or not done:
        yield AudioWindow(done / rate, held)


def _first(longest: int) -> int:
    return int(longest * (1 - SEARCHED))


def quiet_place(samples: AnyFloatArray, first: int, last: int, rate: int) -> int:
    """Return the index of the sample at which to cut: the middle of the quietest stretch between
    samples `first` and `last`."""
    stretch = max(1, min(int(QUIET_S * rate), (last - first) // 4))
    power = np.cumsum(samples[first:last].astype(np.float64) ** 2)
    power = np.concatenate([[0.0], power])
    of_stretch = power[stretch:] - power[:-stretch]
    # Take the last of equally quiet stretches, so that windows are as long as possible.
    place = len(of_stretch) - 1 - int(np.argmin(of_stretch[::-1]))
    return max(1, first + place + stretch // 2)
