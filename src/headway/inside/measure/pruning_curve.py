"""Pruning curves (the task's metric after more and more attention heads are removed), and a
comparison of two runs."""

from __future__ import annotations

import contextlib
import io
import json
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.errors import FolderError, Option
from headway.inside.capture.corpus import Corpus, keeps_data
from headway.inside.capture.examples import examples
from headway.inside.capture.forward import ReadingBatch, last_hidden_states, run_reading
from headway.inside.capture.streams import Reading
from headway.inside.measure.ablation import unit
from headway.inside.measure.heads import HeadAnalysis
from headway.inside.measure.pruning import HeadId, removable_groups, save_pruned, select_heads
from headway.models.summary import count_parameters
from headway.settings.data import DataSettings
from headway.settings.folder import WEIGHTS
from headway.settings.model import ModelSettings
from headway.specs.tasks import Spec
from headway.storage import new_folder, read_json, replace_text, seal_json, work_folder
from headway.tasks.loaded_run import LoadedRun, open_plain, open_run
from headway.tasks.media_inputs import LoadedInput
from headway.tasks.scores import Scores
from headway.tasks.task import InferenceRequest, find_task

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Default fractions of heads to remove. Six points show the shape of the curve, and each needs an
evaluation."""

CURVE = "heads.json"
"""Name of the file in a run folder with the measurements of attention heads and the pruning
curve."""

ORDERS = ("importance", "random", "most important first")


@dataclass(frozen=True)
class PruningPoint:
    order: str
    """Order in which heads were removed, one of `ORDERS`."""

    kind: str
    """Kind of attention from which heads were removed, or `all`."""

    share: float
    """Requested fraction of heads to remove. Fewer may be removed, because each attention layer
    keeps at least one head."""

    gone: int
    score: float
    """Score of the task's metric, in the unit of the metric."""

    loss: float | None = None


@dataclass(frozen=True)
class PruningCurve:
    points: tuple[PruningPoint, ...]
    metric: str
    """Display name of the metric."""

    higher_is_better: bool
    n_heads: int
    data: str = ""
    """Description of the test data, for display."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> PruningCurve:
        return cls(**{**facts, "points": tuple(PruningPoint(**point) for point in facts["points"])})


def order_units(
    settings: ModelSettings, worth: Mapping[HeadId, float], kind: str = "all"
) -> list[tuple[HeadId, ...]]:
    """Return groups of heads sorted by their summed importance, least important first.

    Layers that share weights count with the sum of their importances.
    """
    total: dict[tuple[HeadId, ...], float] = {}
    for heads in removable_groups(settings):
        if kind in ("all", heads[0][0]):
            total[heads] = sum(_worth(settings, worth, head) for head in heads)
    return sorted(total, key=lambda heads: (total[heads], heads))


def least_important(
    settings: ModelSettings, found: HeadAnalysis, n_heads: int, kind: str | None = None
) -> frozenset[HeadId]:
    """Return the `n_heads` least important heads, of one kind of attention or (None) of all
    kinds."""
    return select_heads(order_units(settings, found.importance(), kind or "all"), n_heads, settings)


def _worth(settings: ModelSettings, worth: Mapping[HeadId, float], head: HeadId) -> float:
    if getattr(settings, "share_layers", False):
        return sum(value for (_, _, place), value in worth.items() if place == head[2])
    return worth[head]


def curve(
    run: LoadedRun,
    files: DataSettings,
    found: HeadAnalysis,
    *,
    shares: Sequence[float] = SHARES,
    kinds: Sequence[str] | None = None,
    orders: Sequence[str] = ("importance", "random"),
    note: Callable[[str], None] = lambda line: None,
) -> PruningCurve:
    """Return the task's metric of physically pruned runs, on test data that is read as in `headway
    evaluate`.

    `kinds`: kinds of attention to prune, one at a time. By default, a translator is measured for
    each of its three kinds and for `all`. Orders other than importance are measured only for `all`.
    """
    layers = run.shape.attention_layers
    chosen = ["all", *(layers if len(layers) > 1 else ())] if kinds is None else list(kinds)
    worth = found.importance()
    metric = run.spec.headline
    shown, higher = metric.axis, not metric.lower
    known: dict[frozenset[HeadId], tuple[float, float | None]] = {}
    points = []
    for order in orders:
        for kind in chosen if order == "importance" else [k for k in chosen if k == "all"]:
            queue = _queue(run.shape, worth, kind, order)
            n_heads = sum(map(len, queue))
            before: frozenset[HeadId] | None = None
            for share in shares:
                gone = select_heads(queue, round(share * n_heads), run.shape)
                if gone == before:  # no more can go
                    continue
                before = gone
                if gone not in known:
                    known[gone] = measure_without(run, files, gone)
                score, loss = known[gone]
                points.append(PruningPoint(order, kind, share, len(gone), score, loss))
                note(
                    f"{order}, {kind}: {len(gone)} of {n_heads} heads removed: {shown} {score:.2f}"
                )
    data = ", ".join([*files.source, *files.pairs, *files.text, *files.media])
    return PruningCurve(tuple(points), shown, higher, run.shape.n_kept_heads, data)


def _queue(
    settings: ModelSettings, worth: Mapping[HeadId, float], kind: str, order: str
) -> list[tuple[HeadId, ...]]:
    queue = order_units(settings, worth, kind)
    if order == "random":
        random.Random(0).shuffle(queue)
    return queue[::-1] if order == ORDERS[2] else queue


def measure_without(
    run: LoadedRun, files: DataSettings, gone: Collection[HeadId]
) -> tuple[float, float | None]:
    """Return the task's metric of the run without these heads, and its loss, or None if the loss is
    not measured."""
    with work_folder() as folder:
        save_pruned(run, gone, folder, compact=False)
        found = evaluate_quietly(folder, files)
    return main_score(run.spec, found), found.get("loss")


def evaluate_quietly(folder: Path, files: DataSettings, **decode: Any) -> Scores:
    """Evaluate a run like `headway evaluate`, but without printing.

    `decode`: decoding settings that replace those of the run.
    """
    opened = open_run(folder, device="cpu")
    settings = replace(opened.settings, decode=replace(opened.settings.decode, **decode))
    with contextlib.redirect_stderr(io.StringIO()):
        return find_task(settings).evaluation(InferenceRequest(opened, settings), files)


def main_score(spec: Spec, found: Scores) -> float:
    """Return the value of the task's main metric."""
    return found[spec.headline.name]


def save_head_analysis(folder: Path, found: HeadAnalysis, measured: PruningCurve | None) -> None:
    """Write the measurements to the run folder, where `headway look` finds them."""
    facts = {"heads": found.to_dict(), "curve": None if measured is None else measured.to_dict()}
    replace_text(folder / CURVE, seal_json(json.dumps(facts, ensure_ascii=False, indent=1)))


def load_head_analysis(folder: Path) -> tuple[HeadAnalysis, PruningCurve | None] | None:
    path = folder / CURVE
    if not path.is_file():
        return None
    try:
        facts = read_json(path)
        curve = facts["curve"]
        return HeadAnalysis.from_dict(
            facts["heads"]
        ), None if curve is None else PruningCurve.from_dict(curve)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderError(
            f"cannot read {path} ({error}). Delete the file, or write it again with `headway "
            "prune --curve`."
        ) from error


ROUNDS = 5
"""Number of timing rounds, in which the two runs alternate so that other load on the machine
affects both."""

TIMED = 32
"""Number of texts in a timing round."""

PROMPT, WRITTEN = 8, 32
"""Number of prompt tokens, and of generated tokens, when a language model is timed."""


@dataclass(frozen=True)
class ComparisonRow:
    """One measurement in a comparison of two runs."""

    name: str
    before: float
    after: float
    note: str = ""
    digits: int = 0


def find_examples(
    run: LoadedRun, given: Sequence[str] | None, files: DataSettings | None, *, needed: bool
) -> tuple[list[Reading], str]:
    """Return examples for measuring heads, and a description of their origin.

    They come from the given files, otherwise from the run's own data, otherwise from a test set.
    The test set is the last choice, because the score is measured on it as well.
    """
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
    """Write the run without these heads to a new folder, and compare it with the original run."""
    with new_folder(out) as folder:
        save_pruned(run, gone, folder)
    return compare(run, open_plain(out), readings, files)


def compare(
    before: LoadedRun, after: LoadedRun, readings: Sequence[Reading], files: DataSettings | None
) -> list[ComparisonRow]:
    """Compare two runs in size, loss, speed and the task's metric.

    `readings`: examples for loss and speed. `files`: test data for the metric.
    """
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
    """Return the mean over texts of the mean loss of each text's outputs."""
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
    """Return the speed of each job in tokens per second, measured in alternating rounds.

    A job is a function that returns its number of tokens.
    """
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
    """Return the input of a reading in the form that predictors accept."""
    if reading.media is not None:
        return LoadedInput(reading.media.name, reading.media.item)
    return " ".join(reading.text.split())
