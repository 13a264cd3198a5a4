"""Speaker identification by classification, and speaker verification by the cosine similarity of
embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.data.sniff import is_table_file
from headway.data.source import media_examples
from headway.data.store import PreparedData
from headway.errors import DataError, Option, UserError
from headway.metrics.speech import equal_error
from headway.progress import Progress, no_progress
from headway.settings.data import DataSettings
from headway.settings.effects import CallFacts, check_options
from headway.settings.run import Resolved
from headway.specs.needs import LABEL
from headway.tasks.answers import Answer, SpeakerAnswer
from headway.tasks.dataset import EvalPass
from headway.tasks.embed_answers import EmbeddingFilePredictor
from headway.tasks.evaluate import TrainingData
from headway.tasks.history import read_history
from headway.tasks.label import (
    ClassificationDataset,
    ClassifyEvaluator,
    ClassifyObjective,
    ClassifyPredictor,
    ClassifyTask,
    LabelledSet,
    LabelPredictions,
)
from headway.tasks.label_data import labelled_columns
from headway.tasks.media_answers import note_silence
from headway.tasks.media_inputs import LoadedInput, load_media
from headway.tasks.preprocess.preprocessor import InputLine, media_settings_of
from headway.tasks.readout import OneVector
from headway.tasks.scores import Methods, ScoreRow, Scores
from headway.tasks.task import InferenceRequest, Predictor

Float32Array = NDArray[np.float32]

MOST_VERIFIED = 2000
"""Maximum number of validation recordings that are compared pairwise during training: 2,000
recordings have about `MOST_PAIRS` pairs."""

MOST_PAIRS = 2_000_000
"""Maximum number of pairs in a verification; a random sample is used if there are more. All pairs
are in memory at once and take a few tens of bytes each."""


class IdentifyTask(ClassifyTask):
    """Task of speaker identification: audio classification whose embeddings also verify
    speakers."""

    def objective(self, settings: Resolved, prepared: PreparedData) -> IdentifyObjective:
        return IdentifyObjective(settings, prepared)

    def predictor(self, use: InferenceRequest) -> Predictor:
        """Return a classifier. With `--against` or `--to`, return a predictor that compares speaker
        embeddings."""
        if not use.options.get("against") and not use.options.get("to"):
            return ClassifyPredictor(use)
        check_options(CallFacts(row=self.row, options=use.options))
        return SpeakerPredictor(use)

    def evaluator(self, use: InferenceRequest) -> IdentifyEvaluator:
        return IdentifyEvaluator.of(use.runs, None)


class IdentifyObjective(ClassifyObjective):
    def make_evaluator(self) -> IdentifyEvaluator:
        return IdentifyEvaluator.of((self.settings,), None)


@dataclass(frozen=True)
class SpeakerPredictions(LabelPredictions):
    """Predicted speakers, and the embeddings of the recordings."""

    vectors_ND: Float32Array | None = None
    """Embedding of each recording that is verified, normalized to length 1; None in a quick
    evaluation."""


@dataclass(frozen=True)
class IdentifyEvaluator(ClassifyEvaluator):
    """Evaluation of speaker identification and verification.

    Recordings of speakers in the training data are classified. Verification uses the recordings of
    unknown speakers, or those of known speakers if there are no others.
    """

    def predict(self, asked: EvalPass, examples: LabelledSet) -> SpeakerPredictions:
        said = super().predict(asked, examples)
        known_N = examples.truth_N < len(self.settings.labels)
        vectors_ND = None
        if asked.full:
            most = asked.max_examples or len(known_N)
            if asked.run is None:  # training should not wait for millions of pairs
                most = min(MOST_VERIFIED, most)
            quietly = replace(asked, max_examples=most, on_progress=no_progress)
            vectors_ND = item_vectors(quietly, examples.datasets[0])
        return SpeakerPredictions(
            said.label_type, said.models, scored_N=None if known_N.all() else known_N,
            vectors_ND=vectors_ND,
        )  # fmt: skip

    def score(self, predictions: LabelPredictions, examples: LabelledSet, full: bool) -> Scores:
        known, vectors_ND = self.known(examples), getattr(predictions, "vectors_ND", None)
        found = Scores({})
        if len(known.truth_N):
            found = super().score(predictions, known, full)
        if vectors_ND is None:
            return found
        unseen = len(known.truth_N) < len(examples.truth_N)
        labels_N = examples.truth_N[: len(vectors_ND)]
        judged_N = (labels_N >= len(self.settings.labels)) | (not unseen)
        result = verification(vectors_ND[judged_N], labels_N[judged_N])
        if result is None and not len(known.truth_N):
            raise DataError(
                f"the test set ({len(labels_N):,} recordings) cannot be used for verification. It "
                "must contain at least two recordings of the same speaker, and at least two "
                "speakers."
            )
        if result is None:
            return found
        return found.updated(
            details=_verification_rows(result, unseen),
            facts={"verification": {**result.facts, "unseen": unseen}},
            figures={"verification": result.facts},
        )

    def known(self, examples: LabelledSet) -> LabelledSet:
        """Return the examples whose speakers are in the training data."""
        known_N = examples.truth_N < len(self.settings.labels)
        return replace(examples, truth_N=examples.truth_N[known_N])

    def baselines(
        self, data: TrainingData, examples: LabelledSet, predictions: LabelPredictions
    ) -> Methods:
        known = self.known(examples)
        return super().baselines(data, known, predictions) if len(known.truth_N) else {}

    def test_set(self, files: DataSettings, progress: Progress) -> LabelledSet:
        names = (*self.settings.labels, *_unknown_speakers(self.settings, files))
        columns, truth_N, _, places = labelled_columns(self.settings, files, names, None, progress)
        return LabelledSet(columns, truth_N, self.datasets(columns), places=places)


@torch.no_grad()
def item_vectors(asked: EvalPass, items: ClassificationDataset) -> Float32Array:
    """Return the embedding of each example, normalized to length 1."""
    unit, found = OneVector(unit=True), dict[int, Float32Array]()
    for rows, batch in asked.examples(items):
        read = unit.read(asked.model, items.inputs.to_model_input(batch.streams[0]))
        found |= dict(zip(rows.tolist(), read.averaged_logits().cpu().numpy(), strict=True))
    return np.stack([found[row] for row in sorted(found)])


@dataclass(frozen=True)
class Verification:
    """Result of speaker verification on pairs of recordings."""

    eer: float
    """Equal error rate, from 0 to 1: the error rate at the threshold where false acceptances are as
    frequent as false rejections."""

    threshold: float
    """Minimum cosine similarity that counts as the same speaker, at the equal error rate."""

    same: int
    """Number of pairs of recordings with the same speaker."""

    other: int
    """Number of pairs of recordings with different speakers."""

    speakers: int

    @property
    def facts(self) -> dict[str, Any]:
        return asdict(self)


def verification(
    vectors_ND: NDArray[np.floating[Any]], labels_N: NDArray[np.int64], seed: int = 1
) -> Verification | None:
    """Return the result of verification on all pairs of recordings, or on a sample of `MOST_PAIRS`.
    Return None unless some pairs have the same speaker and some have different speakers."""
    first, second = np.triu_indices(len(labels_N), 1)
    if len(first) > MOST_PAIRS:
        chosen = np.random.default_rng(seed).choice(len(first), MOST_PAIRS, replace=False)
        first, second = first[chosen], second[chosen]
    same_P = labels_N[first] == labels_N[second]
    if same_P.all() or not same_P.any():
        return None
    cosines_P = (vectors_ND @ vectors_ND.T)[first, second]
    eer, threshold = equal_error(cosines_P, same_P)
    n_same = int(same_P.sum())
    speakers = len(np.unique(labels_N))
    return Verification(float(eer), float(threshold), n_same, len(same_P) - n_same, speakers)


class SpeakerPredictor(EmbeddingFilePredictor):
    """Predictor that verifies the speaker of each recording, or identifies the speaker among
    enrolled ones."""

    enrolled: dict[str, Float32Array]

    def __init__(self, use: InferenceRequest) -> None:
        if len(use.opened.folders) > 1:
            raise UserError(
                "speaker vectors of different runs cannot be compared, but "
                f"{len(use.opened.folders)} runs were given. Give only one run."
            )
        super().__init__(use)
        against, to, top = (use.options.get(name) for name in ("against", "to", "top"))
        self.against, self.top = against, top or 1
        self.is_list = against is not None and is_table_file(Path(against))
        if top and not self.is_list:
            raise UserError(
                f"{Option('top', top)} needs a list of speakers: "
                f"{Option('against', takes='FILE.tsv')}."
            )
        if to:
            self.path = Path(to if str(to).endswith(".npy") else f"{to}.npy")

    def answers(self, lines: Iterable[InputLine], live: bool = False) -> Iterator[Answer]:
        self.enrolled = self._enrolled()
        yield from super().answers(lines, live)

    def vectors(self, values: Sequence[object]) -> Float32Array:
        """Return the embedding of each recording, normalized to length 1."""
        if not values:
            return np.zeros((0, 0), np.float32)
        opened = self.use.opened
        found = ClassificationDataset(
            self.preprocessor.input_dataset(self.preprocessor.columns(values))
        )
        asked = EvalPass(opened.model, opened.device, on_progress=self.use.between)
        return item_vectors(asked, found)

    def _enrolled(self) -> dict[str, Float32Array]:
        """Return the embeddings of the enrolled speakers, by name.

        For a list, a speaker's embedding is the normalized mean over the recordings of the speaker.
        A single file is a speaker with one recording.
        """
        if self.against is None:
            return {}
        label_wanted = LABEL if self.is_list else None
        folder, data = self.use.opened.folder, self.settings.data
        shape = media_settings_of(self.settings)
        sums: dict[str, Float32Array] = {}
        for one in list(load_media([self.against], folder, shape, data, target=label_wanted)):
            if one.values is None:
                raise DataError(f"{Option('against', self.against)}: {one.error}")
            name = one.label or one.name if self.is_list else self.against
            sums[name] = sums.get(name, np.float32(0)) + self.vectors([one.values])[0]
        return {name: total / np.linalg.norm(total) for name, total in sums.items()}

    def answer_for(self, one: LoadedInput, x_D: Float32Array) -> Iterator[Answer]:
        yield from super().answer_for(one, x_D)
        if self.enrolled:
            yield note_silence(self._speaker(one, x_D), one)

    def _speaker(self, one: LoadedInput, vector_D: Float32Array) -> SpeakerAnswer:
        order = sorted(
            ((float(vector_D @ other_D), name) for name, other_D in self.enrolled.items()),
            reverse=True,
        )
        near = tuple((name, score) for score, name in order[: self.top])
        limit = None if self.is_list else threshold_of(self.use.opened.folder)
        name, cosine = near[0]
        if self.is_list:
            text = name
        elif limit is None:
            text = f"{cosine:.4f}"
        else:
            text = "same" if cosine >= limit else "different"
        return SpeakerAnswer(
            text=text, place=one.name, vector=vector_D, cosine=cosine, near=near,
            against=None if self.is_list else self.against, threshold=limit,
        )  # fmt: skip

    def summary(self) -> str:
        return self.count_text() + (
            f"; vectors written to {self.use.options['to']}" if self.path else ""
        )


def threshold_of(folder: Path) -> float | None:
    """Return the decision threshold of the run: the minimum cosine similarity that counts as the
    same speaker. It is the equal-error threshold of the last evaluation, or None if none was
    logged."""
    for entry in reversed(read_history(folder).end):
        figures = entry.get("figures")
        found = figures.get("verification") if isinstance(figures, dict) else None
        if isinstance(found, dict) and isinstance(found.get("threshold"), float):
            return float(found["threshold"])
    return None


def _unknown_speakers(settings: Resolved, files: DataSettings) -> list[str]:
    """Return the labels of the test set that were not in the training data."""
    found = media_examples(files.media, files, "audio", LABEL)
    return sorted({name for one in found for name in one.labels} - set(settings.labels))


def _verification_rows(found: Verification, unseen: bool) -> list[ScoreRow]:
    who = "not in the training data" if unseen else "of the training data"
    return [
        (
            "equal error rate",
            f"{100 * found.eer:.2f} %",
            f"on {found.same + found.other:,} pairs from {found.speakers} speakers {who}",
        ),
        (
            "threshold",
            f"{found.threshold:.4f}",
            f"minimum cosine for the same speaker; {found.same:,} pairs have the same speaker",
        ),
    ]
