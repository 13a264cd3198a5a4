"""The score of a finished run beside what one gets for nothing, and what to do about it."""

from __future__ import annotations

from headway.tasks.scores import Baselines
from headway.tasks.specs import Metric, Spec

PAGE = "docs/tasks/training.md#when-a-baseline-is-better"


def of_metric(baselines: Baselines, metric: Metric) -> dict[str, float]:
    """Those that have this score, the best first."""
    found = {name: one[metric.name] for name, one in baselines.items() if metric.name in one}
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=not metric.lower))


def beside(baselines: Baselines, metric: Metric) -> str:
    """For the line that ends a training; empty where nothing can be compared."""
    found = of_metric(baselines, metric)
    shown = ", ".join(f"{name} {metric.shown(value)}" for name, value in found.items())
    return f"; baseline{'s' * (len(found) > 1)}: {shown}" if found else ""


def advice(
    spec: Spec, value: float, baselines: Baselines, metric: Metric, steps: int
) -> str | None:
    """What to do where the best baseline is as good as the model, or better."""
    found = of_metric(baselines, metric)
    if not found:
        return None
    name, best = next(iter(found.items()))
    perfect = 0.0 if metric.lower else 100.0
    if metric.better(value, best) or value == perfect:
        return None
    which = "as good as" if value == best else "better than"
    return (
        f"warning: a baseline is {which} this model: {name} has {metric.label} "
        f"{metric.shown(best)}, the model {metric.shown(value)}. What helps: {spec.lacks}; "
        f"a longer training (train.steps={2 * steps}, or a longer --budget). See {PAGE}"
    )
