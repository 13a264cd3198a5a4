"""The score of a finished run beside what one gets for nothing, and what to do about it."""

from __future__ import annotations

from headway.config.metrics import Metric
from headway.tasks.task import Baselines

PAGE = "docs/training.md#when-a-baseline-is-better"

_KNOWS = "or an encoder that knows the language already: --from RUN, of the task fill or imported"
_SEEN = "or an encoder that was trained without labels: --from RUN, of headway train fill --media"

FIRST_STEPS = {
    "translate": "more pairs of sentences; headway check says what may be wrong with them",
    "complete": "more text",
    "fill": "more text, pictures or recordings",
    "classify": f"more labelled texts, {_KNOWS}",
    "tag": f"more tagged sentences, {_KNOWS}",
    "embed": f"more pairs, {_KNOWS}",
    "see": f"more pictures, {_SEEN}",
    "watch": f"more videos, {_SEEN}",
    "identify": f"more recordings, {_SEEN}",
    "caption": "more pictures with captions",
    "transcribe": "more recordings with their texts",
}
"""What a task lacks most often when it is worse than a baseline."""


def of_metric(baselines: Baselines, metric: Metric) -> dict[str, float]:
    """Those that have this score, the best first."""
    found = {name: one[metric.name] for name, one in baselines.items() if metric.name in one}
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=not metric.lower))


def beside(baselines: Baselines, metric: Metric) -> str:
    """For the line that ends a training; empty where nothing can be compared."""
    found = of_metric(baselines, metric)
    shown = ", ".join(f"{name} {metric.shown(value)}" for name, value in found.items())
    return f"; baseline{'s' * (len(found) > 1)}: {shown}" if found else ""


def advice(task: str, value: float, baselines: Baselines, metric: Metric, steps: int) -> str | None:
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
        f"{metric.shown(best)}, the model {metric.shown(value)}. What helps: {FIRST_STEPS[task]}; "
        f"a longer training (train.steps={2 * steps}, or a longer --budget). See {PAGE}"
    )
