"""Causal language modelling of plain documents, or of documents with fields such as title and
body."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan, layout_of, pad_rows, to_device
from headway.data.causal_lm import (
    DEFAULT_EPOCH,
    DocumentStream,
    DocumentTokens,
    FieldStream,
    mark_names,
)
from headway.data.document_windows import (
    DocumentWindows,
    fixed_windows,
    random_windows,
    window_limit,
    window_shapes,
)
from headway.data.prepare import evaluation_set, prepare
from headway.data.store import Columns, PreparedData
from headway.data.text_windows import ranges
from headway.data.token_store import TokenStore
from headway.decode.completer import Completer
from headway.errors import ConfigError, FolderError, Option, UserError
from headway.metrics.language import bits_per_byte
from headway.models.decoder import Decoder
from headway.models.parts.counted import NgramLMHead
from headway.models.parts.output_heads import ModelInput
from headway.nn.kneser_ney import KneserNey, preceding_tokens
from headway.nn.layout import loss_weights
from headway.nn.loss import LabelSmoothing
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats
from headway.settings.model import DecoderSettings, family_of
from headway.settings.run import Resolved, RunSettings, with_files
from headway.specs.metrics import METRICS
from headway.tasks.dataset import Batch, EpochSeed, EvalPass, PositionInfo, batches_of
from headway.tasks.evaluate import Evaluator, TrainingData
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.ngram_fit import MOST_TOKENS, CountedTokens, count_ngrams
from headway.tasks.objective import (
    COUNTED,
    TOKENS,
    MicroBatch,
    Objective,
    TargetFrequencies,
    TaskLoss,
)
from headway.tasks.parent_run import parent_of, tokenizer_of
from headway.tasks.preprocess.text import describe_tokens
from headway.tasks.readout import EachRow, Read
from headway.tasks.scores import Methods, MethodScores, ScoreRow, Scores
from headway.tasks.task import InferenceRequest, Predictor, Task
from headway.tokens.tokenizer import Tokenizer

NGRAMS = "n-grams"
HALVES = "n-grams from the other half"

FEW_TOKENS = 512
"""Vocabulary size up to which tokens are little more than characters: byte vocabularies have about
300 tokens, including special tokens."""

BLOCK = 1024
"""Length in tokens of the blocks in which target tokens are counted. The counts do not depend on
it."""

SAMPLES = 3
"""Number of documents for which an evaluation generates a continuation, as examples in the
report."""

SAMPLE_START, SAMPLE_TOKENS = 17, 64
"""Numbers of prompt tokens and of generated tokens for each example in the report: about a line,
and a short paragraph."""

NEXT = EachRow("words")
"""Readout of language models: one next-token distribution per position."""


def default_order(vocab_size: int) -> int:
    """Return the default order (longest n-gram) of an n-gram model.

    Small vocabularies get a higher order, because their tokens carry little information. A still
    higher order improved the loss by less than a hundredth on every text and vocabulary that was
    tried, and made the table 1.5 times as large.
    """
    return 7 if vocab_size <= FEW_TOKENS else 5


@dataclass(frozen=True)
class CausalLMDataset:
    """Windows of documents as inputs, with the next token as the target of each position."""

    source: DocumentTokens
    tokenizer: Tokenizer
    context: int
    epoch_seed: EpochSeed | None = None

    @cached_property
    def cut(self) -> DocumentWindows:
        if self.epoch_seed is None:
            return fixed_windows(self.source.lengths(DEFAULT_EPOCH), self.context)
        lengths = self.source.lengths(self.epoch_seed.epoch)
        return random_windows(lengths, self.context, self.epoch_seed.seed, self.epoch_seed.epoch)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.cut.length[:, None]

    @property
    def example_index(self) -> IntArray:
        return self.cut.document

    def for_epoch(self, draw: EpochSeed) -> CausalLMDataset:
        return replace(self, epoch_seed=draw)

    def n_targets(self, rows: IntArray) -> int:
        return int(self.cut.length[rows].sum())

    def tokens(self, rows: IntArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the concatenated tokens of these windows, and for each token the one that follows
        it."""
        epoch = DEFAULT_EPOCH if self.epoch_seed is None else self.epoch_seed.epoch
        return self.source.read(epoch, *(part[rows] for part in vars(self.cut).values()))

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[Tensor]:
        """Return a batch of windows in which the target of each position is the next token."""
        inputs, labels = self.tokens(rows)
        lengths = self.cut.length[rows]
        layout = layout_of(lengths, fixed)
        batch = Batch(
            (ModelInput(pad_rows(inputs, layout.n_rows), layout),),
            pad_rows(labels, layout.n_rows),
            loss_weights(lengths.tolist(), layout.n_rows),
        )
        return to_device(batch, device)

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes:
        tokens = window_limit(plan, micro_tokens, self.context)
        return window_shapes(plan, tokens, self.context)

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        return (describe_tokens(self.tokens(np.array([row]))[0].tolist(), self.tokenizer),)


@dataclass
class CausalLMObjective(Objective[Tensor]):
    evaluator: CausalLMEvaluator = field(init=False)
    train_dataset: CausalLMDataset = field(init=False)
    valid_dataset: CausalLMDataset = field(init=False)

    def __post_init__(self) -> None:
        train, model = self.settings.train, self.settings.model
        self.metric = METRICS[train.metric or "loss"]
        self.context = self.settings.complete.context or model.max_len
        if self.context > model.max_len:
            raise ConfigError(
                f"complete.context={self.context} exceeds the maximum length of the model "
                f"(model.max_len={model.max_len}). Lower complete.context."
            )
        self.train_dataset = self.items(self.prepared.train)
        self.valid_dataset = self.items(self.prepared.valid)
        self.evaluator = CausalLMEvaluator(self.settings, self.prepared.tokenizer, self.context)
        self.valid_set = DocumentSet(self.prepared.valid, self.valid_dataset)
        size = self.prepared.tokenizer.vocab_size
        self.smoothing = LabelSmoothing.of(train.label_smoothing, size, train.label_smoothing_kind)

    def items(self, texts: Columns) -> CausalLMDataset:
        return causal_lm_dataset(texts, self.prepared.tokenizer, self.settings, self.context)

    def widest(self, items: object) -> int:
        return self.context

    def part_limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        tokens = window_limit(plan, micro_tokens, self.context)
        return tokens, tokens

    def begin(self, model: nn.Module, note: Callable[[str], None]) -> None:
        assert isinstance(model, Decoder)
        if not isinstance(model.head, NgramLMHead):
            return
        begun, table = time.monotonic(), model.head.table
        counted = count_ngrams(table, self.train_dataset.source)
        took = time.monotonic() - begun
        note(f"{table.n_grams:,} n-grams counted in {counted.text} tokens ({took:.0f} s)")

    def read(self, model: nn.Module, given: Batch[Tensor]) -> Read:
        assert given.weights_R is not None
        return NEXT.read(model, *given.streams).with_weights(given.weights_R)

    def loss(self, read: Read, given: Batch[Tensor]) -> TaskLoss:
        return word_loss(read, given.targets, self.smoothing)

    @property
    def n_valid(self) -> int:
        return len(self.valid_dataset.cut)

    @property
    def n_quick(self) -> int:
        return self.n_valid

    def frequencies(self) -> TargetFrequencies:
        return language_frequencies(self.train_dataset, self.valid_dataset)

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        items, _ = self.planned(part.rows.epoch)
        assert isinstance(items, CausalLMDataset)
        decode = self.prepared.tokenizer.decode
        return [
            {
                "document": int(items.example_index[row]),
                "text": decode(items.tokens(np.array([row]))[1].tolist()),
            }
            for row in part.rows.rows
        ]


class CausalLMTask(Task):
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        specials = mark_names(settings.data.fields)
        words = tokenizer_of(settings)
        return prepare(settings, folder, progress, tokenizer=words, specials=specials)

    def describe(self, prepared: PreparedData) -> str:
        n = prepared.train.n
        tokens = _n_tokens(prepared.train)
        return f"{n:,} document{'s' * (n != 1)} of {tokens:,} tokens"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        usual = stream_of(prepared.train, prepared.tokenizer, settings).lengths(DEFAULT_EPOCH)
        return DatasetStats(
            n=prepared.train.n,
            n_tokens=_n_tokens(prepared.train) + prepared.train.n,
            longest=int(usual.max()),
            vocab_size=prepared.tokenizer.vocab_size,
            parent=parent_of(settings),
        )

    def objective(self, settings: Resolved, prepared: PreparedData) -> CausalLMObjective:
        return CausalLMObjective(settings, prepared)

    def predictor(self, use: InferenceRequest) -> Predictor:
        from headway.tasks.complete_answers import predictor

        return predictor(use)

    def evaluator(self, use: InferenceRequest) -> CausalLMEvaluator:
        if use.opened.engine is not None:
            raise UserError(
                f"{Option('engine', use.opened.engine.name)} cannot compute perplexity. Evaluate "
                f"the original run with {Option('engine', 'torch')}."
            )
        check_language(use.opened)
        context = use.settings.complete.context or context_of(use.opened.settings)
        return CausalLMEvaluator(use.settings, use.opened.vocab.target, context)


def causal_lm_dataset(
    texts: Columns, tokenizer: Tokenizer, settings: RunSettings, context: int
) -> CausalLMDataset:
    return CausalLMDataset(stream_of(texts, tokenizer, settings), tokenizer, context)


def stream_of(texts: Columns, tokenizer: Tokenizer, settings: RunSettings) -> DocumentTokens:
    """Return the tokens of the training documents. With `data.fields`, each document consists of
    fields with marks around them."""
    if not settings.data.fields:
        return DocumentStream(texts["text"], tokenizer.bos, tokenizer.eos)
    stores = {name: texts.tokens(name) for name in settings.data.fields}
    drop, seed = settings.complete.drop_fields, settings.train.seed
    return FieldStream.of(stores, tokenizer, drop, seed)


def _n_tokens(texts: Columns) -> int:
    stores = list(texts.parts.values()) or [texts["text"]]
    return sum(int(store.lengths.sum()) for store in stores)


def context_of(run: Resolved) -> int:
    """Return the context length in tokens that a language model was trained with."""
    return min(run.complete.context or run.model.max_len, run.model.max_len)


def check_language(opened: LoadedRun) -> None:
    """Raise an error if one of the loaded runs is not a language model."""
    for folder, run in zip(opened.folders, opened.runs, strict=True):
        if not isinstance(run.model, DecoderSettings) or "words" not in run.model.heads:
            kind = run.task if run.model is None else f"{family_of(run.model)} model"
            raise FolderError(
                f"{folder} does not contain a model that generates text (found: {kind}). Train "
                "one: headway train complete FILES --out RUN"
            )


# Negative log-likelihoods and scores


def likelihood(asked: EvalPass, items: CausalLMDataset) -> tuple[float, int]:
    """Return the negative log-likelihood in nats and the number of tokens, for the first
    `asked.max_examples` windows (None: all)."""
    rows, total = np.arange(len(items.cut))[: asked.max_examples], 0.0
    for _, batch in asked.batches(items, rows):
        total += float(word_loss(NEXT.read(asked.model, *batch.streams), batch.targets, PLAIN).nll)
    return total, items.n_targets(rows)


def language_scores(total: float, count: int, examples: DocumentSet) -> dict[str, float]:
    """Return loss per token, perplexity and bits per byte, given the total loss in nats. Documents
    with fields get no bits per byte, because only the bytes of their last field (the body) are
    known."""
    loss = total / max(1, count)
    found = {"loss": loss, "ppl": math.exp(min(loss, 50.0))}
    if not examples.has_fields:
        found["bits_per_byte"] = bits_per_byte(loss, examples.bytes_per_token)
    return found


@dataclass(frozen=True)
class NGramBaseline:
    """N-gram baseline, counted on the training documents."""

    table: KneserNey
    counted: CountedTokens

    @classmethod
    def of(cls, items: CausalLMDataset) -> NGramBaseline:
        size = items.tokenizer.vocab_size
        table = KneserNey(size, default_order(size))
        return cls(table, count_ngrams(table, items.source, MOST_TOKENS))

    @torch.no_grad()
    def likelihood(self, items: CausalLMDataset, most: int | None = None) -> tuple[float, int]:
        """Return the negative log-likelihood in nats and the number of tokens, for the first `most`
        windows (None: all)."""
        rows, total = np.arange(len(items.cut))[:most], 0.0
        for first in range(0, len(rows), 256):
            some = rows[first : first + 256]
            read_N, said_N = (torch.from_numpy(part) for part in items.tokens(some))
            place_N = torch.from_numpy(ranges(np.zeros_like(some), items.cut.length[some]))
            x_NK = self.table.contexts(preceding_tokens(read_N, place_N, self.table.order - 1))
            total -= float(self.table.token_probs(x_NK, said_N).double().log().sum())
        return total, items.n_targets(rows)

    @property
    def name(self) -> str:
        """Name of the baseline in score tables, with the number of counted tokens if not all were
        counted."""
        some = f" of {self.counted.text} tokens" if self.counted.n < self.counted.of else ""
        return NGRAMS + some

    @property
    def remark(self) -> str:
        return (
            f"order {self.table.order}, modified Kneser–Ney on {self.counted.text} training tokens"
        )


def _target_counts(items: CausalLMDataset, size: int) -> NDArray[np.int64]:
    """Return how often each token of the vocabulary is a target. Field marks and end tokens are
    counted too."""
    blocks = replace(items, context=BLOCK, epoch_seed=None)
    counts_V, most = np.zeros(size, np.int64), max(1, COUNTED // BLOCK)
    for first in range(0, min(len(blocks.cut), most), 256):
        rows = np.arange(len(blocks.cut))[first : first + 256]
        counts_V += np.bincount(blocks.tokens(rows)[1], minlength=size)
    return counts_V


def language_frequencies(train: CausalLMDataset, valid: CausalLMDataset) -> TargetFrequencies:
    size = train.tokenizer.vocab_size
    return TargetFrequencies(*(_target_counts(part, size) for part in (train, valid)))


@dataclass(frozen=True)
class DocumentSet:
    """Documents on which a language model is evaluated."""

    columns: Columns
    dataset: CausalLMDataset

    @property
    def has_fields(self) -> bool:
        return isinstance(self.dataset.source, FieldStream)

    @property
    def bytes_per_token(self) -> float:
        return self.columns.n_bytes / max(1, int(self.dataset.cut.length.sum()))


@dataclass(frozen=True)
class LanguagePredictions:
    """Negative log-likelihoods of documents under a language model."""

    nll: float
    """Negative log-likelihood of all scored tokens, in nats."""

    n_tokens: int
    n_windows: int | None = None
    """Number of windows scored, counted from the first; None: all."""

    samples: Sequence[dict[str, str]] = ()
    of_body: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Negative log-likelihood and number of tokens of the last field (the body), by prompt:
    `alone`, or `given the other fields`."""


@dataclass(frozen=True)
class CausalLMEvaluator(Evaluator[DocumentSet, LanguagePredictions]):
    """Evaluation of a language model: loss, perplexity and bits per byte.

    For documents with fields, an evaluation on a test set also scores the body with and without the
    other fields.
    """

    settings: Resolved
    tokenizer: Tokenizer
    context: int

    def predict(self, asked: EvalPass, examples: DocumentSet) -> LanguagePredictions:
        nll, count = likelihood(asked, examples.dataset)
        found = LanguagePredictions(nll, count, asked.max_examples)
        if asked.run is None:
            return replace(found, samples=self._samples(asked.model, examples.dataset))
        if not examples.has_fields:
            return found
        assert isinstance(examples.dataset.source, FieldStream)
        names = examples.dataset.source.names
        shown = {"alone": [names[-1]], "given the other fields": names}
        return replace(found, of_body={
            name: body_likelihood(asked.model, examples.dataset, fields, asked.device)
            for name, fields in shown.items()
        })  # fmt: skip

    def _samples(self, model: nn.Module, dataset: CausalLMDataset) -> list[dict[str, str]]:
        """Return continuations of the first tokens of some documents, as examples for the
        report."""
        assert isinstance(model, Decoder)
        # If the context is short, use at most half of it for the prompt, so that there is room for
        # generated text.
        most = min(SAMPLE_START, -(-self.context // 2))
        source = dataset.source
        first = np.minimum(source.lengths(DEFAULT_EPOCH)[:SAMPLES], most)
        starts = [
            source.read(DEFAULT_EPOCH, np.array([n]), np.array([0]), size[None])[0].tolist()
            for n, size in enumerate(first)
        ]
        decode = replace(self.settings.decode, max_len=SAMPLE_TOKENS, n_best=1)
        room = self.settings.model.max_len
        completer = Completer([model], self.tokenizer, decode, context=room)
        return [
            {"source": completion.source, "target": "", "output": completion.text}
            for completion in completer.complete(starts)
        ]

    def score(self, predictions: LanguagePredictions, examples: DocumentSet, full: bool) -> Scores:
        said, n_bytes = predictions, examples.columns.n_bytes
        details: list[ScoreRow] = [("tokens", f"{said.n_tokens:,}", f"of {n_bytes:,} bytes")]
        facts: dict[str, Any] = {"tokens": said.n_tokens, "bytes": n_bytes}
        for name, (nll, count) in said.of_body.items():
            body = f"{self.settings.data.fields[-1]}"
            loss, bits = nll / max(1, count), bits_per_byte(nll, n_bytes)
            key = f"{body}_{name.split(' ')[0]}"
            facts |= {f"{key}_loss": loss, f"{key}_bits_per_byte": bits}
            remark = f"perplexity per token; {bits:.4f} bits per byte"
            details.append((f"{body} {name}", f"{math.exp(min(loss, 50.0)):.3f}", remark))
        return Scores(
            language_scores(said.nll, said.n_tokens, examples),
            n=examples.columns.n, unit="documents",
            remarks={"loss": f"nats per token, windows of {self.context:,} tokens"},
            details=details, facts=facts, samples=said.samples,
        )  # fmt: skip

    def baselines(
        self, data: TrainingData, examples: DocumentSet, predictions: LanguagePredictions
    ) -> Methods:
        """Return scores of baseline language models: token frequencies and n-grams.

        An n-gram model is compared only with token frequencies. Without training data, the n-grams
        are counted in one half of the documents and scored on the other, and vice versa.
        """
        counts_ngrams = not self.settings.model.is_counted
        if data is None:
            gone = MethodScores({}, "not available: the run has no training data")
            halves = _ngrams_by_halves(examples.dataset) if counts_ngrams else None
            if halves is None:
                return {TOKENS: gone}
            remark = "counted in the other half of this text: the run has no training data"
            of_halves = language_scores(*halves, examples)
            return {TOKENS: gone, HALVES: MethodScores(of_halves, remark)}
        known = causal_lm_dataset(data.train, self.tokenizer, self.settings, self.context)
        loss = language_frequencies(known, examples.dataset).scores["loss"]
        remark = "each token as frequent as in the training data"
        found = {TOKENS: MethodScores(language_scores(loss, 1, examples), remark)}
        if counts_ngrams:
            ngrams = NGramBaseline.of(known)
            total, count = ngrams.likelihood(examples.dataset, predictions.n_windows)
            scores = language_scores(total, count, examples)
            found[ngrams.name] = MethodScores(scores, ngrams.remark)
        return found

    def test_set(self, files: DataSettings, progress: Progress) -> DocumentSet:
        texts, _ = evaluation_set(with_files(self.settings, files), self.tokenizer, ())
        dataset = causal_lm_dataset(texts, self.tokenizer, self.settings, self.context)
        return DocumentSet(texts, dataset)


def _ngrams_by_halves(items: CausalLMDataset) -> tuple[float, int] | None:
    """Return the negative log-likelihood and the number of tokens for a cross-validated n-gram
    baseline, for runs without training data.

    Each half of the documents is scored with n-grams counted in the other half. A single document
    is cut into two halves.
    """
    source = items.source
    if not isinstance(source, DocumentStream) or source.store.tokens.size < 2:
        return None
    texts = [source.store[i] for i in range(source.store.n)]
    if len(texts) == 1:
        texts = np.array_split(texts[0], 2)
    odd, even = (
        replace(items, source=replace(source, store=TokenStore.of(texts[first::2])))
        for first in (0, 1)
    )
    found = [NGramBaseline.of(one).likelihood(other) for one, other in ((odd, even), (even, odd))]
    return sum(total for total, _ in found), sum(count for _, count in found)


@torch.no_grad()
def body_likelihood(
    model: nn.Module, items: CausalLMDataset, names: Sequence[str], device: torch.device
) -> tuple[float, int]:
    """Return the negative log-likelihood of the last field given the fields `names`, and its number
    of tokens. Its closing mark is counted too."""
    source = items.source
    assert isinstance(source, FieldStream)
    chosen = np.array([name in names for name in source.names])
    present_DF, order_DF = source.choice(DEFAULT_EPOCH)
    trial = replace(source, _choices={DEFAULT_EPOCH: (present_DF & chosen, order_DF)})
    items = replace(items, source=trial, epoch_seed=None)
    cut, last_D = items.cut, trial.lengths(DEFAULT_EPOCH)
    first_D = last_D - 1 - source.sizes_DF[:, -1]
    rows = np.flatnonzero(present_DF[cut.document, -1])
    total, count = 0.0, 0
    for some, batch in batches_of(items, rows, device):
        document_N = np.repeat(cut.document[some], cut.length[some])
        place_N = ranges(cut.start[some], cut.length[some]) + 1  # place of the target
        # The end token of the document does not belong to the body.
        is_body_N = (place_N >= first_D[document_N]) & (place_N < last_D[document_N])
        weights_N = torch.from_numpy(is_body_N.astype(np.float32)).to(device)
        read = NEXT.read(model, *batch.streams).with_weights(weights_N)
        total += float(word_loss(read, batch.targets, PLAIN).nll)
        count += int(is_body_N.sum())
    return total, count
