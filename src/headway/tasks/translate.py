"""Translation of texts with an encoder-decoder that is trained on pairs of sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headway.data.files import open_lines
from headway.data.pairs import read_pairs
from headway.data.prepare import prepare
from headway.data.store import Columns, PreparedData, load_prepared
from headway.errors import DataError, Option, UserError
from headway.metrics import translation
from headway.metrics.translation import Comparison
from headway.nn.devices import CPU
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.facts import DatasetStats
from headway.settings.folder import TOKENIZER, file_in, run_folder
from headway.settings.run import Resolved, RunSettings
from headway.tasks.dataset import EvalPass
from headway.tasks.evaluate import evaluate
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.parent_run import parent_of
from headway.tasks.preprocess.text import SourceTextDataset
from headway.tasks.scores import Range, ScoreRow, Scores
from headway.tasks.seq2seq import Seq2SeqTask, SourceAugmenter, TextBaseline
from headway.tasks.seq2seq_answers import TranslationPredictor, writer_of
from headway.tasks.seq2seq_dataset import Seq2SeqDataset
from headway.tasks.seq2seq_scores import (
    EvalSet,
    GeneratedTexts,
    TextPredictions,
    loss_of,
    texts_of,
)
from headway.tasks.sequence_distil import prepare_distilled, with_distilled
from headway.tasks.task import InferenceRequest, find_task
from headway.tokens.tokenizer import Vocabularies


class TranslateTask(Seq2SeqTask):
    """Task of translating texts."""

    samples = 5
    unit = "pairs"
    texts = "target"

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        if not settings.data.source and not settings.data.pairs:
            raise DataError(
                f"no training data. Give {Option('source', takes='FILE')} "
                f"{Option('target', takes='FILE')}, or {Option('pairs', takes='FILE')} (TSV or "
                "JSONL)."
            )
        if settings.distil.teacher:
            return prepare_distilled(settings, folder, progress)
        if settings.start.run:
            words = file_in(run_folder(settings.start.run), TOKENIZER)
            settings = replace(settings, tokenizer=replace(settings.tokenizer, file=str(words)))
        return prepare(settings, folder, progress)

    def load_prepared(self, folder: Path) -> PreparedData:
        return with_distilled(load_prepared(folder), folder)

    def describe(self, prepared: PreparedData) -> str:
        return f"{prepared.train.n:,} pairs"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        vocab, lengths = prepared.vocabularies, prepared.train["target"].lengths
        return DatasetStats(
            n=prepared.train.n,
            n_tokens=int(lengths.sum()) + len(lengths),  # target tokens, including end tokens
            vocab_size=vocab.target.vocab_size,
            source_vocab_size=0 if vocab.joint else vocab.source.vocab_size,
            parent=parent_of(settings),
        )

    def check(self, settings: Resolved, prepared: PreparedData) -> None:
        """Raise DataError if a pair is longer than the model's learned position embeddings."""
        model = settings.model
        if model.positions != "learned":
            return
        both = (prepared.train, prepared.valid)
        longest = max(
            int(self.dataset(x, prepared.vocabularies, settings).lengths.max()) for x in both
        )
        if longest > model.max_len:
            raise DataError(
                f"the longest text of the pairs needs {longest:,} positions, but the model has "
                f"only {model.max_len:,} learned positions. To leave out longer pairs, set "
                f"data.max_len={model.max_len - 2}."
            )

    def dataset(self, data: Columns, words: Vocabularies, settings: Resolved) -> Seq2SeqDataset:
        return Seq2SeqDataset.of(
            SourceTextDataset(data["source"], words.source), data["target"], words.target
        )

    def source_augmenter(self, settings: Resolved) -> SourceAugmenter:
        return lambda model, stream: stream

    def eval_set(self, prepared: PreparedData, items: Seq2SeqDataset) -> EvalSet:
        sources, targets = ([pair[side] for pair in prepared.valid_pairs] for side in (0, 1))
        return EvalSet(sources, targets, sources)

    def fast_settings(self, decode: DecodeSettings, items: Seq2SeqDataset) -> DecodeSettings:
        assert isinstance(items.source, SourceTextDataset)
        lengths = (texts.lengths.astype(np.int64) for texts in (items.texts, items.source.texts))
        longer = int(np.subtract(*lengths).max())
        extra = min(decode.extra_len, max(2, longer + 2))
        return replace(decode, beam=1, n_best=1, groups=1, extra_len=extra)

    def baseline(self, exam: EvalSet, usual: Callable[[], str]) -> TextBaseline:
        return TextBaseline("copied source", list(exam.sources), "each source as it is")

    def describe_source(self, example: int, prepared: PreparedData) -> dict[str, object]:
        source = prepared.vocabularies.source.decode(prepared.train["source"][example].tolist())
        return {"pair": example, "source": source}

    def predictor(self, use: InferenceRequest) -> TranslationPredictor:
        return TranslationPredictor(use)

    def test_set(self, use: InferenceRequest, files: DataSettings) -> EvalSet:
        sources, targets = pairs_of_test(files, use.options.get("target") or ())
        return EvalSet(sources, targets, sources, files=files)

    def test_outputs(self, use: InferenceRequest, examples: EvalSet) -> TextPredictions:
        """Return translations of the test sources, generated by runs or, with the option
        `hypotheses`, read from a file."""
        found = _outputs(use, use.opened, examples, use.options.get("hypotheses"))
        if use.options.get("out"):
            _write(use.options["out"], found.outputs)
        return found

    def test_interval(self, judged: GeneratedTexts) -> dict[str, Range]:
        found = translation.bleu_interval(
            judged.outputs, judged.references, lowercase=judged.lowercase, tokenize=judged.tokenize
        )
        return {"bleu": (found.low, found.high)}

    def test_details(
        self, use: InferenceRequest, judged: GeneratedTexts, examples: EvalSet
    ) -> tuple[list[ScoreRow], dict[str, Any]]:
        """Return test results other than metrics: scores in the forms that papers report, and the
        comparison of two systems."""
        outputs, targets, options = judged.outputs, judged.references, use.options
        scores = {"exact_match": translation.exact_match(
            outputs, targets, lowercase=judged.lowercase
        )}  # fmt: skip
        if options.get("tokenised") is not None:
            scores["tokenised_bleu"] = translation.tokenised_bleu(
                outputs, judged.flat_references, options["tokenised"]
            )
        rows = [(one.name, f"{one.value:.2f}", one.signature) for one in scores.values()]
        facts: dict[str, Any] = {name: one.value for name, one in scores.items()}
        if options.get("against") or options.get("against_runs"):
            other = _outputs(use, options.get("against_runs"), examples, options.get("against"))
            found = translation.compare_bleu(
                outputs, other.outputs, judged.flat_references, lowercase=judged.lowercase,
                tokenize=judged.tokenize,
            )  # fmt: skip
            rows.append(("comparison", "", _verdict(found)))
            facts["comparison"] = asdict(found)
        return rows, facts


def evaluate_outputs(
    decode: DecodeSettings, files: DataSettings, options: Mapping[str, Any], progress: Progress
) -> Scores:
    """Return the scores of translations in a file, without a model."""
    settings = RunSettings(task="translate", decode=decode)
    use = InferenceRequest(None, settings, options, progress)  # type: ignore[arg-type]
    task = find_task(settings)
    assert isinstance(task, TranslateTask)
    how = task.evaluator(use)
    asked = EvalPass(nn.Module(), CPU)
    return evaluate(how, how.test_set(files, progress), asked, lambda: None)


def _outputs(
    use: InferenceRequest, opened: LoadedRun | None, examples: EvalSet, file: str | None
) -> TextPredictions:
    """Return the translations to score, generated by a run or read from a file."""
    loss, writer, n = None, None, len(examples.references)
    if opened is not None:
        if not examples.sources:
            given = Option("source", takes="FILE")
            raise UserError(f"no source texts to translate. Give {given}.")
        writer = writer_of(opened, use.settings.decode)
        pairs = zip(examples.sources, map(str, examples.references), strict=True)
        loss = loss_of(writer, pairs, n, use.progress, "pairs")
    if file is not None:
        assert examples.files is not None
        lines = list(open_lines(file, examples.files.encoding))
        if len(lines) != n:
            raise UserError(
                f"{file} has {len(lines):,} lines, but the test set has {n:,} references. A file "
                "of translations must have one line per reference."
            )
        return TextPredictions(lines, loss)
    assert writer is not None
    outputs = texts_of(writer, examples.sources, use.progress, "translating", "lines")
    use.progress.note(writer.summary.text())
    rate = writer.summary.rate
    speed = ("speed", f"{rate:,.0f}", "target tokens per second")
    return TextPredictions(outputs, loss, [speed], {"tokens_per_s": rate})


def pairs_of_test(data: DataSettings, references: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sources and targets of a test set. Sources are empty if only references are
    given."""
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
