"""How good transcripts are: words and characters that are wrong, the worst ones, and how near the
times of words come to the truth where that is known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.media.prepared import evaluation_media
from headway.decode.speech.transcriber import Transcript
from headway.decode.speech.word_times import Word
from headway.metrics.speech import (
    Errors,
    character_errors,
    errors,
    without_case_and_punctuation,
    word_errors,
    words,
)
from headway.settings.data import DataSettings
from headway.settings.model import SoundSettings
from headway.tasks.scores import Row, Scores
from headway.tasks.task import Use
from headway.tasks.transcribe_answers import transcriber_of

WORST = 5
NEAR_S = (0.05, 0.1)

Truth = tuple[str, float, float]
"""A word, and the seconds at which it begins and ends."""


@dataclass(frozen=True)
class Boundaries:
    """How far the borders of words are from the truth, of recordings whose words are all right."""

    n_words: int
    median_s: float
    shares: tuple[float, ...]
    """Of borders that are within `NEAR_S`."""


def evaluate_transcripts(use: Use, files: DataSettings) -> Scores:
    """Option: `plain`, so that case and punctuation do not count."""
    settings = replace(use.settings, data=files)
    shape: SoundSettings = settings.model.sound  # type: ignore[union-attr]
    truths = true_words(files.media)
    ear = transcriber_of(use, times=truths is not None)
    found = evaluation_media("sounds", settings, shape, target="text", progress=use.progress)
    sounds = found.items.sounds
    transcripts: list[Transcript] = []
    with use.progress.stage("transcribing", len(sounds), "recordings") as stage:
        blocks = ([sounds[row]] for row in range(len(sounds)))
        for number, transcript in enumerate(ear.transcribe(blocks), 1):
            assert isinstance(transcript, Transcript)
            transcripts.append(transcript)
            stage.update(number)
    use.progress.note(ear.summary.text())
    outputs = [" ".join(transcript.text.split()) for transcript in transcripts]
    references = [ear.tokenizer.normalise(text).strip() for text in found.targets]
    rows, facts = scored(references, outputs, found.places)
    if truths is not None and len(truths) == len(transcripts):
        boundaries = boundary_errors([one.words for one in transcripts], truths)
        rows += _boundary_rows(boundaries)
        facts["boundaries"] = asdict(boundaries)
    speed = ear.summary.seconds / max(ear.summary.took, 1e-9)
    rows.append(("speed", f"{speed:,.1f}", "seconds of sound a second"))
    return Scores(
        {name: 100 * float(facts[name]) for name in ("wer", "cer")},
        rows=rows,
        facts={**facts, "speed": speed},
        find_baselines=lambda: {"the commonest text": {"wer": 100 * facts["baseline_wer"]}},
        find_answers=lambda: (outputs, references),
    )


def scored(
    references: Sequence[str], outputs: Sequence[str], places: Sequence[str]
) -> tuple[list[Row], dict[str, Any]]:
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
    baseline = Counter(references).most_common(1)[0][0]
    of_baseline = word_errors(references, [baseline] * len(references))
    rows: list[Row] = [
        ("recordings", f"{len(pairs):,}", f"{of_words.length:,} words"),
        ("WER", _percent(of_words.rate), _counts(of_words)),
        ("  without case and signs", _percent(of_plain.rate), _counts(of_plain)),
        ("CER", _percent(of_characters.rate), _counts(of_characters)),
        ("wrong recordings", _percent(wrong / len(pairs)), f"{wrong:,} of {len(pairs):,}"),
        ("baseline: the commonest text", _percent(of_baseline.rate), f"{_short(baseline)!r}"),
    ]
    each = [errors(words(right), words(answer)) for right, answer in pairs]
    order = sorted(range(len(pairs)), key=lambda place: -each[place].rate)[:WORST]
    worst: list[dict[str, Any]] = [
        {"place": places[i], "target": pairs[i][0], "output": pairs[i][1], "wer": each[i].rate}
        for i in order
        if each[i].total
    ]
    rows += [
        ("worst" if not number else "", _percent(one["wer"]),
         f"{one['place']}: {_short(one['target'])!r} → {_short(one['output'])!r}")
        for number, one in enumerate(worst)
    ]  # fmt: skip
    facts = {
        "recordings": len(pairs),
        "wer": of_words.rate,
        "words": asdict(of_words),
        "wer_without_case_and_signs": of_plain.rate,
        "cer": of_characters.rate,
        "characters": asdict(of_characters),
        "wrong_recordings": wrong,
        "baseline_wer": of_baseline.rate,
        "worst": worst,
    }
    return rows, facts


def true_words(paths: Sequence[str]) -> list[list[Truth]] | None:
    """The `words` of JSONL lists, for each recording in order; None if not all have them."""
    found: list[list[Truth]] = []
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
    answered: Sequence[Sequence[Word]], truths: Sequence[Sequence[Truth]]
) -> Boundaries:
    """Of the borders of words, in recordings in which the right words were found."""
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


def _boundary_rows(found: Boundaries) -> list[Row]:
    if not found.n_words:
        return [("borders of words", "", "no recording has all its words right")]
    rows = [("borders of words", f"{1000 * found.median_s:.0f} ms", f"the median of the errors of "
             f"{2 * found.n_words:,} borders")]  # fmt: skip
    return rows + [
        (f"  within {1000 * near:.0f} ms", _percent(share), "")
        for near, share in zip(NEAR_S, found.shares, strict=True)
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _counts(found: Errors) -> str:
    return (
        f"{found.substitutions:,} wrong, {found.deletions:,} missing, {found.insertions:,} too many"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
