"""Speech recognition with a decoder, CTC or a combination, trained on transcribed recordings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headway.data.batches import StepPlan
from headway.data.prepare import evaluation_media, prepare
from headway.data.schema import MediaSpec
from headway.data.store import Columns, PreparedData
from headway.decode.speech.recognizer import recognizer_of
from headway.decode.speech.transcriber import Transcriber, Transcript
from headway.decode.speech.word_times import WordTiming
from headway.errors import ConfigError, DataError
from headway.metrics.speech import (
    EditCounts,
    character_errors,
    errors,
    without_case_and_punctuation,
    word_errors,
    words,
)
from headway.progress import OnProgress, Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.default_facts import ctc_weight
from headway.settings.defaults import before_data
from headway.settings.facts import DatasetStats
from headway.settings.model import AudioSettings, family_of
from headway.settings.run import Resolved, RunSettings, with_files
from headway.specs.needs import WRITTEN
from headway.tasks.media_format import audio_settings, item_rows, stored_format
from headway.tasks.parent_run import model_named, parent_of, tokenizer_of
from headway.tasks.preprocess.audio import AudioDataset
from headway.tasks.preprocess.preprocessor import preprocessor_of
from headway.tasks.scores import ScoreRow
from headway.tasks.seq2seq import Seq2SeqTask, StoreSubset
from headway.tasks.seq2seq_dataset import Seq2SeqDataset
from headway.tasks.seq2seq_scores import EvalSet, GeneratedTexts, TextPredictions
from headway.tasks.task import InferenceRequest, Predictor
from headway.tasks.transcribe_answers import TranscriptPredictor, transcriber_of
from headway.tokens.tokenizer import Vocabularies

LISTENED_AT_ONCE = 64
"""Number of recordings per batch of an evaluation. Stop requests are checked after each batch."""


WORST = 5
"""Number of worst transcripts that an evaluation lists: a short list, to check for wrong
references."""

NEAR_S = (0.05, 0.1)
"""Tolerances in seconds: the fraction of word boundaries within each is reported. 50 ms is usual
for word alignment."""

ReferenceWord = tuple[str, float, float]
"""Word of a reference transcript, with its start and end in seconds."""


class TranscribeTask(Seq2SeqTask):
    """Task of transcribing audio."""

    samples = 8
    unit = "recordings"

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        check_weight(settings)
        return prepare(
            before_data(self.row, settings, parent_of(settings)), folder, progress,
            tokenizer=tokenizer_of(settings),
            media=MediaSpec.of("audio", audio_settings(settings), WRITTEN),
        )  # fmt: skip

    def describe(self, prepared: PreparedData) -> str:
        minutes = prepared.train.audio.seconds / 60
        return f"{prepared.train.n:,} recordings, {minutes:,.1f} minutes in total"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        texts, stored = prepared.train["text"], stored_format(prepared)
        front = audio_settings(settings, stored)
        rows_N = item_rows(prepared.train.media, front)
        return DatasetStats(
            n=prepared.train.n,
            n_tokens=int(rows_N.sum()),
            longest=int(rows_N.max()),
            longest_text=int(texts.lengths.max()),
            vocab_size=prepared.tokenizer.vocab_size,
            front=front,
            stored=stored,
            parent=parent_of(settings),
        )

    def check(self, settings: Resolved, prepared: PreparedData) -> None:
        check_rows(settings, prepared)

    def dataset(self, data: Columns, words: Vocabularies, settings: Resolved) -> Seq2SeqDataset:
        """Return the dataset, without recordings that are longer than the model can read at
        once."""
        return Seq2SeqDataset.of(
            preprocessor_of(settings).input_dataset(data), data["text"], words.target,
            most_rows=_front(settings).most_rows, spoken=True,
        )  # fmt: skip

    def plan(
        self, items: Seq2SeqDataset, tokens: int, seed: int, pool: int | None = None
    ) -> StepPlan:
        """Return a plan of steps by the length of the audio alone, which has far more positions
        than the text."""
        rows = items.lengths[:, 0]
        return StepPlan.of_lengths(rows, max(tokens, int(rows.max(initial=1))), seed, pool)

    def eval_set(self, prepared: PreparedData, items: Seq2SeqDataset) -> EvalSet:
        """Return the recordings that the model can read at once, with their transcripts.
        Transcripts are decoded from their tokens, so that they are normalized like the model's
        outputs."""
        rows, known = items.example_index.tolist(), prepared.valid_examples
        texts = [items.text(row).strip() for row in rows]
        names = [str(known[row]["place"]) for row in rows if row < len(known)]
        return EvalSet(StoreSubset(prepared.valid.audio, rows), texts, names)

    def fast_settings(self, decode: DecodeSettings, items: Seq2SeqDataset) -> DecodeSettings:
        longest = int(items.texts.lengths.max()) + 2
        longest = min(decode.max_len or longest, longest)
        return replace(decode, beam=1, n_best=1, groups=1, sample=False, max_len=longest)

    def generate(
        self,
        model: nn.Module,
        settings: Resolved,
        decode: DecodeSettings,
        prepared: PreparedData,
        exam: EvalSet,
        on_progress: OnProgress,
    ) -> Iterator[str]:
        """Transcribe recordings in batches of similar length, and yield the texts in the given
        order."""
        tokenizer = prepared.vocabularies.target
        recognizer = recognizer_of(model, tokenizer, decode, settings.transcribe.ctc)
        ear = Transcriber(recognizer, tokenizer, decode, _front(settings), guard=False)
        assert isinstance(exam.sources, StoreSubset)
        lengths = prepared.valid.audio.lengths[exam.sources.rows]
        order = np.argsort(lengths, kind="stable").tolist()
        found: dict[int, str] = {}
        for first in range(0, len(order), LISTENED_AT_ONCE):
            places = order[first : first + LISTENED_AT_ONCE]
            heard = ear.transcribe_windows([exam.sources[place] for place in places])
            found |= {place: one.text for place, one in zip(places, heard, strict=True)}
            on_progress(len(found), len(order))
        yield from (found[place] for place in range(len(order)))

    def notes(self, train: Seq2SeqDataset, valid: Seq2SeqDataset) -> list[str]:
        known = [len(items.texts) for items in (train, valid)]
        left = [n - len(items) for n, items in zip(known, (train, valid), strict=True)]
        if not any(left):
            return []
        assert isinstance(train.source, AudioDataset)
        shape = train.source.shape
        limit = (shape.most_rows or 0) * shape.row_seconds
        return [
            f"left out recordings longer than the {limit:g} s that the model reads at once: "
            f"{left[0]:,} of {known[0]:,} for training and {left[1]:,} of {known[1]:,} for "
            "validation"
        ]

    def describe_source(self, example: int, prepared: PreparedData) -> dict[str, object]:
        return {"recording": example}

    def predictor(self, use: InferenceRequest) -> Predictor:
        return TranscriptPredictor.of(use)

    def test_set(self, use: InferenceRequest, files: DataSettings) -> EvalSet:
        settings = with_files(use.settings, files)
        media = MediaSpec.of("audio", _front(use.settings), WRITTEN)
        words = use.opened.vocab
        normalise = words.target.normalise
        found = evaluation_media(media, settings, tokenizer=words.target, progress=use.progress)
        references = [normalise(text).strip() for text in found.targets]
        audio = found.items.audio
        sources = StoreSubset(audio, range(len(audio)))
        items = self.dataset(found.items, words, use.settings)
        return EvalSet(sources, references, found.places, files=files, dataset=items)

    def test_outputs(self, use: InferenceRequest, examples: EvalSet) -> TextPredictions:
        """Return transcripts of recordings of any length. If the files have word times, also
        compute the errors of word boundaries."""
        assert examples.files is not None
        truths = true_words(examples.files.media)
        ear = transcriber_of(use, times=truths is not None)
        found: list[Transcript] = []
        with use.progress.stage("transcribing", len(examples.sources), "recordings") as stage:
            blocks = ([samples] for samples in examples.sources)
            for number, transcript in enumerate(ear.transcribe(blocks), 1):
                assert isinstance(transcript, Transcript)
                found.append(transcript)
                stage.update(number)
        use.progress.note(ear.summary.text())
        outputs = [" ".join(transcript.text.split()) for transcript in found]
        rows: list[ScoreRow] = []
        facts: dict[str, Any] = {}
        if truths is not None and len(truths) == len(found):
            boundaries = boundary_errors([one.words for one in found], truths)
            rows += _boundary_rows(boundaries)
            facts["boundaries"] = asdict(boundaries)
        speed = ear.summary.seconds / max(ear.summary.took, 1e-9)
        rows.append(("speed", f"{speed:,.1f}", "seconds of audio per second"))
        return TextPredictions(outputs, None, rows, {**facts, "speed": speed})

    def test_details(
        self, use: InferenceRequest, judged: GeneratedTexts, examples: EvalSet
    ) -> tuple[list[ScoreRow], dict[str, Any]]:
        return error_details(judged.flat_references, judged.outputs, examples.names)


def _front(settings: Resolved) -> AudioSettings:
    return settings.model.audio  # type: ignore[union-attr]


def check_rows(settings: Resolved, prepared: PreparedData) -> None:
    """Raise DataError if no recording is short enough for the model. With CTC, also raise it if
    many transcripts have more tokens than their recording has positions, because CTC outputs at
    most one token per position."""
    shape: AudioSettings = settings.model.audio  # type: ignore[union-attr]
    lengths = item_rows(prepared.train.media, shape)
    of_valid = item_rows(prepared.valid.media, shape)
    for rows, what in ((lengths, ""), (of_valid, "validation ")):
        if shape.most_rows is not None and not (rows <= shape.most_rows).any():
            raise DataError(
                f"all {len(rows):,} {what}recordings are longer than the "
                f"{shape.most_rows * shape.row_seconds:g} s that the model reads at once. To split "
                "them, give the `start` and `end` of each part in a list of recordings."
            )
    if not settings.transcribe.ctc:
        return
    texts = prepared.train["text"]
    assert texts is not None
    too_many = int((texts.lengths > lengths).sum())
    if too_many > 0.05 * len(lengths):
        raise DataError(
            f"{too_many:,} of {len(lengths):,} recordings have more tokens than audio frames, but "
            f"CTC outputs at most one token per frame of {1000 * shape.row_seconds:.0f} ms. Use "
            "shorter frames (model.audio.strides), longer tokens (tokenizer.kind=bpe), or no CTC "
            "(transcribe.ctc=0)."
        )


def check_weight(settings: RunSettings) -> None:
    """Raise ConfigError if the model does not support the CTC weight of the settings."""
    model = model_named(settings)
    weight = ctc_weight(settings, model if settings.parent else None)
    alone = None if model is None else family_of(model) == "audio-encoder"
    if alone and settings.start.run and weight != 1.0:  # its encoder, and a decoder
        alone = None
    if alone is True and weight != 1.0:
        raise ConfigError(
            f"transcribe.ctc={weight:g} needs a decoder, but a model of the audio-encoder family "
            "has only a CTC head. Set transcribe.ctc=1."
        )
    if alone is False and weight == 1.0:
        raise ConfigError(
            "transcribe.ctc=1 trains only a CTC head, which needs a model of the audio-encoder "
            "family. Use such a model, or a smaller transcribe.ctc."
        )
    asked = settings.asked.get("model.ctc")
    if asked is not None and asked != (0.0 < weight < 1.0):
        raise ConfigError(
            f"model.ctc={str(asked).lower()} contradicts transcribe.ctc={weight:g}. model.ctc must "
            "be true if transcribe.ctc is between 0 and 1, and false otherwise. Remove model.ctc."
        )


@dataclass(frozen=True)
class Boundaries:
    """Accuracy of predicted word boundaries, measured on recordings whose words are all correct."""

    n_words: int
    median_s: float
    shares: tuple[float, ...]
    """Fraction of word boundaries whose error is within each tolerance in `NEAR_S`, from 0 to 1."""


def error_details(
    references: Sequence[str], outputs: Sequence[str], places: Sequence[str]
) -> tuple[list[ScoreRow], dict[str, Any]]:
    """Return details of the word and character errors, as table rows and as a JSON-compatible
    dictionary. `places`: names of the recordings, for the list of the worst transcripts."""
    of_words, of_characters = (
        word_errors(references, outputs),
        character_errors(references, outputs),
    )
    plain = [
        [without_case_and_punctuation(text) for text in side] for side in (references, outputs)
    ]
    of_plain = word_errors(*plain)
    pairs = list(zip(references, outputs, strict=True))
    wrong = sum(words(right) != words(answer) for right, answer in pairs)
    rows: list[ScoreRow] = [
        ("words", f"{of_words.length:,}", _counts(of_words)),
        ("  without case, punctuation", _percent(of_plain.rate), _counts(of_plain)),
        ("characters", f"{of_characters.length:,}", _counts(of_characters)),
        ("recordings with errors", _percent(wrong / len(pairs)), f"{wrong:,} of {len(pairs):,}"),
    ]
    each = [errors(words(right), words(answer)) for right, answer in pairs]
    order = sorted(range(len(pairs)), key=lambda place: -each[place].rate)[:WORST]
    worst: list[dict[str, Any]] = [
        {
            "place": places[i],
            "target": pairs[i][0],
            "output": pairs[i][1],
            "wer": 100.0 * each[i].rate,
        }
        for i in order
        if each[i].total
    ]
    rows += [
        ("worst" if not number else "", _percent(one["wer"] / 100.0),
         f"{one['place']}: {_short(one['target'])!r} → {_short(one['output'])!r}")
        for number, one in enumerate(worst)
    ]  # fmt: skip
    return rows, {
        "words": asdict(of_words),
        "wer_without_case_and_signs": 100.0 * of_plain.rate,
        "characters": asdict(of_characters),
        "wrong_recordings": wrong,
        "worst": worst,
    }


def true_words(paths: Sequence[str]) -> list[list[ReferenceWord]] | None:
    """Return the true words with their times for each recording, read from the `words` of JSONL
    lists. Return None if a file or a line has none."""
    found: list[list[ReferenceWord]] = []
    for path in paths:
        if Path(path).suffix.lower() != ".jsonl":
            return None
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                values = json.loads(line) if line.strip() else None
                if not isinstance(values, dict) or not isinstance(values.get("words"), list):
                    return None
                found.append(
                    [(str(w["word"]), float(w["start"]), float(w["end"])) for w in values["words"]]
                )
    return found


def boundary_errors(
    answered: Sequence[Sequence[WordTiming]], truths: Sequence[Sequence[ReferenceWord]]
) -> Boundaries:
    """Return the errors of the predicted word boundaries. Only recordings whose words are all
    correct are used."""
    gaps: list[float] = []
    n_words = 0
    for said, truth in zip(answered, truths, strict=True):
        if [word.text for word in said] != [word for word, _, _ in truth]:
            continue
        n_words += len(truth)
        for word, (_, start, end) in zip(said, truth, strict=True):
            gaps += [abs(word.start - start), abs(word.end - end)]
    if not gaps:
        return Boundaries(0, float("nan"), tuple(0.0 for _ in NEAR_S))
    shares = tuple(float(np.mean(np.array(gaps) <= near)) for near in NEAR_S)
    return Boundaries(n_words, float(np.median(gaps)), shares)


def _boundary_rows(found: Boundaries) -> list[ScoreRow]:
    if not found.n_words:
        return [("word boundaries", "", "no recording has all its words correct")]
    rows = [("word boundaries", f"{1000 * found.median_s:.0f} ms", f"median error of "
             f"{2 * found.n_words:,} boundaries")]  # fmt: skip
    return rows + [
        (f"  within {1000 * near:.0f} ms", _percent(share), "")
        for near, share in zip(NEAR_S, found.shares, strict=True)
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _counts(found: EditCounts) -> str:
    return (
        f"{found.substitutions:,} substitutions, {found.deletions:,} deletions, "
        f"{found.insertions:,} insertions"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
