"""Translation of texts with an encoder-decoder, trained on pairs of sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from headway.data.prepare import prepare
from headway.data.store import Columns, PreparedData, load_prepared
from headway.errors import DataError
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.facts import DatasetStats, DeviceInfo, Proposal, because
from headway.settings.folder import TOKENIZER, file_in, run_folder
from headway.settings.run import Resolved, RunSettings
from headway.settings.task_rows import spec_of
from headway.tasks.defaults import (
    FINE_TUNING,
    LEARNS_FAST,
    decoder_training,
    fresh_decoder,
    training_reason,
    tuned_lr,
)
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

PAPER = {
    "transformer-base": {"batch_tokens": 25_000, "steps": 100_000, "average": 5},
    "transformer-big": {"batch_tokens": 25_000, "steps": 300_000, "average": 20, "keep": 20},
}
"""Published training settings of presets."""

EPOCHS = ((20_000, 60), (100_000, 40), (1_000_000, 20))
"""Number of epochs for training sets of up to this many pairs; larger ones get 10."""

SMALL_DATA_MODEL = {"block_layout": "pre", "dropout": 0.1}
SMALL_DATA_TRAINING = {"optimizer": "muon", "schedule": "linear", "lr": 8e-3, "clip": 1.0}
"""Defaults if no published preset is requested. They were found by experiments
(docs/results/results.md): after 500 steps they reach the loss that the paper's optimiser and block
layout reach after several thousand."""


def preset_for(n_pairs: int, device: DeviceInfo) -> str:
    if device.is_cpu:
        return "transformer-tiny" if n_pairs < 200_000 else "transformer-small"
    if n_pairs < 60_000:
        return "transformer-tiny"
    return "transformer-iwslt" if n_pairs < 1_000_000 else "transformer-base"


def batch_tokens(n_pairs: int, device: DeviceInfo) -> int:
    if device.is_cpu:
        return 2048 if n_pairs < 100_000 else 4096
    return 8192 if n_pairs < 1_000_000 else 25_000


class TranslateTask(Seq2SeqTask):
    """The task of translating texts."""

    samples = 5

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        if not settings.data.source and not settings.data.pairs:
            raise DataError(
                "no training data. Give --source FILE --target FILE, or --pairs FILE (TSV or "
                "JSONL)."
            )
        if settings.distil.teacher:
            return prepare_distilled(settings, folder, progress)
        if settings.start.run:
            words = file_in(run_folder(settings.start.run), TOKENIZER)
            settings = replace(settings, tokenizer=replace(settings.tokenizer, file=str(words)))
        return prepare("pairs", settings, folder, progress)

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

    def propose(self, settings: RunSettings, facts: DatasetStats, device: DeviceInfo) -> Proposal:
        amount = f"{facts.n:,} pairs"
        preset = str(settings.asked.get("model.preset"))
        others = because(f"as published for {preset}", "train", PAPER.get(preset, {}))
        if fresh_decoder(settings, facts, "seq2seq"):
            others |= decoder_training(settings, facts, SMALL_DATA_TRAINING, {})
        elif settings.start.run and facts.parent is not None:
            others |= because(training_reason(settings, amount, device), "train", FINE_TUNING)
            others |= tuned_lr(settings, facts, facts.parent.model)
        elif settings.model is None and not settings.distil.teacher:
            others |= because(
                training_reason(settings, amount, device), "train", SMALL_DATA_TRAINING
            )
        needs: dict[str, object] = {"tie": "target-softmax"} if facts.source_vocab_size else {}
        # A model that is given explicitly, without a preset, has its own maximum length.
        longest = settings.data.max_len + 1 + settings.decode.extra_len
        named = settings.model is None or "model.preset" in settings.asked
        return Proposal(
            needs=because("source and target have separate vocabularies", "model", needs),
            model=because(
                f"{amount} on {device.description}",
                "model",
                {"preset": preset_for(facts.n, device)},
            )
            | because(LEARNS_FAST, "model", SMALL_DATA_MODEL),
            others=others,
            room=longest if named or facts.parent is not None else 0,
            n_tokens=facts.n_tokens,
            epochs=next((epochs for most, epochs in EPOCHS if facts.n <= most), 10),
            least_steps=200,
            batch_tokens=batch_tokens(facts.n, device),
            amount=amount,
            metrics=spec_of(settings).scores,
            suggestion=" Try model.preset=transformer-base.",
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
