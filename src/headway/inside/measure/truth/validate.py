"""Validate the maps of a run: find cases with known positions, and measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from headway.errors import UserError
from headway.inside.measure.maps import METHODS
from headway.inside.measure.truth.accuracy import FEW, MapAccuracy, measure_accuracy
from headway.inside.measure.truth.cases import (
    TEXTS,
    Case,
    alignment_cases,
    atom_cases,
    copied_word_cases,
    read_aligned_pairs,
    repeat_cases,
)
from headway.inside.measure.truth.media import (
    SpokenCase,
    measure_times,
    recording_cases,
    scene_cases,
    with_aligning,
)
from headway.models.build import build_model
from headway.models.seq2seq import Seq2Seq
from headway.progress import SILENT, Progress
from headway.tasks.loaded_run import LoadedRun


@dataclass(frozen=True)
class Cases:
    kind: str
    """Description of the ground truth."""

    cases: list[Case]
    spoken: tuple[SpokenCase, ...] = ()
    """Recordings with the times of their words, if the cases are recordings."""


def find_cases(
    run: LoadedRun, most: int, *, pairs: Path | None = None, reactions: Path | None = None,
    media: Path | None = None,
) -> Cases:  # fmt: skip
    """Find at most `most` cases; without a file they are random texts that repeat themselves."""
    if media is not None:
        return _media_cases(run, media, most)
    if reactions is not None:
        return Cases("atoms of reactions", atom_cases(run, reactions)[:most])
    if pairs is None:
        return Cases("tokens copied from random text", repeat_cases(run, min(most, TEXTS)))
    known = read_aligned_pairs(pairs)
    if any(pair.links for pair in known):
        return Cases("words with a known alignment", alignment_cases(run, known[:most]))
    copied = copied_word_cases(run, [(pair.source, pair.target) for pair in known])
    return Cases("names and numbers copied", copied[:most])


def _media_cases(run: LoadedRun, manifest: Path, most: int) -> Cases:
    if run.spec.truth != "digits":
        return Cases("things with known boxes", scene_cases(run, manifest, most))
    if not isinstance(run.model, Seq2Seq):
        raise UserError("a CTC model without a decoder has no attention per word to measure.")
    spoken = recording_cases(run, manifest, most)
    cases = [each.case for each in spoken if each.case.links]
    return Cases("words with known times", cases, tuple(spoken))


def validate(
    run: LoadedRun, found: Cases, methods: Sequence[str] = tuple(METHODS), *, few: int = FEW,
    progress: Progress = SILENT,
) -> MapAccuracy:  # fmt: skip
    """Measure every map on every case, and for recordings the errors of word times."""
    maker = with_aligning(methods, few) if found.spoken else None
    with progress.stage("measuring", len(found.cases), "texts") as stage:
        truth = measure_accuracy(
            run, found.cases, methods, task=found.kind, few=few, maker=maker, note=stage.update
        )
    if not found.spoken:
        return truth
    with progress.stage("measuring word times"):
        times = measure_times(run, found.spoken)
    return replace(truth, facts={**truth.facts, "times": times})


def with_fresh_weights(run: LoadedRun) -> LoadedRun:
    """Reinitialize the weights, to find what a map shows because of the architecture alone."""
    torch.manual_seed(1)
    return run.with_model(build_model(run.shape, device=run.device).eval())
