"""Compare a run before and after pruning: size, loss, score and speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from headway.errors import FolderError, Option
from headway.inside.capture.corpus import Corpus, keeps_data
from headway.inside.capture.examples import examples
from headway.inside.capture.forward import ReadingBatch, last_hidden_states, run_reading
from headway.inside.capture.streams import Reading
from headway.inside.measure.ablation import unit
from headway.inside.measure.pruning import HeadId, save_pruned
from headway.inside.measure.pruning_curve import evaluate_quietly, main_score
from headway.models.summary import count_parameters
from headway.settings.data import DataSettings
from headway.settings.folder import WEIGHTS
from headway.storage import new_folder
from headway.tasks.loaded_run import LoadedRun, open_plain, open_run
from headway.tasks.media_inputs import LoadedInput
from headway.tasks.task import InferenceRequest, find_task

ROUNDS = 5
"""Alternating timing rounds, so that other load on the machine affects both runs."""

TIMED = 32
"""Texts per round."""

PROMPT, WRITTEN = 8, 32
"""Tokens of the prompt and of the continuation for timing a language model."""


@dataclass(frozen=True)
class ComparisonRow:
    """One measurement of both runs."""

    name: str
    before: float
    after: float
    note: str = ""
    digits: int = 0


def find_examples(
    run: LoadedRun, given: Sequence[str] | None, files: DataSettings | None, *, needed: bool
) -> tuple[list[Reading], str]:
    """Find examples to measure heads on, and describe their origin: given files, else the run's own
    data, else a test set. The test set comes last because the score is also measured on it."""
    if given:
        where = ", ".join(given)
        if run.spec.reads_documents:
            texts = replace(run.settings.data, text=tuple(given), valid_text=())
            corpus = Corpus.of_test_set(texts, run)
        else:
            corpus = Corpus.of(given, run)
    elif keeps_data(run):
        corpus, where = Corpus.own(run), "the run's validation data"
    elif files is not None:
        corpus = Corpus.of_test_set(files, run)
        where = "the test set, which the score is also measured on"
    elif needed:
        raise FolderError(
            f"{run.folder.name} contains no data to measure the importance of heads. Give "
            f"FILES{run.spec.file_options}, or examples with "
            f"{Option('importance_from', takes='FILE')}."
        )
    else:
        return [], ""
    return examples(run, corpus), where


def prune_run(
    run: LoadedRun, gone: Collection[HeadId], out: Path, readings: Sequence[Reading],
    files: DataSettings | None,
) -> list[ComparisonRow]:  # fmt: skip
    """Write the run without these heads to a new folder, and compare both."""
    with new_folder(out) as folder:
        save_pruned(run, gone, folder)
    return compare(run, open_plain(out), readings, files)


def compare(
    before: LoadedRun, after: LoadedRun, readings: Sequence[Reading], files: DataSettings | None
) -> list[ComparisonRow]:
    """Compare two runs; `readings` are for loss and speed, `files` are test data for the task's
    metric."""
    lines = [
        ComparisonRow("parameters", count_parameters(before.model), count_parameters(after.model)),
        ComparisonRow(
            "heads", before.shape.n_kept_heads, after.shape.n_kept_heads, "in all layers"
        ),
        ComparisonRow("bytes", _size(before), _size(after), WEIGHTS),
    ]
    if readings and not readings[0].direction:
        note = f"{unit(before)} per output, {len(readings):,} {readings[0].unit}"
        lines.append(
            ComparisonRow("loss", mean_loss(before, readings), mean_loss(after, readings), note, 4)
        )
    if files is not None:
        spec = before.spec
        both = (evaluate_quietly(run.folder, files) for run in (before, after))
        first, second = (main_score(spec, found) for found in both)
        lines.append(ComparisonRow(spec.headline.axis, first, second, "on the test set", 2))
    return lines + (_speeds(before, after, readings) if readings else [])


@torch.no_grad()
def mean_loss(run: LoadedRun, readings: Sequence[Reading]) -> float:
    """Mean over texts of the mean loss of their outputs."""
    losses = [-float(run_reading(run, reading).log_probs_R.mean()) for reading in readings]
    return sum(losses) / len(losses)


def _size(run: LoadedRun) -> int:
    return (run.folder / WEIGHTS).stat().st_size


def _speeds(
    before: LoadedRun, after: LoadedRun, readings: Sequence[Reading]
) -> list[ComparisonRow]:
    found = []
    few = readings[:TIMED]
    rows = "tokens" if few[0].media is None else "positions"
    times = f"median of {ROUNDS} alternating rounds, {len(few)} {readings[0].unit}"
    if before.spec.writes:
        what = "new" if before.spec.continues else "target"
        one, other = _in_turns(_predicting(before, few), _predicting(after, few))
        found.append(ComparisonRow("prediction", one, other, f"{what} tokens per second, {times}"))
    one, other = _in_turns(_reading(before, few), _reading(after, few))
    found.append(ComparisonRow("forward", one, other, f"{rows} per second, {times}"))
    return found


def _in_turns(*jobs: Callable[[], float]) -> list[float]:
    """Tokens per second of each job; a job returns its number of tokens."""
    for job in jobs:
        job()  # the first time is slower
    speeds: list[list[float]] = [[] for _ in jobs]
    for _ in range(ROUNDS):
        for job, mine in zip(jobs, speeds, strict=True):
            begun = time.perf_counter()
            tokens = job()
            mine.append(tokens / max(time.perf_counter() - begun, 1e-9))
    return [statistics.median(mine) for mine in speeds]


def _reading(run: LoadedRun, readings: Sequence[Reading]) -> Callable[[], float]:
    batch = ReadingBatch.of(run, readings)
    n_tokens = float(sum(reading.n_tokens for reading in readings))

    @torch.no_grad()
    def job() -> float:
        last_hidden_states(run.model, batch)
        return n_tokens

    return job


def _predicting(run: LoadedRun, readings: Sequence[Reading]) -> Callable[[], float]:
    settings, tokenizer = run.settings, run.vocab.target
    given = [_question(reading) for reading in readings]
    if run.spec.continues:
        decode = replace(settings.decode, max_len=WRITTEN, min_len=WRITTEN, sample=False, beam=1)
        settings = replace(settings, decode=decode)
        given = [tokenizer.decode(tokenizer.encode(str(text))[:PROMPT]) for text in given]
    opened = open_run(run.folder, device="cpu", settings=settings)
    predictor = find_task(settings).predictor(InferenceRequest(opened, settings))

    def job() -> float:
        answers = list(predictor.answers(given))
        if run.spec.continues:
            return float(WRITTEN * len(answers))
        written = (getattr(one, "tokens", None) or tokenizer.encode(one.text) for one in answers)
        return float(sum(len(tokens) + 1 for tokens in written))

    return job


def _question(reading: Reading) -> str | LoadedInput:
    """Input of a reading in the form that predictors take."""
    if reading.media is not None:
        return LoadedInput(reading.media.name, reading.media.item)
    return " ".join(reading.text.split())
