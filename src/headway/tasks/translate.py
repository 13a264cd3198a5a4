"""Translation of texts with an encoder-decoder, trained on pairs of sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from headway.data.prepare import prepare
from headway.data.store import Columns, PreparedData, load_prepared
from headway.errors import DataError, Option
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.facts import DatasetStats
from headway.settings.folder import TOKENIZER, file_in, run_folder
from headway.settings.run import Resolved, RunSettings
from headway.tasks.parent_run import parent_of
from headway.tasks.preprocess.text import SourceTextDataset
from headway.tasks.scores import Scores
from headway.tasks.seq2seq import EvalSet, Seq2SeqTask, SourceAugmenter
from headway.tasks.seq2seq_answers import TranslationPredictor
from headway.tasks.seq2seq_dataset import Seq2SeqDataset
from headway.tasks.seq2seq_scores import evaluate_translations
from headway.tasks.sequence_distil import prepare_distilled, with_distilled
from headway.tasks.task import InferenceRequest
from headway.tokens.tokenizer import Vocabularies


class TranslateTask(Seq2SeqTask):
    """The task of translating texts."""

    samples = 5

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
        """Raise DataError if a pair is longer than the learned positions of the model."""
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

    def baseline(self, exam: EvalSet, usual: Callable[[], str]) -> tuple[str, list[str]]:
        return "copied source", list(exam.sources)

    def describe_source(self, example: int, prepared: PreparedData) -> dict[str, object]:
        source = prepared.vocabularies.source.decode(prepared.train["source"][example].tolist())
        return {"pair": example, "source": source}

    def predictor(self, use: InferenceRequest) -> TranslationPredictor:
        return TranslationPredictor(use)

    def evaluation(self, use: InferenceRequest, files: DataSettings) -> Scores:
        return evaluate_translations(
            use.opened, use.settings.decode, files, use.options, use.progress
        )
