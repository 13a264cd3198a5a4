"""Pruning curve: remove heads step by step, and measure the task's metric each time."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headway.errors import FolderError
from headway.inside.measure.heads import HeadAnalysis
from headway.inside.measure.pruning import HeadId, removable_groups, save_pruned, select_heads
from headway.settings.data import DataSettings
from headway.settings.model import ModelSettings
from headway.specs.tasks import Spec
from headway.storage import read_json, replace_text, seal_json, work_folder
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.scores import Scores
from headway.tasks.task import InferenceRequest, find_task

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
CURVE = "heads.json"
"""File in a run folder with the measurements of its heads."""

ORDERS = ("importance", "random", "most important first")


@dataclass(frozen=True)
class PruningPoint:
    order: str
    """One of `ORDERS`."""

    kind: str
    """Kind of attention from which heads were removed; `all`: any kind."""

    share: float
    """Requested fraction; at least one head of each attention layer is kept."""

    gone: int
    score: float
    """Score in the unit of the task's metric."""

    loss: float | None = None


@dataclass(frozen=True)
class PruningCurve:
    points: tuple[PruningPoint, ...]
    metric: str
    """Display name of the metric."""

    higher_is_better: bool
    n_heads: int
    data: str = ""
    """Data that it was measured on."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> PruningCurve:
        return cls(**{**facts, "points": tuple(PruningPoint(**point) for point in facts["points"])})


def order_units(
    settings: ModelSettings, worth: Mapping[HeadId, float], kind: str = "all"
) -> list[tuple[HeadId, ...]]:
    """Sort units of heads, the least important first. The importance of shared layers is summed."""
    total: dict[tuple[HeadId, ...], float] = {}
    for unit in removable_groups(settings):
        if kind in ("all", unit[0][0]):
            total[unit] = sum(_worth(settings, worth, head) for head in unit)
    return sorted(total, key=lambda unit: (total[unit], unit))


def least_important(
    settings: ModelSettings, found: HeadAnalysis, n_heads: int, kind: str | None = None
) -> frozenset[HeadId]:
    """Select the `n_heads` least important heads, of one kind of attention or of all."""
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
    """Score physically pruned runs on test data in the form that `headway evaluate` takes.

    `kinds` limits pruning to one kind of attention at a time. By default a translator is measured
    for each of its three kinds and for `all`. Orders other than importance are measured for `all`.
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
    """The task's metric, and the loss if available, of the run without these heads."""
    with work_folder() as folder:
        save_pruned(run, gone, folder, compact=False)
        found = evaluate_quietly(folder, files)
    return main_score(run.spec, found), found.get("loss")


def evaluate_quietly(folder: Path, files: DataSettings, **decode: Any) -> Scores:
    """Score a run as `headway evaluate` does, without output; `decode` overrides decoding
    settings."""
    opened = open_run(folder, device="cpu")
    settings = replace(opened.settings, decode=replace(opened.settings.decode, **decode))
    with contextlib.redirect_stderr(io.StringIO()):
        return find_task(settings).evaluation(InferenceRequest(opened, settings), files)


def main_score(spec: Spec, found: Scores) -> float:
    """Value of the task's main metric."""
    return found[spec.headline.name]


def save_head_analysis(folder: Path, found: HeadAnalysis, measured: PruningCurve | None) -> None:
    """Write the measurements next to the model, where `headway look` finds them."""
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
