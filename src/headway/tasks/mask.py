"""Masked prediction: words of texts, as in BERT, or masked parts of images, videos and audio.

The loss and the output head are computed only at masked positions: the head is the most expensive
layer of a small text model. Pretraining on media helps runs with few labels that start from the
model (`--from`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headway.data.batches import StepPlan
from headway.data.media.open_item import UNITS
from headway.data.prepare import evaluation_media, evaluation_set, prepare
from headway.data.schema import MediaSpec
from headway.data.store import Columns, PreparedData
from headway.errors import ConfigError, UserError
from headway.metrics.language import perplexity
from headway.nn.devices import CPU
from headway.nn.loss import LabelSmoothing
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats
from headway.settings.model import EncoderSettings, ImageSettings, family_of
from headway.settings.run import Resolved, RunSettings, with_files
from headway.specs.metrics import METRICS
from headway.tasks.data_stats import audio_stats, image_stats
from headway.tasks.dataset import Batch, EvalPass, batches_of
from headway.tasks.evaluate import Evaluator, TrainingData
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.masked_text import ENDS, MaskedTextDataset
from headway.tasks.media_format import front_settings
from headway.tasks.media_inputs import what_of
from headway.tasks.objective import (
    TOKENS,
    MicroBatch,
    Objective,
    TargetFrequencies,
    TaskLoss,
    text_frequencies,
)
from headway.tasks.parent_run import parent_of, tokenizer_of
from headway.tasks.preprocess.preprocessor import (
    MaskedDataset,
    MaskTargets,
    media_settings_of,
    preprocessor_of,
)
from headway.tasks.readout import EachRow, Read
from headway.tasks.scores import Methods, MethodScores, Scores
from headway.tasks.task import InferenceRequest, Predictor, Task
from headway.tokens.tokenizer import MASK, Tokenizer

CHUNK = 512
"""Number of masked positions whose logits are computed at once, to limit memory."""

SAMPLES = 5
"""Number of windows with filled gaps in the report of an evaluation: a few, because each is a whole
paragraph."""

MEAN = "mean of masked parts"

MaskedOutputs = Iterable[tuple[Read, Tensor]]
"""Model outputs at masked positions with their targets, batch by batch."""


@dataclass(frozen=True)
class MaskedPredictions:
    """Scores of the predictions at masked positions. The predictions are not kept, because the
    logits of a whole dataset would not fit into memory."""

    values: dict[str, float]
    find_baselines: Callable[[], Methods]
    samples: Sequence[dict[str, str]] = ()


class MaskedHead(Protocol):
    """Interface of the training objectives at masked positions: prediction of tokens, or
    reconstruction of pixels or mel frames."""

    name: ClassVar[str]

    def loss(self, read: Read, aims: Tensor) -> TaskLoss: ...

    def predictions(self, answered: MaskedOutputs) -> MaskedPredictions: ...

    def samples(self, model: nn.Module, device: torch.device) -> list[dict[str, str]]: ...

    def remarks(self, mask: float) -> dict[str, str]:
        """Return explanations of the metrics, which tables show as remarks. `mask`: masked fraction
        of each input."""
        ...


@dataclass(frozen=True)
class MaskedTokenHead:
    """Objective of text models: prediction of the masked tokens."""

    dataset: MaskedTextDataset
    """Validation or test set, from which samples and the baseline are computed."""

    smoothing: LabelSmoothing = PLAIN
    name: ClassVar[str] = "words"

    def loss(self, read: Read, aims: Tensor) -> TaskLoss:
        return word_loss(read, aims, self.smoothing)

    @torch.no_grad()
    def predictions(self, answered: MaskedOutputs) -> MaskedPredictions:
        """Return loss, perplexity and accuracy (%) of the predicted tokens."""
        nll, right, count = 0.0, 0, 0
        for read, words_R in answered:
            logs_R, best_R = token_predictions(read, words_R)
            nll -= float(logs_R.sum())
            right += int((best_R == words_R).sum())
            count += len(words_R)
        values = word_values(nll / max(1, count), right / max(1, count))
        remark = "the most frequent token, and token frequencies"
        return MaskedPredictions(
            values, lambda: {TOKENS: MethodScores(self.baseline_values(), remark)}
        )

    def baseline_values(self) -> dict[str, float]:
        """Return the scores of a baseline that predicts the token frequencies of this text at every
        position."""
        items = self.dataset
        counts_V = np.bincount(items.store.tokens, minlength=items.tokenizer.vocab_size)
        logs_V = np.log(np.maximum(counts_V, 1) / max(1, counts_V.sum()))
        found = batches_of(items, np.arange(len(items.lengths)), CPU)
        words_R = np.concatenate(
            [np.zeros(0, np.int64), *(b.targets.targets.numpy() for _, b in found)]
        )
        if not len(words_R):
            return word_values(0.0, 0.0)
        right = float((words_R == counts_V.argmax()).mean())
        return word_values(float(-logs_V[words_R].mean()), right)

    def samples(self, model: nn.Module, device: torch.device) -> list[dict[str, str]]:
        """Return the first windows as text with gaps, with the masked and the predicted tokens."""
        shown, tokenizer = [], self.dataset.tokenizer
        for row in range(min(SAMPLES, len(self.dataset.lengths))):
            batch = self.dataset.batch(np.array([row]), device)
            words_R, tokens = batch.targets.targets, batch.streams[0].values[1:-1].tolist()
            _, best_R = token_predictions(read_masked(self.name, model, batch), words_R)
            said = (", ".join(tokenizer.decode([word]).strip() for word in side.tolist())
                    for side in (words_R, best_R))  # fmt: skip
            text = with_gaps(tokens, tokenizer)
            shown.append(dict(zip(("source", "target", "output"), (text, *said), strict=True)))
        return shown

    def remarks(self, mask: float) -> dict[str, str]:
        return {
            "accuracy": "of the masked tokens (15 % of all, the same in every evaluation)",
            "ppl": "of the masked tokens", "loss": "nats per masked token",
        }  # fmt: skip


@dataclass(frozen=True)
class MaskedMediaHead:
    """Objective of media models: reconstruction of the pixels of masked patches, or of the mel
    frames of masked positions."""

    name: ClassVar[str] = "rebuild"

    def loss(self, read: Read, aims: Tensor) -> TaskLoss:
        errors_R = self.errors(read, aims)
        total = (errors_R if read.weights_R is None else errors_R * read.weights_R).sum()
        return TaskLoss(total, total.detach())

    def errors(self, read: Read, aims: Tensor) -> Tensor:
        """Return the mean squared error at each masked position."""
        return (read.logits_RC - aims).square().mean(-1)

    @torch.no_grad()
    def predictions(self, answered: MaskedOutputs) -> MaskedPredictions:
        """Return the mean squared error at masked positions, and the variance explained (%): the
        reduction of that error compared with predicting the mean of all masked positions."""
        error, count, sums_2E = 0.0, 0, torch.zeros(())
        for read, aims_RE in answered:
            errors_R, wide_RE = self.errors(read, aims_RE), aims_RE.double()
            error += float(errors_R.double().sum())
            count += len(errors_R)
            sums_2E = sums_2E + torch.stack([wide_RE.sum(0), wide_RE.square().sum(0)]).cpu()
        mean_E, square_E = sums_2E / count
        baseline, loss = float((square_E - mean_E.square()).mean()), error / count
        explained = 100.0 * (1.0 - loss / baseline) if baseline > 0 else 0.0
        values = {"loss": loss, "variance_explained": explained}
        of_mean = {"loss": baseline, "variance_explained": 0.0}
        return MaskedPredictions(values, lambda: {MEAN: MethodScores(of_mean)})

    def samples(self, model: nn.Module, device: torch.device) -> list[dict[str, str]]:
        return []

    def remarks(self, mask: float) -> dict[str, str]:
        return {"loss": f"mean squared error, {100 * mask:g} % of each input masked"}


def word_values(loss: float, right: float) -> dict[str, float]:
    return {"loss": loss, "ppl": perplexity(loss), "accuracy": 100.0 * right}


def token_predictions(read: Read, words_R: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of the true token at each masked position, and the most likely
    token there, computed in fp32."""
    logs, best = [read.x_RD.new_zeros(0, dtype=torch.float32)], [words_R[:0]]
    for rows_RD, some_R in zip(read.x_RD.split(CHUNK), words_R.split(CHUNK), strict=True):
        scores_RV = read.scores(rows_RD).float()
        at_word_R = scores_RV.gather(1, some_R[:, None])[:, 0]
        logs.append(at_word_R - scores_RV.logsumexp(-1))
        best.append(scores_RV.argmax(-1))
    return torch.cat(logs), torch.cat(best)


def with_gaps(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Decode tokens to a text with `[MASK]` at each mask token."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == tokenizer.mask:
            parts.append([])
        else:
            parts[-1].append(token)
    return " [MASK] ".join(tokenizer.decode(part) for part in parts).strip()


def read_masked(name: str, model: nn.Module, given: Batch[MaskTargets]) -> Read:
    """Return the model's outputs at the masked positions of a batch."""
    return EachRow(name).read(model, *given.streams, rows_R=given.rows_R)


@torch.no_grad()
def masked_outputs(
    asked: EvalPass, name: str, items: MaskedDataset
) -> Iterator[tuple[Read, Tensor]]:
    """Yield the outputs and targets at the masked positions of the first `asked.max_examples` items
    (None: all), batch by batch."""
    rows = np.arange(len(items.lengths))[: asked.max_examples]
    for _, batch in asked.batches(items, rows):
        given = items.apply_mask(asked.model, batch, training=False)
        yield read_masked(name, asked.model, given), given.targets.targets


@dataclass
class MaskedLMObjective(Objective[MaskTargets]):
    evaluator: MaskedLMEvaluator = field(init=False)
    train_dataset: MaskedDataset = field(init=False)
    valid_dataset: MaskedDataset = field(init=False)

    def __post_init__(self) -> None:
        train, words = self.settings.train, self.prepared.input_tokenizer
        self.metric = METRICS[train.metric or "loss"]
        intake = preprocessor_of(self.settings, words)
        self.train_dataset = intake.masked_dataset(self.prepared.train, self.settings.fill)
        self.valid_dataset = intake.masked_dataset(self.prepared.valid, self.settings.fill)
        self.evaluator = MaskedLMEvaluator(self.settings, words)
        self.valid_set = self.evaluator.masked_set(self.prepared.valid, self.valid_dataset)
        self.head = self.valid_set.head

    def widest(self, items: object) -> int:
        return self.train_dataset.widest

    def part_limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        return self.train_dataset.limits(plan, micro_tokens)

    def augment(self, model: nn.Module, batch: Batch[MaskTargets]) -> Batch[MaskTargets]:
        return self.train_dataset.apply_mask(model, batch, model.training)

    def read(self, model: nn.Module, given: Batch[MaskTargets]) -> Read:
        assert given.weights_R is not None
        read = read_masked(self.head.name, model, given)
        return read.with_weights(given.weights_R, given.targets.real_N)

    def loss(self, read: Read, given: Batch[MaskTargets]) -> TaskLoss:
        return self.head.loss(read, given.targets.targets)

    @property
    def n_valid(self) -> int:
        return len(self.valid_dataset.lengths)

    @property
    def n_quick(self) -> int:
        return self.valid_dataset.n_quick

    def frequencies(self) -> TargetFrequencies | None:
        """Return the token frequencies of texts; None for media, which have no tokens."""
        prepared, words = self.prepared, self.prepared.input_tokenizer
        if words is None:
            return None
        return text_frequencies(prepared.train["text"], prepared.valid["text"], words)

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        items, _ = self.planned(part.rows.epoch)
        assert isinstance(items, MaskedDataset)
        return [items.example(row) for row in part.rows.rows.tolist()]


@dataclass(frozen=True)
class MaskedSet:
    """Examples with masked positions, on which a model is evaluated."""

    columns: Columns
    dataset: MaskedDataset
    head: MaskedHead


@dataclass(frozen=True)
class MaskedLMEvaluator(Evaluator[MaskedSet, MaskedPredictions]):
    settings: Resolved
    tokenizer: Tokenizer | None

    @property
    def media(self) -> MediaSpec | None:
        """Type and format of the media to reconstruct; None for texts."""
        if self.tokenizer is not None:
            return None
        shape = media_settings_of(self.settings)
        return MediaSpec.of(what_of(shape), shape)

    def masked_set(self, columns: Columns, dataset: MaskedDataset) -> MaskedSet:
        return MaskedSet(columns, dataset, head_of(self.settings, dataset))

    def predict(self, asked: EvalPass, examples: MaskedSet) -> MaskedPredictions:
        head = examples.head
        found = head.predictions(masked_outputs(asked, head.name, examples.dataset))
        return replace(found, samples=head.samples(asked.model, asked.device))

    def score(self, predictions: MaskedPredictions, examples: MaskedSet, full: bool) -> Scores:
        facts = {}
        if self.tokenizer is not None:
            facts["tokens"] = int(examples.columns["text"].lengths.sum())
        unit = "documents" if self.media is None else UNITS[self.media.form.modality]
        return Scores(
            predictions.values, n=examples.columns.n, unit=unit, facts=facts,
            remarks=examples.head.remarks(self.settings.fill.mask), samples=predictions.samples,
        )  # fmt: skip

    def baselines(
        self, data: TrainingData, examples: MaskedSet, predictions: MaskedPredictions
    ) -> Methods:
        """Return baselines that ignore the input: token frequencies, or the mean of all masked
        parts."""
        return predictions.find_baselines()

    def test_set(self, files: DataSettings, progress: Progress) -> MaskedSet:
        asked = with_files(self.settings, files)
        if self.tokenizer is not None:
            columns, _ = evaluation_set(asked, self.tokenizer, ())
        else:
            assert self.media is not None
            columns = evaluation_media(self.media, asked, progress=progress).items
        intake = preprocessor_of(self.settings, self.tokenizer)
        return self.masked_set(columns, intake.masked_dataset(columns, self.settings.fill))


def head_of(settings: Resolved, items: MaskedDataset) -> MaskedHead:
    """Return the masked objective for the modality of a run. `items`: dataset whose masked
    positions are scored."""
    if isinstance(items, MaskedTextDataset):
        train, size = settings.train, items.tokenizer.vocab_size
        return MaskedTokenHead(
            items, LabelSmoothing.of(train.label_smoothing, size, train.label_smoothing_kind)
        )
    return MaskedMediaHead()


class MaskedLMTask(Task):
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedData:
        what = self.row.media
        if what is not None:
            media = MediaSpec.of(what, front_settings(settings, what))
            return prepare(settings, folder, progress, media=media)
        if settings.model is not None and not isinstance(settings.model, EncoderSettings):
            raise ConfigError(
                "the task fill on texts needs a model of the encoder family, not of the "
                f"{family_of(settings.model)} family. To train on a folder of images instead: "
                "headway train fill images/ --out RUN"
            )
        tokenizer = tokenizer_of(settings)
        if tokenizer is not None and tokenizer.mask is None:
            raise ConfigError(
                f"the vocabulary of {settings.parent} has no mask token, which the task fill "
                "needs. Start from a run of the task fill, or train from scratch."
            )
        return prepare(settings, folder, progress, tokenizer=tokenizer, specials=[MASK])

    def describe(self, prepared: PreparedData) -> str:
        n = prepared.train.n
        if self.row.media is not None:
            return f"{n:,} {UNITS[self.row.media]}"
        tokens = int(prepared.train["text"].lengths.sum())
        return f"{n:,} document{'s' * (n != 1)} of {tokens:,} tokens"

    def facts(self, settings: RunSettings, prepared: PreparedData) -> DatasetStats:
        if self.row.is_audio:
            return audio_stats(settings, prepared)
        if not self.row.is_text:
            return image_stats(settings, prepared)
        lengths = prepared.train["text"].lengths
        return DatasetStats(
            n=prepared.train.n,
            n_tokens=int(lengths.sum()) + ENDS * len(lengths),
            longest=int(lengths.max(initial=1)) + ENDS,
            vocab_size=prepared.tokenizer.vocab_size,
            parent=parent_of(settings),
        )

    def check(self, settings: Resolved, prepared: PreparedData) -> None:
        """Raise ConfigError for image settings that masking does not support: no patches, or
        overlapping patches, which would reveal the pixels of masked neighbours."""
        image: ImageSettings | None = getattr(settings.model, "image", None)
        if image is None:
            return
        if image.stem == "grid":
            raise ConfigError(
                "model.image.stem=grid has no patches to mask. Set model.image.stem=patches or "
                "model.image.stem=conv."
            )
        if image.step < image.patch:
            raise ConfigError(
                f"model.image.stride={image.stride} makes patches overlap, so a masked patch "
                "is visible in its neighbours. Remove model.image.stride from the settings."
            )

    def objective(self, settings: Resolved, prepared: PreparedData) -> MaskedLMObjective:
        return MaskedLMObjective(settings, prepared)

    def predictor(self, use: InferenceRequest) -> Predictor:
        if self.row.media is not None:
            folder = use.opened.folder
            raise UserError(
                f"the run {folder} was trained only to reconstruct masked "
                f"{UNITS[self.row.media]} and cannot make predictions. Fine-tune it first: "
                f"headway train classify FILES --from {folder}"
            )
        from headway.tasks.fill_answers import MaskedLMPredictor

        return MaskedLMPredictor.of(use)

    def evaluator(self, use: InferenceRequest) -> MaskedLMEvaluator:
        words = use.opened.vocab.target if self.row.is_text else None
        return MaskedLMEvaluator(use.settings, words)
