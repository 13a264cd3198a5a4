"""Scores of generated texts: on validation data (`text_metrics`), and with baselines on test sets
of translations, captions and transcripts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.files import open_lines
from headway.data.pairs import read_pairs
from headway.data.prepare import evaluation_media
from headway.data.schema import MediaSpec
from headway.data.store import Columns, load_prepared
from headway.decode.speech.transcriber import Transcript
from headway.decode.speech.word_times import WordTiming
from headway.decode.writer import Writer
from headway.errors import Option, UserError
from headway.metrics import translation
from headway.metrics.captions import SIGNATURE, DocumentFrequencies, cider, match_interval
from headway.metrics.speech import (
    EditCounts,
    character_errors,
    errors,
    without_case_and_punctuation,
    word_errors,
    words,
)
from headway.metrics.translation import Comparison, Reference, as_list
from headway.progress import SILENT, Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import AudioSettings, ImageSettings
from headway.settings.run import with_files
from headway.settings.task_rows import spec_of
from headway.specs.needs import WRITTEN
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.preprocess.preprocessor import media_settings_of
from headway.tasks.scores import ScoreRow, Scores
from headway.tasks.seq2seq_answers import writer_of
from headway.tasks.task import InferenceRequest
from headway.tasks.transcribe_answers import transcriber_of

WORST = 5
NEAR_S = (0.05, 0.1)

ReferenceWord = tuple[str, float, float]
"""A word with its start and end in seconds."""


@dataclass(frozen=True)
class GeneratedTexts:
    outputs: Sequence[str]
    references: Sequence[Reference]
    corpus: Sequence[Reference]
    """References in which CIDEr counts how rare words are: those of the whole set, also if only
    some examples are scored."""

    lowercase: bool = False

    @property
    def flat_references(self) -> list[str]:
        """All references as one list, for metrics with one reference per output."""
        return [one for of_one in self.references for one in as_list(of_one)]


TEXT_METRICS: dict[str, Callable[[GeneratedTexts], float]] = {
    "exact_match": lambda j: (
        translation.exact_match(j.outputs, j.references, lowercase=j.lowercase).value
    ),
    "bleu": lambda j: translation.bleu(j.outputs, j.references, lowercase=j.lowercase).value,
    "chrf": lambda j: translation.chrf(j.outputs, j.references, lowercase=j.lowercase).value,
    "cider": lambda j: cider(j.outputs, j.references, DocumentFrequencies.of(j.corpus)).value,
    "wer": lambda j: 100.0 * word_errors(j.flat_references, j.outputs).rate,
    "cer": lambda j: 100.0 * character_errors(j.flat_references, j.outputs).rate,
}


def text_metrics(
    names: Sequence[str],
    outputs: Sequence[str],
    references: Sequence[Reference],
    corpus: Sequence[Reference] | None = None,
    *,
    lowercase: bool = False,
) -> dict[str, float]:
    """Values of those of the named metrics that compare texts; rates in percent."""
    judged = GeneratedTexts(
        outputs, references, references if corpus is None else corpus, lowercase
    )
    return {name: TEXT_METRICS[name](judged) for name in names if name in TEXT_METRICS}


def most_common(texts: Iterable[str]) -> str:
    """The most frequent text; the first one if several are equally frequent."""
    [(text, _)] = Counter(texts).most_common(1)
    return text


def loss_of(
    writer: Writer, pairs: Iterable[tuple[Any, str]], n: int, progress: Progress, unit: str
) -> float | None:
    """Loss in nats per token, including end tokens; None with an engine, which only decodes."""
    if not writer.models:
        return None
    total, count = 0.0, 0
    with progress.stage("computing the loss", n, unit) as stage:
        for number, score in enumerate(writer.score(pairs), 1):
            total, count = total - score.log_prob, count + score.n_tokens
            stage.update(number)
    return total / max(1, count)


def texts_of(
    writer: Writer, sources: Sequence[Any], progress: Progress, doing: str, unit: str
) -> list[str]:
    with progress.stage(doing, len(sources), unit) as stage:
        return [found.text for found in writer.write(sources, on_progress=stage.update)]


# Translations


@dataclass(frozen=True)
class System:
    """Outputs of one system for a test set."""

    outputs: list[str]
    loss: float | None = None
    rate: float | None = None
    """Tokens per second."""


@dataclass(frozen=True)
class TranslationTestSet:
    """Test set of translation. Sources may be empty if existing translations are scored."""

    sources: list[str]
    targets: list[str]
    encoding: str
    decode: DecodeSettings
    progress: Progress

    def system(self, opened: LoadedRun | None, file: str | None) -> System:
        """Outputs that are translated by runs or read from a file."""
        loss, writer = None, None
        if opened is not None:
            if not self.sources:
                sources = Option("source", takes="FILE")
                raise UserError(f"no source texts to translate. Give {sources}.")
            writer = writer_of(opened, self.decode)
            pairs = zip(self.sources, self.targets, strict=True)
            loss = loss_of(writer, pairs, len(self.targets), self.progress, "pairs")
        if file is not None:
            lines = list(open_lines(file, self.encoding))
            if len(lines) != len(self.targets):
                raise UserError(
                    f"{file} has {len(lines):,} lines, but the test set has {len(self.targets):,} "
                    "references. A file of translations must have one line per reference."
                )
            return System(lines, loss)
        assert writer is not None
        outputs = texts_of(writer, self.sources, self.progress, "translating", "lines")
        self.progress.note(writer.summary.text())
        return System(outputs, loss, writer.summary.rate)


def pairs_of_test(data: DataSettings, references: Sequence[str]) -> tuple[list[str], list[str]]:
    """Sources and targets of a test set; sources are empty if only references are given."""
    sources: list[str] = []
    if data.source or data.pairs:
        pairs = list(read_pairs(data.source, data.target, data.pairs, data))
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    elif references:
        targets = [line for path in references for line in open_lines(path, data.encoding)]
    else:
        raise UserError(
            f"no test set. Give {Option('source', takes='FILE')} "
            f"{Option('target', takes='FILE')}, or {Option('pairs', takes='FILE')}."
        )
    if not targets:
        raise UserError(
            "the test set is empty: no texts in "
            f"{', '.join(dict.fromkeys([*data.source, *data.target, *data.pairs, *references]))}."
        )
    return sources, targets


def evaluate_translations(
    opened: LoadedRun | None,
    decode: DecodeSettings,
    data: DataSettings,
    options: Mapping[str, Any],
    progress: Progress = SILENT,
) -> Scores:
    """BLEU and chrF with their signatures, the loss, and a comparison of two systems.

    Options: `target`, reference files; `hypotheses`, a file of outputs to score, in which case
    `opened` may be None; `against` or `against_runs`, the second system, as a file of its outputs
    or as opened runs."""
    sources, targets = pairs_of_test(data, options.get("target") or ())
    test = TranslationTestSet(sources, targets, data.encoding, decode, progress)
    first = test.system(opened, options.get("hypotheses"))
    outputs, loss = first.outputs, first.loss
    if options.get("out"):
        _write(options["out"], outputs)
    second = None
    if options.get("against") or options.get("against_runs"):
        second = test.system(options.get("against_runs"), options.get("against"))
    with progress.stage("computing scores and confidence intervals"):
        lowercase = bool(options.get("lowercase"))
        kind: dict[str, Any] = {
            "lowercase": lowercase,
            "tokenize": options.get("tokenize") or "13a",
        }
        bleu = translation.bleu(outputs, targets, **kind)
        interval = translation.bleu_interval(outputs, targets, **kind)
        chrf = translation.chrf(outputs, targets, lowercase=lowercase)
        scores = [bleu, chrf]
        if options.get("tokenised") is not None:
            scores.append(translation.tokenised_bleu(outputs, targets, options["tokenised"]))
        scores.append(translation.exact_match(outputs, targets, lowercase=lowercase))
        copied = translation.bleu(sources, targets, **kind).value if sources else None
        comparison = None
        if second is not None:
            comparison = translation.compare_bleu(outputs, second.outputs, targets, **kind)
    of_loss = {} if loss is None else {"loss": loss, "ppl": math.exp(loss)}
    rows: list[ScoreRow] = [("pairs", f"{len(targets):,}", "")]
    if loss is not None:
        rows.append(("loss", f"{loss:.4f}", "nats per target token, without label smoothing"))
        rows.append(("perplexity", f"{of_loss['ppl']:.3f}", ""))
    rows += [(score.name, f"{score.value:.2f}", score.signature) for score in scores]
    certain = f"{interval.low:.2f} to {interval.high:.2f}"
    rows.insert(1 - len(scores), ("  95 % interval", "", certain))
    if copied is not None:
        rows.append(("baseline: copied source", f"{copied:.2f}", "BLEU"))
    if first.rate is not None:
        rows.append(("speed", f"{first.rate:,.0f}", "target tokens per second"))
    facts: dict[str, object] = {
        "pairs": len(targets),
        "loss": loss,
        "perplexity": of_loss.get("ppl"),
        "scores": [asdict(score) for score in scores],
        "bleu_interval": [interval.low, interval.high],
        "tokens_per_s": first.rate,
        "copy_bleu": copied,
    }
    if comparison is not None:
        rows.append(("comparison", "", _verdict(comparison)))
        facts["comparison"] = asdict(comparison)
    trivial = {} if copied is None else {"copied source": {"bleu": copied}}
    return Scores(
        {"bleu": bleu.value, "chrf": chrf.value, **of_loss},
        rows=rows,
        facts=facts,
        find_baselines=lambda: trivial,
        find_answers=lambda: (outputs, targets),
    )


def _verdict(found: Comparison) -> str:
    change = found.difference
    is_clear = found.p_value < 0.05
    which = "better" if change.value > 0 else "worse"
    said = f"{which} than the other system" if is_clear else "no significant difference"
    return (
        f"{change.value:+.2f} BLEU (95 % interval {change.low:+.2f} to {change.high:+.2f}), "
        f"p = {found.p_value:.3f}: {said}"
    )


def _write(out: str, lines: Sequence[str]) -> None:
    try:
        Path(out).write_text("".join(line + "\n" for line in lines), "utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}.") from error


# Captions


def group_by_image(items: Columns, texts: Sequence[str]) -> tuple[list[int], list[list[str]]]:
    """The first row and all captions of each image; a manifest has one line per caption, and so may
    contain an image several times."""
    found: dict[int, tuple[int, list[str]]] = {}
    for row, (key, text) in enumerate(zip(items.hashes.tolist(), texts, strict=True)):
        found.setdefault(key, (row, []))[1].append(text)
    return [row for row, _ in found.values()], [written for _, written in found.values()]


def evaluate_captions(use: InferenceRequest, files: DataSettings) -> Scores:
    """Scores on images or videos with captions; the baseline is one caption for all of them."""
    settings = use.settings
    writer = writer_of(use.opened, settings.decode, task="caption")
    shape = media_settings_of(settings)
    assert isinstance(shape, ImageSettings)
    what = settings.caption.modality
    media, asked = MediaSpec.of(what, shape, WRITTEN), with_files(settings, files)
    given = evaluation_media(media, asked, progress=use.progress)
    images = given.items.images
    texts = [" ".join(text.split()) for text in given.targets]
    rows, references = group_by_image(given.items, texts)
    pairs = ((images[row], text) for row, text in enumerate(texts))
    loss = loss_of(writer, pairs, len(texts), use.progress, "captions")
    described = [images[row] for row in rows]
    outputs = texts_of(writer, described, use.progress, "captioning", what)
    judge = partial(text_metrics, spec_of(settings).scores, references=references,
                    lowercase=settings.tokenizer.lowercase)  # fmt: skip
    values = judge(outputs)
    plain, remark = _most_common_caption(use.opened.folder, references)
    usual = judge([plain] * len(outputs))
    interval = match_interval(values["exact_match"], len(outputs))
    certain = f"95 %: {interval.low:.2f} – {interval.high:.2f}"
    rate = writer.summary.rate
    several = f"{len(texts):,} captions" if len(texts) > len(rows) else ""
    shown: list[ScoreRow] = [
        (what, f"{len(rows):,}", several),
        *(
            []
            if loss is None
            else [("loss", f"{loss:.4f}", "nats per token, without label smoothing")]
        ),
        ("exact match", f"{values['exact_match']:.2f}", certain),
        ("CIDEr-D", f"{values['cider']:.3f}", f"of 10; {SIGNATURE}"),
        ("BLEU", f"{values['bleu']:.2f}", ""),
        ("chrF", f"{values['chrf']:.2f}", ""),
        ("baseline: most frequent caption", f"{usual['exact_match']:.2f}", remark),
        ("  its CIDEr-D", f"{usual['cider']:.3f}", ""),
        ("speed", f"{rate:,.0f}", "tokens per second"),
    ]
    facts = {
        **values,
        "loss": loss,
        "n": len(rows),
        "captions": len(texts),
        "intervals": {"exact_match": [interval.low, interval.high]},
        "baseline": {"caption": plain, **usual},
        "tokens_per_s": rate,
    }
    return Scores(
        values if loss is None else {**values, "loss": loss, "ppl": math.exp(loss)},
        rows=shown,
        facts=facts,
        find_baselines=lambda: {"most frequent caption": usual},
        find_answers=lambda: (outputs, references),
    )


def _most_common_caption(folder: Path, references: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The most frequent caption of the training data, or of the test set if the run's data is
    missing, with a remark for the table."""
    where = "in the training data"
    try:
        prepared = load_prepared(folder)
    except (UserError, OSError):  # the folder may have been copied without its data
        where, texts = "in the test set", [text for of_one in references for text in of_one]
    else:
        store, tokenizer = prepared.train["text"], prepared.tokenizer
        texts = [tokenizer.decode(store[row].tolist()) for row in range(len(store))]
    text = most_common(texts)
    return text, f"exact match of {text!r}, the most frequent {where}"


# Transcripts


@dataclass(frozen=True)
class Boundaries:
    """Errors of predicted word boundaries, in recordings whose words are all correct."""

    n_words: int
    median_s: float
    shares: tuple[float, ...]
    """Fractions of the boundaries whose error is at most each of `NEAR_S`."""


def evaluate_transcripts(use: InferenceRequest, files: DataSettings) -> Scores:
    """WER and CER on recordings with transcripts, with a baseline and, if the files have word
    times, errors of word boundaries."""
    settings = with_files(use.settings, files)
    shape: AudioSettings = settings.model.audio  # type: ignore[union-attr]
    truths = true_words(files.media)
    ear = transcriber_of(use, times=truths is not None)
    media = MediaSpec.of("audio", shape, WRITTEN)
    found = evaluation_media(media, settings, progress=use.progress)
    audio = found.items.audio
    transcripts: list[Transcript] = []
    with use.progress.stage("transcribing", len(audio), "recordings") as stage:
        blocks = ([audio[row]] for row in range(len(audio)))
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
    rows.append(("speed", f"{speed:,.1f}", "seconds of audio per second"))
    return Scores(
        {name: 100 * float(facts[name]) for name in ("wer", "cer")},
        rows=rows,
        facts={**facts, "speed": speed},
        find_baselines=lambda: {"most frequent text": {"wer": 100 * facts["baseline_wer"]}},
        find_answers=lambda: (outputs, references),
    )


def scored(
    references: Sequence[str], outputs: Sequence[str], places: Sequence[str]
) -> tuple[list[ScoreRow], dict[str, Any]]:
    """Table rows and facts of word and character error rates. `places`: the recordings, for the
    list of the worst transcripts."""
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
    rows: list[ScoreRow] = [
        ("recordings", f"{len(pairs):,}", f"{of_words.length:,} words"),
        ("WER", _percent(of_words.rate), _counts(of_words)),
        ("  without case, punctuation", _percent(of_plain.rate), _counts(of_plain)),
        ("CER", _percent(of_characters.rate), _counts(of_characters)),
        ("recordings with errors", _percent(wrong / len(pairs)), f"{wrong:,} of {len(pairs):,}"),
        ("baseline: most frequent text", _percent(of_baseline.rate), f"{_short(baseline)!r}"),
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


def true_words(paths: Sequence[str]) -> list[list[ReferenceWord]] | None:
    """The `words` of JSONL lists with their times, for each recording in order; None if a file or
    line lacks them."""
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
    """Errors of word boundaries in the recordings whose words are all correct."""
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
