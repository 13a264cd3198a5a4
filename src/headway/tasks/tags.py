"""Tagging of words, for example with named entities or parts of speech.

The tag of a word is predicted at its first sub-word token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import (
    FixedShapes,
    IntArray,
    StepPlan,
    fixed_shapes,
    layout_of,
    pad_rows,
    to_device,
)
from headway.data.prepare import prepare
from headway.data.source import sources
from headway.data.store import Columns, PreparedData
from headway.data.text_windows import WordReader
from headway.data.token_store import TokenStore
from headway.errors import DataError
from headway.metrics import classification as classes
from headway.metrics import spans as metrics
from headway.metrics.baselines import FrequentTags
from headway.metrics.interval import Interval
from headway.models.parts.ngrams import NgramScores
from headway.models.parts.output_heads import ModelInput, at_least_fp32
from headway.nn.crf import allowed_transitions, log_likelihood, viterbi
from headway.nn.layout import Layout, loss_weights
from headway.nn.loss import LabelSmoothing
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats
from headway.settings.model import EncoderSettings, ModelSettings
from headway.settings.run import Resolved, RunSettings, with_files
from headway.settings.task_rows import spec_of
from headway.specs.metrics import METRICS, has_span_tags
from headway.specs.task_settings import TagSettings
from headway.tasks.dataset import Batch, EpochSeed, EvalPass, PositionInfo
from headway.tasks.evaluate import Evaluator, TrainingData
from headway.tasks.label_kinds import (
    calibration_row,
    class_calibration,
    class_frequencies,
    logs_of,
    percent,
)
from headway.tasks.losses import label_loss
from headway.tasks.ngram_fit import fit_ngrams
from headway.tasks.objective import CLASSES, MicroBatch, Objective, TargetFrequencies, TaskLoss
from headway.tasks.parent_run import parent_of, tokenizer_of
from headway.tasks.preprocess.text import describe_tokens
from headway.tasks.readout import EachRow, Read, Scorer, as_model
from headway.tasks.scores import (
    NEURAL,
    NGRAMS,
    Methods,
    MethodScores,
    Range,
    ScoreRow,
    Scores,
    Temperature,
    fit_temperature,
    member_remark,
)
from headway.tasks.task import InferenceRequest, Note, Predictor, Task
from headway.tokens.tokenizer import EncodedWords, Tokenizer
from headway.tokens.word_cache import FlatIds

SAMPLES = 8
"""Number of sentences with their predicted tags in the report of an evaluation: a short list."""

BASELINE = "most frequent tag"
REMARKS = {
    "f1": "of whole spans", "precision": "of the predicted spans", "recall": "of the true spans",
    "accuracy": "of single tags", "loss": "nats per word",
}  # fmt: skip
EACH_WORD = EachRow("tags")

WordKey = tuple[int, ...]
"""Key that identifies a word: the ids of its sub-word tokens."""


@dataclass(frozen=True)
class TagTargets:
    """Targets of a tagging batch: the true tags of its words, with the layout and the weights."""

    labels_W: Tensor
    words: Layout
    """Layout that assigns the words to their windows."""

    weights_B: Tensor
    """Weight of each window; zero for padding in a batch of fixed size."""


@dataclass(frozen=True)
class TaggingDataset:
    """Sentences to tag, split into windows if they are too long. Every word is predicted in exactly
    one window."""

    reader: WordReader
    tokenizer: Tokenizer
    labels: IntArray | None = None
    """Tag indices of all words of all sentences; None if they are unknown."""

    @cached_property
    def lengths(self) -> IntArray:
        return self.reader.lengths[:, None]

    @property
    def example_index(self) -> IntArray:
        return self.reader.windows[0]

    def for_epoch(self, draw: EpochSeed) -> TaggingDataset:
        return self

    def n_targets(self, rows: IntArray) -> int:
        return max(1, int(self.reader.n_words[rows].sum()))

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[TagTargets]:
        """Return a batch of windows, with outputs at the first sub-word token of each word."""
        read, first_pieces, counts = self.reader.read(rows)
        layout, words = layout_of(read.lengths, fixed), layout_of(counts, fixed)
        labels = np.zeros(0, np.int64)
        if self.labels is not None:
            labels = self.labels[self.reader.words.gather(rows)[0]]
        shaped = self.reader.shapes is not None
        segments_N = pad_rows(read.segments, layout.n_rows) if shaped else None
        batch = Batch(
            (ModelInput(pad_rows(read.tokens, layout.n_rows), layout, segments_N),),
            TagTargets(
                pad_rows(labels, words.n_rows),
                words,
                (torch.arange(words.n_sequences) < len(rows)).float(),
            ),
            loss_weights(counts.tolist(), words.n_rows),
            pad_rows(first_pieces, words.n_rows),
        )
        return to_device(batch, device)

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes:
        tokens = plan.part_limit(micro_tokens)
        return fixed_shapes(plan, tokens, tokens, int(self.reader.lengths.max()))

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        read, _, _ = self.reader.read(np.array([row]))
        return (describe_tokens(read.tokens.tolist(), self.tokenizer),)


def encoded(
    sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, tag: TagSettings
) -> EncodedWords:
    """Return tokenized sentences, given as lists of words. The prefix `tag.prefix_strip` is removed
    from words first."""
    prefix = tag.prefix_strip
    if prefix:
        sentences = [[_without(word, prefix) for word in words] for words in sentences]
    return tokenizer.encode_words(sentences)


def _without(word: str, prefix: str) -> str:
    return word[len(prefix) :] if len(word) > len(prefix) and word.startswith(prefix) else word


def columns_of(words: EncodedWords) -> Columns:
    return Columns({
        name: TokenStore(flat.ids, flat.lengths)
        for name, flat in words._asdict().items()
        if flat is not None
    })  # fmt: skip


def words_of_store(texts: Columns, tokenizer: Tokenizer, model: ModelSettings) -> TaggingDataset:
    """Return the dataset of prepared sentences. Data from early versions has no word shapes."""
    shapes = texts["shapes"] if "shapes" in texts and _reads_shapes(model) else None
    reader = WordReader(
        text=texts["text"], pieces=texts["pieces"], bos=tokenizer.bos, eos=tokenizer.eos,
        max_len=model.max_len, ends=tokenizer.text_ends, shapes=shapes,
    )  # fmt: skip
    return TaggingDataset(reader, tokenizer, labels_of(texts) if "tags" in texts else None)


def piece_shapes(words: EncodedWords, model: ModelSettings) -> list[list[int]] | None:
    """Return the word shape for each token of each sentence; None if the model does not read
    shapes."""
    if words.shapes is None or not _reads_shapes(model):
        return None
    return FlatIds(np.repeat(words.shapes.ids, words.pieces.ids), words.text.lengths).lists()


def _reads_shapes(model: ModelSettings) -> bool:
    return isinstance(model, EncoderSettings) and model.reads_shapes


def read_words(model: nn.Module, batch: Batch[TagTargets]) -> Read:
    """Run the model on a batch and return one output per word."""
    return EACH_WORD.read(model, *batch.streams, rows_R=batch.rows_R)


@dataclass
class TaggingObjective(Objective[TagTargets]):
    evaluator: TaggingEvaluator = field(init=False)
    train_dataset: TaggingDataset = field(init=False)
    valid_dataset: TaggingDataset = field(init=False)

    def __post_init__(self) -> None:
        train, model = self.settings.train, self.settings.model
        self.names = tuple(self.prepared.labels)
        self.metric = METRICS[train.metric or tag_metrics(has_span_tags(self.names))[0]]
        tokenizer, prepared = self.prepared.tokenizer, self.prepared
        self.train_dataset = words_of_store(prepared.train, tokenizer, model)
        self.valid_dataset = words_of_store(prepared.valid, tokenizer, model)
        self.evaluator = TaggingEvaluator(self.settings, tokenizer)
        known_W = labels_of(prepared.valid)
        ends = np.cumsum(lengths_of(prepared.valid))[:-1]
        named = [[self.names[tag] for tag in part.tolist()] for part in np.split(known_W, ends)]
        self.valid_set = TaggedSet(prepared.valid, self.valid_dataset, named, known_W)
        self.smoothing = LabelSmoothing.of(
            train.label_smoothing, len(self.names), train.label_smoothing_kind
        )

    def begin(self, model: nn.Module, note: Note) -> None:
        def labels(batch: Batch[TagTargets]) -> Tensor:
            return batch.targets.labels_W

        fit_ngrams(model, self.train_dataset, labels, self.prepared.tokenizer, note)

    def read(self, model: nn.Module, given: Batch[TagTargets]) -> Read:
        assert given.weights_R is not None
        return read_words(model, given).with_weights(given.weights_R)

    def loss(self, read: Read, given: Batch[TagTargets]) -> TaskLoss:
        learned_PC, truth = transitions(read.scores), given.targets
        if learned_PC is None:
            return label_loss(read, truth.labels_W, self.smoothing)
        logs_B = log_likelihood(read.logits_RC, truth.labels_W, learned_PC, truth.words)
        loss = -(logs_B * truth.weights_B).sum()
        return TaskLoss(loss, loss.detach())

    def frequencies(self) -> TargetFrequencies:
        labels = (labels_of(self.prepared.train), labels_of(self.prepared.valid))
        return tag_frequencies(*labels, len(self.names))

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        shown, items, decode = [], self.train_dataset, self.prepared.tokenizer.decode
        for row in part.rows.rows:
            batch = items.batch(np.array([row]), torch.device("cpu"))
            tags = [self.names[tag] for tag in batch.targets.labels_W.tolist()]
            shown.append({"text": decode(batch.streams[0].values.tolist()), "tags": tags})
        return shown


class TaggingTask(Task):
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        return prepare(settings, folder, progress, tokenizer=tokenizer_of(settings))

    def describe(self, prepared: PreparedData) -> str:
        n_words = len(labels_of(prepared.train))
        return f"{prepared.train.n:,} sentences of {n_words:,} words"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        lengths = prepared.train["text"].lengths
        return DatasetStats(
            n=prepared.train.n,
            n_tokens=int(lengths.sum()) + 2 * prepared.train.n,
            longest=int(_needed(prepared).max()),
            vocab_size=prepared.tokenizer.vocab_size,
            labels=tuple(prepared.labels),
            shapes="shapes" in prepared.train,
            parent=parent_of(settings),
        )

    def check(self, settings: Resolved, prepared: PreparedData) -> None:
        needed, limit = _needed(prepared), settings.model.max_len
        if settings.data.on_long != "split" and int(needed.max()) > limit:
            raise DataError(
                f"{int((needed > limit).sum()):,} sentences are longer than the {limit:,} tokens "
                f"that the model reads at once; the longest has {int(needed.max()):,} tokens. Read "
                "long sentences in windows (data.on_long=split) or increase model.max_len."
            )

    def objective(self, settings: Resolved, prepared: PreparedData) -> TaggingObjective:
        return TaggingObjective(settings, prepared)

    def predictor(self, use: InferenceRequest) -> Predictor:
        from headway.tasks.tag_answers import TaggingPredictor

        return TaggingPredictor.of(use)

    def evaluator(self, use: InferenceRequest) -> TaggingEvaluator:
        return TaggingEvaluator(use.settings, use.opened.vocab.target)


def _needed(prepared: PreparedData) -> NDArray[np.int64]:
    """Return the number of tokens that each whole sentence needs, including special tokens."""
    parts = prepared.train, prepared.valid
    return np.concatenate([np.asarray(part["text"].lengths) + 2 for part in parts])


def tag_metrics(spans: bool) -> tuple[str, ...]:
    """Return the metric names of a tagging task. Only tags that mark spans (BIO, BIOES) have span
    metrics."""
    return spec_of("tag").scores if spans else ("accuracy", "loss")


def labels_of(texts: Columns) -> NDArray[np.int64]:
    """Return the tag indices of all words of all sentences."""
    return np.asarray(texts["tags"].tokens, dtype=np.int64)


def lengths_of(texts: Columns) -> list[int]:
    """Return the number of words of each sentence."""
    return texts["pieces"].lengths.tolist()


# Logits of words, and decoding to tags


def tag_frequencies(train_W: IntArray, valid_W: IntArray, n: int) -> TargetFrequencies:
    return class_frequencies(train_W, valid_W, n, np.ones(n))


def learned_transitions(model: nn.Module) -> Tensor | None:
    return transitions(as_model(model).head_named("tags"))


def transitions(head: Scorer) -> Tensor | None:
    """Return the learned CRF transition scores between tags; None for a head without CRF."""
    found = getattr(head, "transitions", None)
    return found if isinstance(found, Tensor) else None


@dataclass(frozen=True)
class WordScores:
    """Tag logits of words, kept separately for a model's neural layers and its n-gram table."""

    neural_WC: Tensor
    ngrams_WC: Tensor | None = None
    ngram_weight: float = 0.0
    """Weight of the n-grams in the prediction, from 0 to 1."""

    @property
    def scores_WC(self) -> Tensor:
        if self.ngrams_WC is None:
            return self.neural_WC
        return NgramScores(self.ngrams_WC, torch.tensor(self.ngram_weight)).blend(self.neural_WC)

    @property
    def single_members(self) -> dict[str, WordScores]:
        """Copies with only the neural layers and with only the n-grams, by name; empty for a model
        without n-grams."""
        if self.ngrams_WC is None:
            return {}
        return {NEURAL: replace(self, ngram_weight=0.0), NGRAMS: replace(self, ngram_weight=1.0)}

    def with_ngram_weight(self, share: float | None) -> WordScores:
        """Return a copy with this weight of the n-grams; None: unchanged."""
        return self if share is None else replace(self, ngram_weight=share)

    def with_temperature(self, temperature: float) -> WordScores:
        return self._each(lambda x_WC: x_WC / temperature)

    def _each(self, change: Callable[[Tensor], Tensor]) -> WordScores:
        ngrams_WC = None if self.ngrams_WC is None else change(self.ngrams_WC)
        return replace(self, neural_WC=change(self.neural_WC), ngrams_WC=ngrams_WC)

    def first(self, n: int) -> WordScores:
        """Return the logits of the first `n` words, in fp64."""
        return self._each(lambda x_WC: x_WC[:n].double())


@torch.no_grad()
def word_scores(asked: EvalPass, items: TaggingDataset) -> WordScores:
    """Return the logits of all words of the first `asked.max_examples` sentences (None: all), in
    order. Each word's logits come from the window that predicts it."""
    n_words, share = int(items.reader.pieces.offsets[1:][: asked.max_examples][-1]), 0.0
    neural_WC: Tensor | None = None
    ngrams_WC: Tensor | None = None
    for rows, batch in asked.examples(items):
        read = read_words(asked.model, batch)
        words_R = torch.from_numpy(items.reader.words.gather(rows)[0])
        scores_RC = read.neural.logits_RC
        if neural_WC is None:
            neural_WC = torch.zeros(n_words, scores_RC.shape[1])
        neural_WC[words_R] = scores_RC.cpu()
        if read.ngrams is not None:
            if ngrams_WC is None:
                ngrams_WC = torch.zeros_like(neural_WC)
            ngrams_WC[words_R] = at_least_fp32(read.ngrams.scores_RC).cpu()
            share = float(read.ngrams.ngram_weight)
    assert neural_WC is not None
    return WordScores(neural_WC, ngrams_WC, share)


@torch.no_grad()
def best_tags(
    scores_WC: Tensor,
    lengths: Sequence[int],
    labels: tuple[str, ...],
    learned_PC: Tensor | None = None,
) -> list[list[int]]:
    """Return the most likely tags of each sentence that the tagging scheme allows (Viterbi)."""
    rules_PC = allowed_transitions(labels)
    if learned_PC is not None:
        rules_PC = rules_PC + learned_PC.detach().float().cpu()
    found: list[list[int]] = [[]] * len(lengths)
    ends = np.cumsum(lengths)
    order = np.argsort(lengths, kind="stable")
    # Group sentences by length, because each batch is padded to its longest sentence.
    for first in range(0, len(order), 256):
        some = order[first : first + 256]
        rows = [scores_WC[ends[i] - lengths[i] : ends[i]] for i in some]
        layout = Layout.of([lengths[i] for i in some])
        if layout.longest:
            best = layout.split(viterbi(torch.cat(rows), rules_PC, layout))
            for i, tags in zip(some, best, strict=True):
                found[i] = tags.tolist()
    return found


@torch.no_grad()
def total_nll(
    scores_WC: Tensor, labels_W: Tensor, lengths: Sequence[int], learned_PC: Tensor | None
) -> float:
    """Return the negative log-likelihood of all tags: of single tags, or of whole sentences with a
    CRF."""
    if learned_PC is None:
        return float(F.cross_entropy(scores_WC, labels_W, reduction="sum"))
    total, start = 0.0, 0
    for first in range(0, len(lengths), 256):
        layout = Layout.of(list(lengths[first : first + 256]))
        some = slice(start, start + layout.n_rows)
        start = some.stop
        if layout.n_rows:
            logs_B = log_likelihood(scores_WC[some], labels_W[some], learned_PC.cpu(), layout)
            total -= float(logs_B.sum())
    return total


def as_bio(tags: Sequence[str]) -> list[str]:
    """Return BIOES tags converted to BIO; other tags are unchanged."""
    if not has_span_tags(tuple(tags)):
        return list(tags)
    return [{"E": "I", "S": "B"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def tag_values(
    truths: Sequence[list[str]], guesses: Sequence[list[str]], spans: bool
) -> dict[str, float]:
    """Return metrics in percent: accuracy and, if the tags mark spans, F1, precision and recall."""
    accuracy = 100.0 * metrics.tag_accuracy(truths, guesses)
    if not spans:
        return {"accuracy": accuracy}
    whole, _ = metrics.span_scores(truths, guesses)
    return {
        "f1": 100.0 * whole.f1,
        "precision": 100.0 * whole.precision,
        "recall": 100.0 * whole.recall,
        "accuracy": accuracy,
    }


def main_score(spans: bool) -> str:
    return "f1" if spans else "accuracy"


def main_interval(
    truths: Sequence[list[str]], guesses: Sequence[list[str]], spans: bool
) -> Interval:
    of = metrics.span_f1_interval if spans else metrics.tag_accuracy_interval
    return of(truths, guesses)


def word_temperature(said: WordScores, labels_W: Tensor) -> Temperature:
    """Return the calibration temperature and the weight of the n-grams that give the lowest loss on
    single tags. To save time, they are fitted to the first `ENOUGH` probabilities."""
    n_labels = said.neural_WC.shape[1]
    n = max(1, classes.ENOUGH // n_labels)
    true_WC = F.one_hot(labels_W[:n], n_labels).double().numpy()
    some = said.first(n)

    def at(value: float, share: float | None) -> NDArray[np.float64]:
        return (some.with_ngram_weight(share).scores_WC / value).softmax(-1).numpy()

    found = fit_temperature(
        lambda share: classes.safe_temperature(
            lambda t: at(t, share), true_WC, classes.soft_cross_entropy
        ),
        lambda value, share: classes.soft_cross_entropy(at(value, share), true_WC),
        len(some.neural_WC),
        some.ngrams_WC is not None,
    )
    assert found is not None
    return found


def word_calibration(
    logs_WC: Tensor, labels: Sequence[str], truths: Sequence[list[str]]
) -> dict[str, Any] | None:
    """Return the calibration of the tag probabilities, in BIO; None if all true tags are unknown to
    the run."""
    names = as_bio(labels)
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    shares_WT = torch.zeros(len(logs_WC), len(places), dtype=logs_WC.dtype)
    shares_WT.index_add_(1, torch.tensor([places[name] for name in names]), logs_WC.exp())
    truth_W = np.array([places.get(tag, -1) for tags in truths for tag in tags])
    known_W = truth_W >= 0
    if not known_W.any():
        return None
    return class_calibration(logs_of(shares_WT.numpy()[known_W]), truth_W[known_W])


def tag_figures(
    truths: Sequence[list[str]], guesses: Sequence[list[str]], spans: bool
) -> dict[str, Any]:
    """Return the scores of each span type. If the tags do not mark spans, return the scores of each
    tag."""
    if not spans:
        # Turn each word into a span of its own, so that span scores are scores of single tags.
        truths, guesses = (
            [[f"S-{tag}" for tag in tags] for tags in side] for side in (truths, guesses)
        )
    _, types = metrics.span_scores(truths, guesses)
    return {"classes": [{"label": name, **vars(score)} for name, score in types.items()]}


# Evaluation


@dataclass(frozen=True)
class TaggedSet:
    """Sentences with their true tags, on which a tagger is evaluated."""

    columns: Columns
    dataset: TaggingDataset
    tags: Sequence[Sequence[str]]
    """True tags of each sentence, in the tagging scheme of the data."""

    labels_W: IntArray | None
    """Tag indices of all words; None if the run does not know all of the tags."""

    @cached_property
    def truths(self) -> list[list[str]]:
        """True tags of each sentence, in BIO if they mark spans."""
        return [as_bio(tags) for tags in self.tags]

    @property
    def lengths(self) -> list[int]:
        return lengths_of(self.columns)


@dataclass(frozen=True)
class TagPredictions:
    """Tag logits of each ensemble member for the words of some sentences."""

    names: tuple[str, ...]
    models: Sequence[WordScores]
    lengths: Sequence[int]
    """Number of words of each sentence."""

    transitions_PC: Tensor | None = None
    """Learned CRF transition scores between tags; None without a CRF. With a CRF, only whole tag
    sequences have probabilities, not single tags."""

    temperature: Temperature | None = None

    @cached_property
    def scores_WC(self) -> Tensor:
        """Logits of all words. For an ensemble, they are the mean log-probabilities of the models,
        to which CRF transitions can be added."""
        if len(self.models) == 1:
            return self.models[0].scores_WC
        return torch.stack([one.scores_WC.log_softmax(-1) for one in self.models]).mean(0)

    @cached_property
    def logs_WC(self) -> Tensor | None:
        """Log-probability of each tag at each word; None with a CRF, where only whole tag sequences
        have probabilities."""
        if self.transitions_PC is not None:
            return None
        return self.scores_WC.double().log_softmax(-1)

    @cached_property
    def tags(self) -> list[list[str]]:
        """Most likely valid tags of each sentence, in BIO."""
        return self._decoded(self.scores_WC)

    @property
    def members(self) -> dict[str, list[list[str]]]:
        """Tags predicted by each member (neural layers, n-grams) of a single model; empty without
        n-grams."""
        if len(self.models) > 1:
            return {}
        found = self.models[0].single_members
        return {who: self._decoded(one.scores_WC) for who, one in found.items()}

    def _decoded(self, scores_WC: Tensor) -> list[list[str]]:
        found = best_tags(scores_WC, self.lengths, self.names, self.transitions_PC)
        return [as_bio([self.names[tag] for tag in tags]) for tags in found]


@dataclass(frozen=True)
class TaggingEvaluator(Evaluator[TaggedSet, TagPredictions]):
    """Evaluation of a tagger, or of an ensemble of taggers."""

    settings: Resolved
    tokenizer: Tokenizer

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.settings.labels)

    @property
    def spans(self) -> bool:
        """Whether the tags of the run mark spans."""
        return has_span_tags(self.names)

    def predict(self, asked: EvalPass, examples: TaggedSet) -> TagPredictions:
        return self.predict_dataset(asked, examples.dataset, examples.lengths)

    def predict_dataset(
        self, asked: EvalPass, dataset: TaggingDataset, lengths: Sequence[int]
    ) -> TagPredictions:
        found = [word_scores(replace(asked, model=model), dataset) for model in asked.models]
        learned = [learned_transitions(model) for model in asked.models]
        known = [part.cpu() for part in learned if part is not None]
        learned_PC = sum(known[1:], known[0]) / len(learned) if known else None
        return TagPredictions(self.names, found, lengths[: asked.max_examples], learned_PC)

    def fitted(
        self, predictions: TagPredictions, examples: TaggedSet, calibrate: bool
    ) -> TagPredictions:
        """Return the predictions with a fitted calibration temperature. With a CRF they are
        unchanged."""
        if not calibrate or predictions.transitions_PC is not None:
            return predictions
        assert examples.labels_W is not None
        [said] = predictions.models
        labels_W = torch.from_numpy(examples.labels_W[: len(said.neural_WC)])
        found = word_temperature(said, labels_W)
        said = said.with_ngram_weight(found.ngram_weight).with_temperature(found.value)
        return replace(predictions, models=[said], temperature=found)

    def score(self, predictions: TagPredictions, examples: TaggedSet, full: bool) -> Scores:
        said, truths = predictions, examples.truths[: len(predictions.lengths)]
        figures = tag_figures(truths, said.tags, self.spans)
        details: list[ScoreRow] = [
            (
                f"  {one['label']}",
                f"{100 * one['f1']:.2f} %",
                f"F1; {one['support']:,} in the files",
            )
            for one in figures["classes"]
        ]
        facts: dict[str, Any] = {
            "words": sum(map(len, truths)), "classes": figures["classes"]
        }  # fmt: skip
        if full and said.logs_WC is not None:
            trusted = word_calibration(said.logs_WC, self.names, truths)
            if trusted is not None:
                figures["calibration"] = trusted
                details.append(calibration_row(trusted, "words"))
                facts |= {name: trusted[name] for name in ("ece", "temperature")}
        unknown = sorted({tag for tags in truths for tag in tags} - set(as_bio(self.names)))
        if unknown:
            n = sum(tag in unknown for tags in truths for tag in tags)
            why = f"not in training, so never predicted: {', '.join(unknown)}"
            details.append(("unknown tags", f"{n:,}", why))
            facts["unknown_tags"] = {"words": n, "tags": unknown}
        share = said.models[0].ngram_weight
        return Scores(
            {**tag_values(truths, said.tags, self.spans), **self._loss(said, examples)},
            n=len(truths), unit="sentences", remarks=REMARKS,
            find_intervals=lambda: self._intervals(truths, said.tags),
            details=details, facts=facts, figures=figures,
            samples=self._samples(truths, said.tags, examples.columns),
            find_answers=lambda: (said.tags, truths),
            find_members=lambda: {
                who: self._method(truths, tags, member_remark(who, share))
                for who, tags in said.members.items()
            },
            temperature=said.temperature,
        )  # fmt: skip

    def _loss(self, said: TagPredictions, examples: TaggedSet) -> dict[str, float]:
        if examples.labels_W is None:
            return {}
        labels_W = torch.from_numpy(examples.labels_W[: len(said.scores_WC)])
        nll = total_nll(said.scores_WC, labels_W, said.lengths, said.transitions_PC)
        return {"loss": nll / max(1, len(labels_W))}

    def _intervals(
        self, truths: Sequence[list[str]], tags: Sequence[list[str]]
    ) -> dict[str, Range]:
        return {main_score(self.spans): percent(main_interval(truths, tags, self.spans))}

    def _method(
        self, truths: Sequence[list[str]], tags: Sequence[list[str]], remark: str
    ) -> MethodScores:
        return MethodScores(
            tag_values(truths, tags, self.spans), remark, lambda: self._intervals(truths, tags)
        )

    def baselines(
        self, data: TrainingData, examples: TaggedSet, predictions: TagPredictions
    ) -> Methods:
        if data is None:
            return {BASELINE: MethodScores({}, "not available: the run has no training data")}
        found, names = baseline(data), data.labels
        guesses = [
            as_bio([names[tag] for tag in found.predict(keys)])
            for keys in word_keys(examples.columns)
        ]
        of_words = self._method(examples.truths, guesses, "the most frequent tag of each word")
        if examples.labels_W is None:
            return {BASELINE: of_words}
        counts = tag_frequencies(labels_of(data.train), examples.labels_W, len(names))
        of_tags = MethodScores({"loss": counts.scores["loss"]}, "loss from tag frequencies alone")
        return {BASELINE: of_words, CLASSES: of_tags}

    def _samples(
        self, truths: Sequence[list[str]], guesses: Sequence[list[str]], texts: Columns
    ) -> list[dict[str, str]]:
        shown = []
        for words, *tagged in zip(word_keys(texts), truths, guesses, strict=False):
            text = [self.tokenizer.decode(list(pieces)).strip() for pieces in words]
            both = [" ".join(f"{w}/{t}" if t != "O" else w for w, t in zip(text, tags, strict=True))
                    for tags in tagged]  # fmt: skip
            shown.append({"source": " ".join(text), "target": both[0], "output": both[1]})
            if len(shown) == SAMPLES:
                break
        return shown

    def columns(self, sentences: Sequence[Sequence[str]], before: int = 0) -> Columns:
        """Return tokenized sentences. Raise DataError for a sentence that is too long, if the
        settings do not allow windows. `before`: number of sentences answered earlier, to number
        them in messages."""
        words = encoded(sentences, self.tokenizer, self.settings.tag)
        columns = columns_of(words)
        needed = words.text.lengths + self.dataset(columns).reader.n_special
        limit = self.settings.model.max_len
        too_long = needed > limit
        if self.settings.data.on_long == "error" and too_long.any():
            place = int(np.argmax(too_long))
            raise DataError(
                f"sentence {before + place + 1:,} has {needed[place]:,} tokens, but the model "
                f"reads at most {limit:,}. Shorten the sentence, or train again with "
                "data.on_long=split instead of data.on_long=error to read long sentences in "
                "windows."
            )
        return columns

    def dataset(self, columns: Columns) -> TaggingDataset:
        return words_of_store(columns, self.tokenizer, self.settings.model)

    def test_set(self, files: DataSettings, progress: Progress) -> TaggedSet:
        sentences, tags = tagged_sentences(self.settings, files)
        columns = self.columns(sentences)
        numbers = {name: i for i, name in enumerate(self.names)}
        found = [numbers.get(tag, -1) for one in tags for tag in one]
        labels_W = None if -1 in found else np.array(found, np.int64)
        return TaggedSet(columns, self.dataset(columns), tags, labels_W)


def tagged_sentences(
    settings: RunSettings, data: DataSettings
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the words and the tags of the sentences in the files. Raise DataError if there are no
    sentences."""
    source, _ = sources(with_files(settings, replace(data, valid_text=())))
    found = [(list(one.strings("words")), list(one.strings("tags"))) for one in source]
    if not found:
        raise DataError(f"the test set is empty: no sentences in {', '.join(data.text)}.")
    return [words for words, _ in found], [tags for _, tags in found]


def baseline(prepared: PreparedData) -> FrequentTags:
    """Return the baseline that predicts the most frequent tag of each word in the training data.
    Words are compared by their sub-word tokens."""
    tags = prepared.train["tags"]
    keys = word_keys(prepared.train)
    return FrequentTags.fit((words, tags[i].tolist()) for i, words in enumerate(keys))


def word_keys(texts: Columns) -> Iterator[list[WordKey]]:
    """Yield the keys of the words of each sentence: tuples of sub-word token ids."""
    for i in range(texts.n):
        yield as_keys(texts["text"][i].tolist(), texts["pieces"][i].tolist())


def as_keys(ids: Sequence[int], pieces: Sequence[int]) -> list[WordKey]:
    ends = np.cumsum(pieces).tolist()
    return [tuple(ids[end - size : end]) for end, size in zip(ends, pieces, strict=True)]
