"""Page section for training curves over the checkpoints, which is shared by all looks of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headway.inside.capture.trace import Trace
from headway.inside.measure.checkpoints import (
    CheckpointStage,
    Measures,
    describe_kept,
    history,
    measures,
)
from headway.inside.measure.lens import lens
from headway.inside.page.sections import PageSection
from headway.tasks.history import mean
from headway.tasks.loaded_run import LoadedRun

MOST_POINTS = 300
"""Maximum number of points in the training loss curve. The loss may be logged every few steps."""

TITLES = {
    "own": ("Training loss", "nats per token", "Logged training and validation loss of the run."),
    "loss": ("Loss on this text", "nats per token", "Cross-entropy of these outputs by stage."),
    "turned": ("Distance from the final vector", "1 − cosine", "0: the same direction."),
    "decided": (
        "Where the output is decided",
        "layer",
        "Mean first layer from which the logit lens keeps the output on top.",
    ),
    "entropy": ("Width of attention", "nats", "Mean entropy: 0 is one token, more is wider."),
    "pattern": (
        "Patterns of heads",
        "weight",
        "Best head: weight on the previous token, or near the diagonal of cross attention.",
    ),
    "residual": ("Difference of tokens", "‖X − mean‖ / ‖X‖", "0: all tokens have the same vector."),
    "cka": ("Similarity to the final states", "linear CKA", "1: equal up to rotation and scale."),
}
"""Heading, unit and explanation of each figure, by its name."""


def training_curves(run: LoadedRun, stages: Sequence[tuple[CheckpointStage, Trace]]) -> PageSection:
    """Return the curves over all checkpoints, from their traces. The last trace is that of the
    final model."""
    final = stages[-1][1]
    found = [_measured(stage, trace, final) for stage, trace in stages]
    figures = [figure for figure in [_own(run)] if figure is not None]
    # Figures of one kind are adjacent, with one figure per stack.
    for name in sorted(found[-1], key=lambda name: [*TITLES].index(name.partition(".")[0])):
        kind, _, stack = name.partition(".")
        title, unit, hint = TITLES[kind]
        lines = dict.fromkeys(line for each in found for line in each.get(name, {}))
        figures.append(
            {
                "name": name,
                "title": f"{title}: {stack}" if stack and _several(found, kind) else title,
                "unit": unit,
                "hint": hint,
                "series": [
                    {"name": line, "values": [each.get(name, {}).get(line) for each in found]}
                    for line in lines
                ],
            }
        )
    return {
        "labels": [stage.label for stage, _ in stages],
        "steps": [stage.step for stage, _ in stages],
        "figures": figures,
        "n_tokens": len(final.reading.last),
        "kept": describe_kept(run),
    }


def _measured(stage: CheckpointStage, trace: Trace, final: Trace) -> Measures:
    found = measures(trace, final)
    loss = found.pop("loss", {})
    is_vector = any(output.id < 0 for output in trace.reading.outputs)
    first: Measures = {"turned" if is_vector else "loss": loss} if loss else {}
    if not is_vector and trace.reading.outputs:
        seen = lens(stage.run, trace)
        last = len(seen.rank_LR) - 1
        # An output that is never the most probable one is decided by the search, after the last
        # layer.
        depths = [last if depth is None else depth for depth in seen.decided]
        first["decided"] = {"mean of the outputs": sum(depths) / len(depths)}
    return {**first, **found}


def _own(run: LoadedRun) -> PageSection | None:
    """Return the curves of the training log `metrics.jsonl`, with few enough points for a small
    chart."""
    lines, past = [], history(run)
    for name, kind in (("training", "train"), ("validation", "valid")):
        points = [point for point in past.points(kind, "loss") if math.isfinite(point[1])]
        size = math.ceil(len(points) / MOST_POINTS) or 1
        groups = [points[at : at + size] for at in range(0, len(points), size)]
        thinned = [[group[-1][0], mean(group)] for group in groups]
        if thinned:
            lines.append({"name": name, "points": thinned})
    if not lines:
        return None
    title, unit, hint = TITLES["own"]
    return {"name": "own", "title": title, "unit": unit, "hint": hint, "series": lines}


def _several(found: Sequence[Measures], kind: str) -> bool:
    return sum(name.startswith(f"{kind}.") for name in found[-1]) > 1
