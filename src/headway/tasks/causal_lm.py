"""Causal language modelling of plain documents or of documents that consist of fields."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
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
from headway.data.store import Columns, PreparedData, load_prepared
from headway.data.text_windows import ranges
from headway.data.token_store import TokenStore
from headway.decode.completer import Completer
from headway.errors import ConfigError, DataError, FolderError, Option, UserError
from headway.metrics.language import token_counts, unigram_bits_per_byte
from headway.models.decoder import Decoder
from headway.models.parts.counted import NgramLMHead
from headway.models.parts.output_heads import ModelInput
from headway.nn.kneser_ney import KneserNey, preceding_tokens
from headway.nn.layout import loss_weights
from headway.nn.loss import LabelSmoothing
from headway.progress import SILENT, Progress
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats
from headway.settings.model import DecoderSettings, family_of
from headway.settings.run import Resolved, RunSettings, with_files
from headway.specs.metrics import METRICS
from headway.tasks.dataset import Batch, EpochSeed, EvalPass, PositionInfo, batches_of
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
from headway.tasks.scores import Baselines, ScoreRow, Scores
from headway.tasks.task import InferenceRequest, Predictor, Task
from headway.tokens.tokenizer import Tokenizer

NGRAMS = "n-grams"
HALVES = "n-grams from the other half"
FEW_TOKENS = 512

BLOCK = 1024
SAMPLES = 3
SAMPLE_START, SAMPLE_TOKENS = 17, 64

NEXT = EachRow("words")
"""Every position predicts the next token."""


def default_order(vocab_size: int) -> int:
    """Default order of n-grams: higher for small vocabularies, whose tokens carry little
    information. A higher order was better by less than a hundredth on every text and vocabulary
    that was tried, and makes the table half as large again."""
    return 7 if vocab_size <= FEW_TOKENS else 5


@dataclass(frozen=True)
class CausalLMDataset:
    """Windows of documents as inputs, with the next token of each position as target."""

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
        """Concatenated tokens of these windows, and the token that follows each of them."""
        epoch = DEFAULT_EPOCH if self.epoch_seed is None else self.epoch_seed.epoch
        return self.source.read(epoch, *(part[rows] for part in vars(self.cut).values()))

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[Tensor]:
        """A batch in which every position has a target, the token that follows it."""
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

    def evaluate(self, asked: EvalPass) -> Scores:
        assert isinstance(asked.model, Decoder)
        total, count = likelihood(asked, self.valid_dataset)
        share = count / max(1, int(self.valid_dataset.cut.length.sum()))
        values = language_scores(total, count, share * self.prepared.valid.n_bytes)
        if self.settings.data.fields:  # the bytes are those of the body alone
            del values["bits_per_byte"]
        return Scores(
            values=values,
            samples=self._samples(asked.model),
            find_baselines=lambda: self._baselines(asked, values),
        )

    def _baselines(self, asked: EvalPass, values: dict[str, float]) -> Baselines:
        per_token = values.get("bits_per_byte", 0.0) / (values["loss"] or 1.0)
        found = {TOKENS: self.frequencies().scores}
        if not self.settings.model.is_counted:  # otherwise the model is an n-gram model itself
            ngrams = NGramBaseline.of(self.train_dataset)
            total, count = ngrams.likelihood(self.valid_dataset, asked.max_examples)
            found[ngrams.name] = language_scores(total, count, 1.0)
        for scores in found.values():
            # Convert with the bytes per token of the model's own scores.
            scores.pop("bits_per_byte", None)
            scores |= {"bits_per_byte": per_token * scores["loss"]} if per_token else {}
        return found

    def frequencies(self) -> TargetFrequencies:
        size = self.prepared.tokenizer.vocab_size
        return TargetFrequencies(
            *(_target_counts(part, size) for part in (self.train_dataset, self.valid_dataset))
        )

    def _samples(self, model: Decoder) -> list[dict[str, str]]:
        """Continuations of the first tokens of validation documents."""
        # Leave half of a short context for the generated text.
        most = min(SAMPLE_START, -(-self.context // 2))
        source = self.valid_dataset.source
        first = np.minimum(source.lengths(DEFAULT_EPOCH)[:SAMPLES], most)
        starts = [
            source.read(DEFAULT_EPOCH, np.array([n]), np.array([0]), size[None])[0].tolist()
            for n, size in enumerate(first)
        ]
        decode = replace(self.settings.decode, max_len=SAMPLE_TOKENS, n_best=1)
        room = self.settings.model.max_len
        completer = Completer([model], self.prepared.tokenizer, decode, context=room)
        return [
            {"source": completion.source, "target": "", "output": completion.text}
            for completion in completer.complete(starts)
        ]

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

    def evaluation(self, use: InferenceRequest, files: DataSettings) -> Scores:
        if use.opened.engine is not None:
            raise UserError(
                f"{Option('engine', use.opened.engine.name)} cannot compute perplexity. Evaluate "
                f"the original run with {Option('engine', 'torch')}."
            )
        return evaluate_language(use.opened, use.settings, files, use.progress)


def causal_lm_dataset(
    texts: Columns, tokenizer: Tokenizer, settings: RunSettings, context: int
) -> CausalLMDataset:
    return CausalLMDataset(stream_of(texts, tokenizer, settings), tokenizer, context)


def stream_of(texts: Columns, tokenizer: Tokenizer, settings: RunSettings) -> DocumentTokens:
    """Plain documents, or documents with fields where the settings name some."""
    if not settings.data.fields:
        return DocumentStream(texts["text"], tokenizer.bos, tokenizer.eos)
    stores = {name: texts.tokens(name) for name in settings.data.fields}
    drop, seed = settings.complete.drop_fields, settings.train.seed
    return FieldStream.of(stores, tokenizer, drop, seed)


def _n_tokens(texts: Columns) -> int:
    stores = list(texts.parts.values()) or [texts["text"]]
    return sum(int(store.lengths.sum()) for store in stores)


def context_of(run: Resolved) -> int:
    """Context length that a language model was trained with, in tokens."""
    return min(run.complete.context or run.model.max_len, run.model.max_len)


def check_language(opened: LoadedRun) -> None:
    """Raise an error if one of the runs is not a language model."""
    for folder, run in zip(opened.folders, opened.runs, strict=True):
        if not isinstance(run.model, DecoderSettings) or "words" not in run.model.heads:
            kind = run.task if run.model is None else f"{family_of(run.model)} model"
            raise FolderError(
                f"{folder} does not contain a model that generates text (found: {kind}). Train "
                "one: headway train complete FILES --out RUN"
            )


# Scores


def likelihood(asked: EvalPass, items: CausalLMDataset) -> tuple[float, int]:
    """Negative log-likelihood of all documents, or of the first `asked.most` windows, and the
    number of tokens."""
    rows, total = np.arange(len(items.cut))[: asked.max_examples], 0.0
    for _, batch in asked.batches(items, rows):
        total += float(word_loss(NEXT.read(asked.model, *batch.streams), batch.targets, PLAIN).nll)
    return total, items.n_targets(rows)


def language_scores(total: float, count: int, n_bytes: float) -> dict[str, float]:
    """Loss per token, perplexity and bits per byte from a total in nats."""
    loss = total / max(1, count)
    return {
        "loss": loss,
        "ppl": math.exp(min(loss, 50.0)),
        "bits_per_byte": total / math.log(2) / max(1, n_bytes),
    }


@dataclass(frozen=True)
class NGramBaseline:
    """N-gram baseline counted on the training documents."""

    table: KneserNey
    counted: CountedTokens

    @classmethod
    def of(cls, items: CausalLMDataset) -> NGramBaseline:
        size = items.tokenizer.vocab_size
        table = KneserNey(size, default_order(size))
        return cls(table, count_ngrams(table, items.source, MOST_TOKENS))

    @torch.no_grad()
    def likelihood(self, items: CausalLMDataset, most: int | None = None) -> tuple[float, int]:
        """Negative log-likelihood and number of tokens in the windows that models are evaluated
        on."""
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
        """Name of the baseline, with the number of tokens if only a part was counted."""
        some = f" of {self.counted.text} tokens" if self.counted.n < self.counted.of else ""
        return NGRAMS + some

    @property
    def remark(self) -> str:
        return (
            f"order {self.table.order}, modified Kneser–Ney on {self.counted.text} training tokens"
        )


def _target_counts(items: CausalLMDataset, size: int) -> NDArray[np.int64]:
    """How often each token is a target, including field marks and end tokens."""
    blocks = replace(items, context=BLOCK, epoch_seed=None)
    counts_V, most = np.zeros(size, np.int64), max(1, COUNTED // BLOCK)
    for first in range(0, min(len(blocks.cut), most), 256):
        rows = np.arange(len(blocks.cut))[first : first + 256]
        counts_V += np.bincount(blocks.tokens(rows)[1], minlength=size)
    return counts_V


@torch.no_grad()
def evaluate_language(
    opened: LoadedRun,
    settings: RunSettings,
    files: DataSettings,
    progress: Progress = SILENT,
) -> Scores:
    """Evaluate a language model on test documents: loss, perplexity and bits per byte. For
    documents with fields, also the perplexity of the body with and without the other fields."""
    check_language(opened)
    model, tokenizer, device = opened.model, opened.vocab.target, opened.device
    settings = with_files(settings, files)
    texts, _ = evaluation_set(settings, tokenizer, ())
    context = settings.complete.context or context_of(opened.settings)
    items = causal_lm_dataset(texts, tokenizer, settings, context)
    with progress.stage("reading") as stage:
        total, count = likelihood(EvalPass(model, device, on_progress=stage.update), items)
    n_bytes = texts.n_bytes
    values = language_scores(total, count, n_bytes)
    rows: list[ScoreRow] = [
        ("documents", f"{texts.n:,}", f"{count:,} tokens, {n_bytes:,} bytes"),
        ("loss", f"{values['loss']:.4f}", f"nats per token, windows of {context:,} tokens"),
        ("perplexity", f"{values['ppl']:.3f}", "per token; depends on the tokenizer"),
    ]
    if not files.fields:
        rows.append(("bits per byte", f"{values['bits_per_byte']:.4f}", ""))
    else:
        del values["bits_per_byte"]
        rows += _body(model, items, device, n_bytes, values)
    trivial, more = _test_baselines(opened, texts, items, values)
    known = {name: value for name, value in values.items() if name in METRICS}
    return Scores(known, rows=rows + more, facts=values, find_baselines=lambda: trivial)


def _test_baselines(
    opened: LoadedRun, texts: Columns, items: CausalLMDataset, values: dict[str, float]
) -> tuple[Baselines, list[ScoreRow]]:
    """Unigram and n-gram baselines from the run's training documents, and their table rows. Their
    numbers are added to `values`."""
    frequent, counted = "baseline: unigram", "baseline: n-grams"
    try:
        training = load_prepared(opened.folder).train
    except (DataError, OSError):
        gone = "the run's training data is no longer available"
        rows = [(frequent, "–", gone)]
        halves = None if opened.settings.model.is_counted else _ngrams_by_halves(items)
        if halves is None:
            return {}, [*rows, (counted, "–", gone)]
        scores = language_scores(*halves, texts.n_bytes)
        values |= {f"ngram_of_halves_{name}": value for name, value in scores.items()}
        remark = f"perplexity per token; {scores['bits_per_byte']:.4f} bits per byte; counted in "
        remark += f"the other half of this text, because {gone}"
        return {HALVES: scores}, [*rows, (counted, f"{scores['ppl']:.3f}", remark)]
    size = items.tokenizer.vocab_size
    unigram = unigram_bits_per_byte(
        token_counts(training.body.tokens, size), texts.body.tokens, texts.n_bytes
    )
    values["unigram_bits_per_byte"] = unigram
    remark = "bits per byte, from token frequencies alone"
    found, rows = {TOKENS: {"bits_per_byte": unigram}}, [(frequent, f"{unigram:.4f}", remark)]
    if opened.settings.model.is_counted:  # the model is an n-gram model itself
        return found, rows
    ngrams = NGramBaseline.of(
        causal_lm_dataset(training, items.tokenizer, opened.settings, items.context)
    )
    scores = language_scores(*ngrams.likelihood(items), texts.n_bytes)
    bits = f"; {scores['bits_per_byte']:.4f} bits per byte"
    if isinstance(items.source, FieldStream):
        del scores["bits_per_byte"]  # the bytes are those of the body alone
        bits = ""
    values |= {f"ngram_{name}": value for name, value in scores.items()}
    values["ngram_order"] = ngrams.table.order
    rows.append((counted, f"{scores['ppl']:.3f}", f"perplexity per token{bits}; {ngrams.remark}"))
    return {**found, ngrams.name: scores}, rows


def _ngrams_by_halves(items: CausalLMDataset) -> tuple[float, int] | None:
    """Negative log-likelihood of each half of the documents (or of a single document) under n-grams
    counted in the other half, and the number of tokens: a baseline without training data."""
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


def _body(
    model: nn.Module,
    items: CausalLMDataset,
    device: torch.device,
    n_bytes: int,
    values: dict[str, float],
) -> list[ScoreRow]:
    """Table rows with the perplexity of the last field, given all other fields and given none."""
    assert isinstance(items.source, FieldStream)
    names, rows = items.source.names, []
    body = names[-1]
    for name, shown in {"alone": [body], "given the other fields": names}.items():
        total, count = body_likelihood(model, items, shown, device)
        loss, bits = total / max(1, count), total / math.log(2) / max(1, n_bytes)
        key = name.split(" ")[0]
        values |= {f"{body}_{key}_loss": loss, f"{body}_{key}_bits_per_byte": bits}
        remark = f"perplexity per token; {bits:.4f} bits per byte"
        rows.append((f"{body} {name}", f"{math.exp(min(loss, 50.0)):.3f}", remark))
    return rows


@torch.no_grad()
def body_likelihood(
    model: nn.Module, items: CausalLMDataset, names: Sequence[str], device: torch.device
) -> tuple[float, int]:
    """Negative log-likelihood of the last field given the fields `names`, and its number of tokens
    including the closing mark."""
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
        # The end token of the document is not a part of the body.
        is_body_N = (place_N >= first_D[document_N]) & (place_N < last_D[document_N])
        weights_N = torch.from_numpy(is_body_N.astype(np.float32)).to(device)
        read = NEXT.read(model, *batch.streams).with_weights(weights_N)
        total += float(word_loss(read, batch.targets, PLAIN).nll)
        count += int(is_body_N.sum())
    return total, count
