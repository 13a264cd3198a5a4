"""Page section for attention heads: importance and roles of each head, and the pruning curve if it
was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import gives_vector
from headway.inside.capture.interventions import NO_INTERVENTION
from headway.inside.measure import ablation as judging
from headway.inside.measure.heads import LIFT, ROLES, HeadAnalysis, HeadMetrics, heads
from headway.inside.measure.pruning_curve import PruningCurve, load_head_analysis
from headway.inside.page.sections import PageSection
from headway.tasks.loaded_run import LoadedRun

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

FEW = 64
"""Maximum number of corpus texts on which heads are measured for a page; more texts change the
values little."""

DIGITS = 6
"""Number of significant digits of stored values, which is close to the precision of fp32."""

MEASURES = {
    "importance": (
        "blues",
        "",
        "Mean |dL/dg| over texts: how the loss depends on the head gate g.",
    ),
    "entropy": ("oranges", "nats", "Entropy of the attention: 0 is one token, more is wider."),
    "distance": ("oranges", "tokens", "Mean distance of the tokens that the head attends to."),
}
"""Colours, unit and explanation of each measurement by which heads can be coloured."""


def section(looked: LookInputs) -> PageSection | None:
    run: LoadedRun | None = looked.run
    if run is None or not looked.trace.reading.outputs:
        return None
    if not Anatomy.of(run.model).by_attention:
        return None
    # Stored measurements are valid only for the final weights and all heads.
    is_own = looked.final and looked.change == NO_INTERVENTION
    saved = load_head_analysis(run.folder) if is_own else None
    if saved is not None and not _fits(saved[0], run):
        saved = None  # from another model that was in this folder
    if looked.corpus is not None:
        # Hidden tokens belong to this text, but disabled heads also apply to the corpus.
        off = replace(looked.change, hidden=frozenset())
        found = heads(run, looked.corpus, n=FEW, change=off)
    elif saved is not None:
        found = saved[0]
    else:
        found = heads(run, [looked.trace.reading], change=looked.change)
    whole = looked.corpus is not None or saved is not None
    unit = "length" if gives_vector(run) else judging.unit(run)
    return {
        "kinds": _kinds(run),
        "heads": [_head(one) for one in found.heads],
        "roles": [
            {"name": r.name, "mark": r.mark, "threshold": r.threshold, "meaning": r.meaning}
            for r in ROLES.values()
        ],
        "role_note": f"A role also needs at least {LIFT:g} times the score of uniform attention. "
        "Heads without a letter have no role.",
        "measures": [
            {"key": key, "map": colours, "unit": own or unit, "title": title}
            for key, (colours, own, title) in MEASURES.items()
        ],
        "n_texts": found.n_texts,
        "n_outputs": found.n_outputs,
        "loss": _short(found.loss),
        "one_text": not whole,
        "scope": _scope(found, whole),
        "curve": None if saved is None or saved[1] is None else _curve(saved[1]),
        "command": f"headway prune {run.folder.name} --curve FILES",
    }


def _scope(found: HeadAnalysis, whole: bool) -> str:
    outputs = f"{found.n_outputs:,} output{'s' * (found.n_outputs != 1)}"
    if not whole:
        return f"Measured on this text only ({outputs}). Give a corpus for general results."
    where = f": {found.source}" if found.source else ""
    return f"Measured on {found.n_texts:,} {found.unit} with {outputs}{where}."


def _fits(found: HeadAnalysis, run: LoadedRun) -> bool:
    known = {
        (kind.name, layer): attention.n_heads
        for kind in Anatomy.of(run.model).kinds
        for layer, attention in enumerate(kind.layers)
    }
    counted: dict[tuple[str, int], int] = {}
    for head in found.heads:
        counted[head.kind, head.layer] = counted.get((head.kind, head.layer), 0) + 1
    return counted == known


def _kinds(run: LoadedRun) -> list[PageSection]:
    """Return the kinds of attention, with their numbers of heads. `n_heads` includes pruned
    heads."""
    return [
        {
            "name": kind.name,
            "rows": kind.rows,
            "columns": kind.columns,
            "n_layers": len(kind.layers),
            "n_heads": run.shape.stack(kind.name).n_heads,
            "shared": len(kind.layers) > 1 and len(set(kind.layers)) == 1,
        }
        for kind in Anatomy.of(run.model).kinds
    ]


def _head(one: HeadMetrics) -> PageSection:
    return {
        "kind": one.kind,
        "layer": one.layer,
        "head": one.head,
        "number": one.number,
        "importance": _short(one.importance),
        "entropy": _short(one.entropy),
        "evenness": _short(one.evenness),
        "distance": _short(one.distance),
        "roles": list(one.roles),
        "scores": {name: _short(score) for name, score in one.scores.items()},
    }


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _curve(curve: PruningCurve) -> PageSection:
    series: dict[str, list[list[float]]] = {}
    for point in curve.points:
        name = point.kind if point.order == "importance" else f"{point.kind}, {point.order}"
        line = series.setdefault(name, [])
        if [point.gone, _short(point.score)] not in line:
            line.append([point.gone, _short(point.score)])
    by_kind = " “all” removes heads of any kind, other lines of one kind." * (len(series) > 2)
    data = f" Test set: {curve.data}." if curve.data else ""
    return {
        "hint": f"Heads are removed, the least important first, and {curve.metric} is measured "
        "each time. While a line stays level, the removed heads were not needed.",
        "note": f"At least one head of every attention layer is kept.{by_kind} “random” is the "
        f"control: heads are removed in random order.{data}",
        "series": [{"name": name, "points": points} for name, points in series.items()],
        "metric": curve.metric,
        "higher_is_better": curve.higher_is_better,
        "n_heads": curve.n_heads,
    }
