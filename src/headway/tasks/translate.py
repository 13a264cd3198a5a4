"""Translation: pairs of sentences, an encoder-decoder, BLEU and chrF on the validation set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headway.config.data import DataSettings
from headway.config.decode import DecodeSettings
from headway.config.facts import DeviceFacts, Facts, Proposal, because
from headway.config.folder import TOKENIZER, file_in, run_folder
from headway.config.run import Resolved, RunSettings
from headway.config.train import TrainSettings
from headway.data.batches import (
    Collator,
    Fixed,
    FlatTokens,
    PairBatch,
    Rows,
    StepPlan,
    fixed_shapes,
)
from headway.data.prepare import prepare
from headway.data.store import Columns, Prepared, load_prepared
from headway.decode.translator import Translator
from headway.errors import DataError, Stopped
from headway.metrics.translation import bleu, chrf
from headway.models.parts.heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.loss import Smoothing
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with
from headway.tasks.kind import Use
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.proposals import FINE_TUNING, LEARNS_FAST, begins, tuned_rate
from headway.tasks.read import EachRow, Read
from headway.tasks.scores import Baselines, Scores
from headway.tasks.specs import METRICS, spec_of
from headway.tasks.task import TOKENS, Frequencies, Part, TaskLoss, n_examples, text_frequencies
from headway.tasks.taught import prepare_taught, with_taught
from headway.tasks.translate_answers import TranslationPredictor
from headway.tasks.translate_scores import evaluate_translations
from headway.text.tokenizer import Vocabularies

SAMPLES = 5


@dataclass
class TranslateTask:
    """How pairs become steps, what they cost, and how good the translations are."""

    prepared: Prepared
    settings: TrainSettings
    decode: DecodeSettings
    lowercase: bool = False
    """Whether the tokenizer lowers the case: then case cannot count in scores either."""

    quick_size: int = 500
    """Validation pairs that are translated during training; all of them at the end."""

    def __post_init__(self) -> None:
        self.metric = METRICS[self.settings.metric or "bleu"]
        assert self.settings.batch_tokens is not None
        self.train = collator(self.prepared.train, self.vocab)
        self.valid = collator(self.prepared.valid, self.vocab)
        self.plan = self._plan(self.prepared.train, self.settings.batch_tokens)
        self.smoothing = Smoothing.of(
            self.settings.smoothing, self.vocab.target.vocab_size, self.settings.smoothing_kind
        )

    @property
    def vocab(self) -> Vocabularies:
        return self.prepared.words

    def _plan(self, pairs: Columns, target_tokens: int) -> StepPlan:
        begins = (self.vocab.source.source_begin, self.vocab.target.target_begin)
        source, target = (
            np.asarray(side.lengths, dtype=np.int64) + (1 if begin is None else 2)
            for side, begin in zip((pairs["source"], pairs["target"]), begins, strict=True)
        )
        train = self.settings
        return StepPlan.of_pairs(source, target, target_tokens, train.seed, train.pool)

    def epoch(self, number: int) -> list[Rows]:
        return self.plan.epoch(number)

    def parts(self, step: Rows, micro_tokens: int) -> list[Part]:
        cut = self.plan.cut(step, *self.plan.part_limits(micro_tokens))
        return [Part(rows, self.plan.n_targets(rows)) for rows in cut]

    def fixed(self, micro_tokens: int) -> Fixed:
        longest = max(self.plan.source_lengths.max(), self.plan.target_lengths.max())
        return fixed_shapes(self.plan, *self.plan.part_limits(micro_tokens), int(longest))

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> PairBatch:
        return self.train.batch(part.rows, device, fixed)

    def vary(self, model: nn.Module, batch: PairBatch) -> PairBatch:
        return batch

    def read(self, model: nn.Module, given: PairBatch) -> Read:
        return read_pairs(model, given).weighed(given.weights_N)

    def loss(self, read: Read, given: PairBatch) -> TaskLoss:
        return word_loss(read, given.labels_N, self.smoothing)

    @property
    def n_valid(self) -> int:
        return len(self.prepared.valid_examples)

    @property
    def n_quick(self) -> int:
        return min(self.quick_size, self.n_valid)

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool],
        full: bool,
        on_progress: OnProgress = unheard,
        *,
        most: int | None = None,
    ) -> Scores:
        assert isinstance(model, Seq2Seq)
        loss = self._valid_loss(model, device, stopped, on_progress, most)
        values = {"loss": loss, "ppl": float(np.exp(min(loss, 50.0)))}
        pairs = self.prepared.valid_pairs[: n_examples(self, full, most)]
        decode = self.decode if full else self._quick_decode()
        # No pair is longer than what the run was trained on: none is to be split.
        longest = int(self.prepared.valid["source"].lengths.max())
        translator = Translator([model], self.vocab, decode, device=device, max_len=longest)
        outputs: list[str] = []
        sources = [source for source, _ in pairs]
        for translation in translator.translate(sources, on_progress=on_progress):
            outputs.append(translation.text)
            if stopped():
                raise Stopped
        references = [target for _, target in pairs]
        values["bleu"] = bleu(outputs, references, lowercase=self.lowercase).value
        values["chrf"] = chrf(outputs, references, lowercase=self.lowercase).value
        samples = [
            {"source": source, "target": target, "output": output}
            for (source, target), output in zip(pairs[:SAMPLES], outputs, strict=False)
        ]
        return Scores(
            values=values,
            samples=samples,
            find_baselines=lambda: self._baselines(pairs),
            find_answers=lambda: (outputs, references),
        )

    def _baselines(self, pairs: Sequence[tuple[str, str]]) -> Baselines:
        sources, targets = zip(*pairs, strict=True)
        copied = {
            "bleu": bleu(sources, targets, lowercase=self.lowercase).value,
            "chrf": chrf(sources, targets, lowercase=self.lowercase).value,
        }
        return {"the source itself": copied, TOKENS: self.frequencies().scores}

    def frequencies(self) -> Frequencies:
        return text_frequencies(
            self.prepared.train["target"], self.prepared.valid["target"], self.vocab.target
        )

    def _quick_decode(self) -> DecodeSettings:
        """Greedy, and no longer beside its source than any text of the validation set is."""
        valid = self.prepared.valid
        longer = int((valid["target"].lengths.astype(np.int64) - valid["source"].lengths).max())
        extra = min(self.decode.extra_len, max(2, longer + 2))
        return replace(self.decode, beam=1, n_best=1, groups=1, extra_len=extra)

    def _valid_loss(
        self,
        model: Seq2Seq,
        device: torch.device,
        stopped: Callable[[], bool],
        on_progress: OnProgress = unheard,
        most: int | None = None,
    ) -> float:
        """Likelihood per target token, without smoothing."""
        plan = self._plan(self.prepared.valid, min(self.plan.target_tokens, 4096))
        order = np.argsort(plan.target_lengths[:most], kind="stable")
        total, count, seen = 0.0, 0, 0
        for rows in plan.cut(order, plan.source_tokens, plan.target_tokens):
            batch = self.valid.batch(rows, device)
            total += float(word_loss(read_pairs(model, batch), batch.labels_N, PLAIN).nll)
            count += plan.n_targets(rows)
            seen += len(rows)
            on_progress(seen, len(order))
            if stopped():
                raise Stopped
        return total / max(1, count)

    def show(self, part: Part) -> list[dict[str, Any]]:
        """The examples of a part as text, for people."""
        pairs = self.prepared.train
        return [
            {
                "pair": int(row),
                "source": self.vocab.source.decode(pairs["source"][row].tolist()),
                "target": self.vocab.target.decode(pairs["target"][row].tolist()),
            }
            for row in part.rows
        ]


PAPER = {
    "transformer-base": {"batch_tokens": 25_000, "steps": 100_000, "average": 5},
    "transformer-big": {"batch_tokens": 25_000, "steps": 300_000, "average": 20, "keep": 20},
}
"""What belongs to a preset beside its shape."""

EPOCHS = ((20_000, 60), (100_000, 40), (1_000_000, 20))
"""Training pairs up to so many, and epochs for them; 10 beyond."""

SMALL_DATA_MODEL = {"wiring": "pre", "dropout": 0.1}
SMALL_DATA_TRAINING = {"optimizer": "muon", "schedule": "linear", "lr": 8e-3, "clip": 1.0}
"""Strong defaults where nobody asked for the paper's, found by trying (docs/results.md): after 500
steps they are where the paper's optimiser and wiring are after several thousand."""


def preset_for(n_pairs: int, device: DeviceFacts) -> str:
    if device.is_cpu:
        return "transformer-tiny" if n_pairs < 200_000 else "transformer-small"
    if n_pairs < 60_000:
        return "transformer-tiny"
    return "transformer-iwslt" if n_pairs < 1_000_000 else "transformer-base"


def batch_tokens(n_pairs: int, device: DeviceFacts) -> int:
    if device.is_cpu:
        return 2048 if n_pairs < 100_000 else 4096
    return 8192 if n_pairs < 1_000_000 else 25_000


class Translate:
    """The task as a run sees it."""

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        if not settings.data.source and not settings.data.pairs:
            raise DataError(
                "no pairs of texts. Give --source FILE --target FILE, or --pairs FILE "
                "(TSV or JSONL)."
            )
        if settings.distil.teacher:
            return prepare_taught(settings, folder, progress)
        if settings.start.run:
            words = file_in(run_folder(settings.start.run), TOKENIZER)
            settings = replace(settings, tokenizer=replace(settings.tokenizer, file=str(words)))
        return prepare(settings, folder, progress)

    def load_prepared(self, folder: Path) -> Prepared:
        return with_taught(load_prepared(folder), folder)

    def describe(self, prepared: Prepared) -> str:
        return f"{prepared.train.n:,} pairs"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        vocab, lengths = prepared.words, prepared.train["target"].lengths
        return Facts(
            n=prepared.train.n,
            n_tokens=int(lengths.sum()) + len(lengths),  # of the target, with its end tokens
            vocab_size=vocab.target.vocab_size,
            source_vocab_size=0 if vocab.joint else vocab.source.vocab_size,
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        amount = f"{facts.n:,} pairs"
        preset = str(settings.asked.get("model.preset"))
        others = because(f"the paper of {preset}", "train", PAPER.get(preset, {}))
        if settings.start.run and facts.begun is not None:
            others |= because(begins(settings, amount, device), "train", FINE_TUNING)
            others |= tuned_rate(settings, facts, facts.begun.model)
        elif settings.model is None and not settings.distil.teacher:
            others |= because(begins(settings, amount, device), "train", SMALL_DATA_TRAINING)
        needs: dict[str, object] = {"tie": "target-softmax"} if facts.source_vocab_size else {}
        # A model that is named by its family has its own length.
        longest = settings.data.max_len + 1 + settings.decode.extra_len
        named = settings.model is None or "model.preset" in settings.asked
        return Proposal(
            needs=because("both sides have words of their own", "model", needs),
            model=because(
                f"{amount} on {device.shown}", "model", {"preset": preset_for(facts.n, device)}
            )
            | because(LEARNS_FAST, "model", SMALL_DATA_MODEL),
            others=others,
            room=longest if named else 0,
            n_tokens=facts.n_tokens,
            epochs=next((epochs for most, epochs in EPOCHS if facts.n <= most), 10),
            least_steps=200,
            batch_tokens=batch_tokens(facts.n, device),
            amount=amount,
            metrics=spec_of(settings).scores,
            instead=" Try model.preset=transformer-base.",
        )

    def check(self, settings: Resolved, prepared: Prepared) -> None: ...

    def task(self, settings: Resolved, prepared: Prepared) -> TranslateTask:
        return TranslateTask(
            prepared, settings.train, settings.decode, lowercase=settings.tokenizer.lowercase
        )

    def predictor(self, use: Use) -> TranslationPredictor:
        return TranslationPredictor(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        return evaluate_translations(
            use.opened, use.settings.decode, files, use.options, use.progress
        )


def read_pairs(model: nn.Module, batch: PairBatch) -> Read:
    """Every target row says the token that follows."""
    source = Input(batch.source_M, batch.source)
    return EachRow("words").read(model, source, Input(batch.target_N, batch.target))


def collator(pairs: Columns, vocab: Vocabularies) -> Collator:
    source, target = (
        FlatTokens(side.tokens, side.offsets) for side in (pairs["source"], pairs["target"])
    )
    return Collator(
        source=source,
        target=target,
        bos=vocab.target.bos,
        source_eos=vocab.source.eos,
        target_eos=vocab.target.eos,
        source_begin=vocab.source.source_begin,
        target_begin=vocab.target.target_begin,
    )
