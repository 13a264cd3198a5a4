"""Contrastive learning of embeddings of texts, images, videos and audio.

The model learns from pairs, or from two randomly augmented views of single examples (SimCSE, Gao et
al. 2021; SimCLR, Chen et al. 2020). The other examples in a step are the negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan, to_device
from headway.data.masking import CounterRandom
from headway.data.media.open_item import UNITS
from headway.data.prepare import evaluation_media, evaluation_set, prepare
from headway.data.schema import MediaSpec
from headway.data.store import Columns, PreparedData
from headway.data.token_store import TokenStore
from headway.errors import ConfigError, Option
from headway.metrics.retrieval import Float32Array, Retrieval, bag_retrieval, chance, retrieval
from headway.nn.layout import loss_weights
from headway.progress import Progress
from headway.settings.augment import AugmentSettings
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats
from headway.settings.run import Resolved, RunSettings, check_effect, with_files
from headway.settings.task_rows import spec_of
from headway.specs.metrics import METRICS
from headway.specs.needs import OTHER, Need
from headway.specs.tasks import Spec
from headway.tasks.answers import JsonDict as Shown
from headway.tasks.data_stats import audio_stats, image_stats
from headway.tasks.dataset import (
    Batch,
    EpochSeed,
    EvalPass,
    PositionInfo,
    example_outputs,
)
from headway.tasks.evaluate import Evaluator, TrainingData
from headway.tasks.label import ClassificationDataset
from headway.tasks.media_format import front_settings
from headway.tasks.media_inputs import what_of
from headway.tasks.objective import EpochItems, MicroBatch, Objective, TaskLoss
from headway.tasks.parent_run import parent_of, tokenizer_of
from headway.tasks.preprocess.preprocessor import (
    InputDataset,
    Preprocessor,
    media_settings_of,
    preprocessor_of,
)
from headway.tasks.preprocess.text import TextPreprocessor
from headway.tasks.readout import Read, readout_of
from headway.tasks.scores import Methods, MethodScores, Scores
from headway.tasks.task import InferenceRequest, Predictor, Task
from headway.tasks.text_pairs import content_keys, fixed_pairs, interleaved, word_halves
from headway.tokens.tokenizer import Tokenizer

LONGEST = 256
"""Maximum input length in tokens that is chosen by default."""

BLOCK = 256
"""Number of validation pairs among which each example finds its partner in the validation loss:
large enough for many negatives, and independent of the size of the validation set."""

WINDOW = 7
"""Salt in the random seed of window selection. It makes the selection independent of other random
choices with the same seed and epoch."""


@dataclass(frozen=True)
class ContrastiveTargets:
    """Targets of the contrastive loss: masks of negatives, and weights."""

    negatives_BB: Tensor
    """Mask of negatives: entry (i, j) is true if the second example of pair j is a negative for the
    first example of pair i."""

    weights_B: Tensor
    """Weight of each pair: zero for the padding pairs of a batch of fixed size."""

    real_N: Tensor | None = None
    """Weight of each token if all views are in one input sequence: zero for padding in a batch of
    fixed size. None if each view is an input of its own."""


def contrastive(like_BB: Tensor, apart_BB: Tensor, weights_B: Tensor) -> Tensor:
    """Return the symmetric contrastive loss (InfoNCE): the mean of the cross-entropies of the two
    directions, summed over the pairs."""
    own_BB = torch.eye(len(like_BB), dtype=torch.bool, device=like_BB.device)
    like_BB = like_BB.masked_fill(~(apart_BB | own_BB), -torch.inf)
    target_B = torch.arange(len(like_BB), device=like_BB.device)
    loss_B = sum(
        F.cross_entropy(side_BB, target_B, reduction="none") for side_BB in (like_BB, like_BB.T)
    )
    return (loss_B * weights_B).sum() / 2


@dataclass(frozen=True)
class PairSide:
    """One column of the training pairs, with its windows as model inputs. Data without pairs has
    only one column."""

    columns: Columns
    inputs: InputDataset

    @cached_property
    def counts(self) -> IntArray:
        """Number of windows of each example."""
        return np.bincount(self.inputs.example_index)

    @cached_property
    def first(self) -> IntArray:
        return np.cumsum(self.counts) - self.counts


def sides_of(columns: Columns, cut: Callable[[Columns], InputDataset]) -> list[PairSide]:
    """Return the sides of the data: the column of examples and, if the data has pairs, the column
    of their partners."""
    [name] = [name for name in columns if name != "other"]
    stores = [columns[name], *([columns["other"]] if "other" in columns else [])]
    parts = [Columns({name: store}) for store in stores]
    return [PairSide(part, cut(part)) for part in parts]


@dataclass(frozen=True)
class PairDataset:
    """Training examples of a contrastive task: pairs, or single examples in two views."""

    sides: Sequence[PairSide]
    preprocessor: Preprocessor
    epoch_seed: EpochSeed | None = None
    single: bool = False
    """Whether each example is read only once, as in distillation, whose loss does not compare
    examples."""

    @property
    def views(self) -> tuple[PairSide, ...]:
        """Column that each view of an example is read from: the two columns of the pairs, or the
        only column twice. In distillation each column occurs once."""
        return tuple(self.sides) if self.single else (self.sides[0], self.sides[-1])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Total length of all views of each example. It is computed from the first window, because
        all windows of an example are equally long."""
        lengths = [side.inputs.lengths[side.first] for side in self.views]
        return np.stack(lengths).sum(axis=0, keepdims=True).T

    @property
    def example_index(self) -> IntArray:
        return np.arange(len(self.lengths))

    @property
    def is_text(self) -> bool:
        """Whether the views are texts. Only views of text are packed into one input sequence."""
        return isinstance(self.preprocessor, TextPreprocessor)

    def for_epoch(self, draw: EpochSeed) -> PairDataset:
        found = replace(self, epoch_seed=draw)
        found.__dict__["lengths"] = self.lengths  # the same in every epoch
        return found

    def n_targets(self, rows: IntArray) -> int:
        return len(rows)

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[ContrastiveTargets]:
        """Return a batch of pairs. In a single input, pair i consists of sequences 2i and 2i + 1;
        with two inputs, of sequence i in each."""
        read = tuple(
            side.inputs.collate(self._windows(side, rows), device, None, self._view_seed(number))
            for number, side in enumerate(self.views)
        )
        n = len(rows)
        n_pairs = n if fixed is None else fixed.n_sequences // len(read)
        apart_BB, weights_B = torch.zeros(n_pairs, n_pairs, dtype=torch.bool), torch.zeros(n_pairs)
        apart_BB[:n, :n], weights_B[:n] = True, 1.0
        for side in self.sides:
            key_B = torch.from_numpy(content_keys(side.columns, rows))
            apart_BB[:n, :n] &= key_B[:, None] != key_B
        streams = (interleaved(read, fixed),) if self.is_text else read
        real_N = None
        if len(streams) == 1:
            real_N = loss_weights([one.layout.n_rows for one in read], streams[0].layout.n_rows)
        return to_device(Batch(streams, ContrastiveTargets(apart_BB, weights_B, real_N)), device)

    def _view_seed(self, reading: int) -> EpochSeed | None:
        return None if self.epoch_seed is None else replace(self.epoch_seed, view=reading)

    def _windows(self, side: PairSide, rows: IntArray) -> IntArray:
        """Return the index of one window per example: a random one in training, otherwise the
        first."""
        if self.epoch_seed is None:
            return side.first[rows]
        drawn = CounterRandom(self.epoch_seed.seed, self.epoch_seed.epoch).uniform(WINDOW, rows)
        return side.first[rows] + (drawn * side.counts[rows]).astype(np.int64)

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        if not self.is_text:
            return None
        longest = max(int(side.inputs.lengths.max()) for side in self.sides)
        return fixed_pairs(plan, longest, len(self.views))

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        return tuple(side.inputs.describe_positions(int(side.first[row])) for side in self.views)


@torch.no_grad()
def vectors_of(
    asked: EvalPass,
    settings: Resolved,
    intake: Preprocessor,
    side: PairSide,
    *,
    changed: int | None = None,
) -> Float32Array:
    """Return the embedding of each example, averaged over its windows. `changed`: seed of a random
    augmentation; None: no augmentation."""
    readout, model, device = readout_of(settings), asked.model, asked.device

    def outputs(rows: IntArray, batch: Batch[Tensor]) -> Tensor:
        stream = side.inputs.to_model_input(batch.streams[0])
        if changed is not None:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(int(rows[0]) * 2 + changed)
                stream, _ = intake.apply_augmentation(model, stream, torch.zeros(0))
        return readout.read(model, stream).logits_RC

    items = ClassificationDataset(side.inputs)
    total = example_outputs(asked, items, outputs).astype(np.float32)
    if settings.embed.normalise and len(total):
        total /= np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)
    return total


@dataclass(frozen=True)
class RetrievalPairs:
    """Pairs on which retrieval is evaluated.

    Partners come from the data if it has pairs. Otherwise they are the two halves of each text, or
    two augmented views of each image or recording.
    """

    preprocessor: Preprocessor
    sides: tuple[PairSide, PairSide]
    augmented: bool = False
    partner: str = "the other half of its words"
    """Description of what counts as the partner of an example, for score tables."""

    @classmethod
    def of(cls, columns: Columns, intake: Preprocessor) -> RetrievalPairs:
        found = sides_of(columns, intake.input_dataset)
        if len(found) == 2:
            return cls(intake, (found[0], found[1]), partner="its partner")
        if not isinstance(intake, TextPreprocessor):
            views = found[0], found[0]
            return cls(intake, views, augmented=True, partner="another view of itself")
        one, two = (
            PairSide(half, intake.input_dataset(half))
            for half in word_halves(columns, intake.tokenizer)
        )
        return cls(intake, (one, two))

    def vectors(self, asked: EvalPass, settings: Resolved) -> tuple[Float32Array, Float32Array]:
        one, two = (
            vectors_of(
                asked, settings, self.preprocessor, side, changed=n if self.augmented else None
            )
            for n, side in enumerate(self.sides)
        )
        return one, two

    def retrieved(self, one_ND: Float32Array, two_ND: Float32Array) -> Retrieval:
        columns = self.sides[1].columns
        return retrieval(one_ND, two_ND, content_keys(columns, np.arange(len(two_ND))))

    def baseline(self, tokenizer: Tokenizer | None, n: int) -> tuple[str, Retrieval]:
        """Return the name and the scores of the retrieval baseline on `n` examples: tf-idf for
        texts, chance for media."""
        if tokenizer is None:
            return "chance", chance(n)
        texts = [side.columns["text"] for side in self.sides]
        one, two = (TokenStore(text.tokens, text.lengths[:n]) for text in texts)
        return "bag of words", bag_retrieval(one, two, tokenizer.vocab_size)


def valid_loss(a_ND: Float32Array, b_ND: Float32Array, temperature: float) -> float:
    """Return the mean contrastive loss per pair. Pairs are compared in blocks of `BLOCK`, so that
    the loss does not depend on the size of the validation set."""
    total = 0.0
    for first in range(0, len(a_ND), BLOCK):
        a, b = (torch.from_numpy(x[first : first + BLOCK]) for x in (a_ND, b_ND))
        apart_BB = torch.ones(len(a), len(a), dtype=torch.bool)
        total += float(contrastive(a @ b.T / temperature, apart_BB, torch.ones(len(a))))
    return total / max(1, len(a_ND))


def percent(found: Retrieval) -> dict[str, float]:
    return {"accuracy": 100.0 * found.accuracy, "mrr": 100.0 * found.mrr}


@dataclass
class ContrastiveObjective(Objective[ContrastiveTargets]):
    evaluator: ContrastiveEvaluator = field(init=False)
    train_dataset: PairDataset = field(init=False)
    valid_dataset: PairDataset = field(init=False)

    def __post_init__(self) -> None:
        self.metric = METRICS[self.settings.train.metric or "accuracy"]
        self.readout = readout_of(self.settings)
        self.preprocessor = preprocessor_of(self.settings, self.prepared.input_tokenizer)
        train, valid = (
            sides_of(part, self.preprocessor.input_dataset)
            for part in (self.prepared.train, self.prepared.valid)
        )
        self.train_dataset = PairDataset(train, self.preprocessor, single=reads_once(self.settings))
        self.valid_dataset = PairDataset(valid, self.preprocessor)
        self.evaluator = ContrastiveEvaluator(self.settings, self.prepared.input_tokenizer)
        self.valid_set = RetrievalPairs.of(self.prepared.valid, self.preprocessor)

    def parts(self, step: EpochItems, micro_tokens: int) -> list[MicroBatch]:
        """Return a single micro-batch per step, because the contrastive loss compares every example
        with all others of the step."""
        _, plan = self.planned(step.epoch)
        return [MicroBatch(step, len(step.rows), plan.n_targets(step.rows))]

    def augment(
        self, model: nn.Module, batch: Batch[ContrastiveTargets]
    ) -> Batch[ContrastiveTargets]:
        streams = []
        for side, stream in zip(self.train_dataset.views, batch.streams, strict=False):
            stream = side.inputs.to_model_input(stream)
            if model.training:
                stream, _ = self.preprocessor.apply_augmentation(model, stream, torch.zeros(0))
            streams.append(stream)
        return replace(batch, streams=tuple(streams))

    def read(self, model: nn.Module, given: Batch[ContrastiveTargets]) -> Read:
        """Return the embeddings of all views; the views of a pair are adjacent."""
        reads = [self.readout.read(model, stream) for stream in given.streams]
        read = reads[0]
        if len(reads) == 2:
            x_RD = torch.stack([one.x_RD for one in reads], dim=1).flatten(0, 1)
            read = replace(read, x_RD=x_RD, states_ND=None)
        n = len(self.train_dataset.views)
        weights_S = given.targets.weights_B.repeat_interleave(n) / n
        has_all = read.states_ND is not None
        return read.with_weights(weights_S, given.targets.real_N if has_all else None)

    def loss(self, read: Read, given: Batch[ContrastiveTargets]) -> TaskLoss:
        x_SD, n = read.logits_RC, len(self.train_dataset.views)
        like_BB = x_SD[0::n] @ x_SD[n - 1 :: n].T / self.settings.embed.temperature
        loss = contrastive(like_BB, given.targets.negatives_BB, given.targets.weights_B)
        return TaskLoss(loss, loss.detach())

    @property
    def n_valid(self) -> int:
        return self.prepared.valid.n

    @property
    def n_quick(self) -> int:
        return self.n_valid

    def frequencies(self) -> None:
        """Return None, because contrastive learning has no fixed targets that could be counted."""
        return None

    def show(self, part: MicroBatch) -> list[Shown]:
        found: list[Shown] = []
        names = ("text", "other")[: len(self.train_dataset.sides)]
        for row in part.rows.rows.tolist():
            texts = self.preprocessor.texts(self.prepared.train, 1, row)
            said = {"item": row} if texts is None else dict(zip(names, texts[0], strict=False))
            found.append(said)
        return found


class ContrastiveTask(Task):
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        what = self.row.media
        if what is None:
            words = tokenizer_of(settings)
            return prepare(settings, folder, progress, tokenizer=words)
        media = MediaSpec.of(what, front_settings(settings, what), target_of(settings.data))
        return prepare(settings, folder, progress, media=media)

    def describe(self, prepared: PreparedData) -> str:
        kind = "pairs" if "other" in prepared.train else unit_of(self.row)
        return f"{prepared.train.n:,} {kind}"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        """Return the dataset statistics on which default settings depend. Tokens and positions are
        counted over all views."""
        pairs = "other" in prepared.train
        if self.row.is_audio:
            found = audio_stats(settings, prepared)
            return replace(found, n_tokens=2 * found.n_tokens, pairs=pairs)
        if not self.row.is_text:
            return replace(image_stats(settings, prepared), pairs=pairs)
        sides = sides_of(
            prepared.train, TextPreprocessor(prepared.tokenizer, 1 << 40).input_dataset
        )
        needed = [side.inputs.full_lengths for side in sides]
        needed *= 1 if reads_once(settings) or pairs else 2
        longest = min(LONGEST, max(int(side.max()) for side in needed))
        return DatasetStats(
            n=prepared.train.n,
            n_tokens=sum(int(np.minimum(side, longest).sum()) for side in needed),
            longest=longest,
            vocab_size=prepared.tokenizer.vocab_size,
            pairs=pairs,
            parent=parent_of(settings),
        )

    def check(self, settings: Resolved, prepared: PreparedData) -> None:
        model, train, pairs = settings.model, settings.train, "other" in prepared.train
        if train.micro_tokens < train.batch_tokens:
            raise ConfigError(
                f"train.micro_tokens={train.micro_tokens} must be at least train.batch_tokens="
                f"{train.batch_tokens}, because the loss compares all {unit_of(self.row)} of a "
                "step with each other. Lower train.batch_tokens or raise train.micro_tokens."
            )
        is_text = self.row.is_text
        check_effect(settings, [spec_of(settings)], pairs=is_text and pairs)
        if pairs or model.dropout or reads_once(settings):
            return
        if is_text and not settings.embed.drop_words:
            raise ConfigError(
                "with model.dropout=0, the two views of a text are identical, so there is "
                "nothing to learn. Set model.dropout=0.1 or embed.drop_words=0.3, or train on "
                f"pairs ({Option('pairs')})."
            )
        if not is_text and not has_augmentation(settings.augment):
            raise ConfigError(
                "with model.dropout=0 and no augmentation, the two views are identical for all "
                f"{unit_of(self.row)}, so there is nothing to learn. Remove the augment.* settings "
                "to use their defaults, or set model.dropout=0.1."
            )

    def objective(self, settings: Resolved, prepared: PreparedData) -> ContrastiveObjective:
        return ContrastiveObjective(settings, prepared)

    def predictor(self, use: InferenceRequest) -> Predictor:
        from headway.tasks.embed_answers import predictor

        return predictor(use)

    def evaluator(self, use: InferenceRequest) -> ContrastiveEvaluator:
        return ContrastiveEvaluator(use.settings, use.opened.output_tokenizer)


PairVectors = tuple[Float32Array, Float32Array]


@dataclass(frozen=True)
class ContrastiveEvaluator(Evaluator[RetrievalPairs, PairVectors]):
    """Evaluation of embeddings by retrieval, which measures how often an example finds its
    partner."""

    settings: Resolved
    tokenizer: Tokenizer | None

    def predict(self, asked: EvalPass, examples: RetrievalPairs) -> PairVectors:
        return examples.vectors(asked, self.settings)

    def score(self, predictions: PairVectors, examples: RetrievalPairs, full: bool) -> Scores:
        one_ND, two_ND = predictions
        unit, n = unit_of(spec_of(self.settings)), len(two_ND)
        what = (
            f"a {unit.removesuffix('s')} ranks {examples.partner} first among {n:,}; "
            f"by chance {100 / max(1, n):.2f} %"
        )
        loss = valid_loss(one_ND, two_ND, self.settings.embed.temperature)
        return Scores(
            {**percent(examples.retrieved(one_ND, two_ND)), "loss": loss}, n=n, unit=unit,
            remarks={"accuracy": what, "loss": f"contrastive loss in blocks of {BLOCK}"},
        )  # fmt: skip

    def baselines(
        self, data: TrainingData, examples: RetrievalPairs, predictions: PairVectors
    ) -> Methods:
        name, found = examples.baseline(self.tokenizer, len(predictions[1]))
        remark = "" if self.tokenizer is None else "cosines of tf-idf vectors"
        return {name: MethodScores(percent(found), remark)}

    def test_set(self, files: DataSettings, progress: Progress) -> RetrievalPairs:
        asked = with_files(self.settings, files)
        if self.tokenizer is not None:
            columns, _ = evaluation_set(asked, self.tokenizer, ())
        else:
            shape = media_settings_of(self.settings)
            media = MediaSpec.of(what_of(shape), shape, target_of(files))
            columns = evaluation_media(media, asked, progress=progress).items
        return RetrievalPairs.of(columns, preprocessor_of(self.settings, self.tokenizer))


def reads_once(settings: RunSettings) -> bool:
    """Return whether each example is read only once. This is so in distillation, which compares it
    with the teacher's output instead of with other examples."""
    return bool(settings.distil.teacher) and not settings.distil.hard


def target_of(data: DataSettings) -> Need | None:
    """Return the target column of media data: the column of partners if the settings name one,
    otherwise None."""
    return OTHER if data.other_field else None


def unit_of(row: Spec) -> str:
    return "texts" if row.media is None else UNITS[row.media]


def has_augmentation(augment: AugmentSettings) -> bool:
    """Return whether these augmentation settings change the input."""
    names = ("flip", "crop", "rand", "erase", "bands", "spans", "speed", "noise", "gain_db")
    return any(getattr(augment, name) for name in names)
