"""User-defined metrics: functions of predictions and targets that are computed in addition to a
task's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from headway.errors import ConfigError, UserError
from headway.specs.metrics import Metric, named_metric
from headway.specs.tasks import Spec
from headway.tasks.dataset import EvalPass
from headway.tasks.objective import Objective
from headway.tasks.scores import Scores

MetricCallable = Callable[[Sequence[Any], Sequence[Any]], float]
"""Function that computes a metric from predictions and targets: texts, class names or lists of
tags. For captions, each target is a list of references."""

MetricFunction = MetricCallable | tuple[MetricCallable, Literal["lower"]]

LOG_KEYS = frozenset({"kind", "step", "time", "best", "seconds", "samples", "figures", "examples"})
"""Reserved keys of log entries, which cannot be names of custom metrics."""


class MetricFailed(UserError):
    """Error for a user-defined metric that raised an exception or did not return a number."""


@dataclass(frozen=True)
class CustomMetric:
    metric: Metric
    function: MetricCallable

    def score(self, scores: Scores) -> float:
        name = self.metric.name
        try:
            value = self.function(scores.answers, scores.truth)
        except Exception as error:
            text = f"metrics[{name!r}] failed: {type(error).__name__}: {error}"
            raise MetricFailed(text) from error
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            text = f"metrics[{name!r}] returned {value!r}, but must return a number."
            raise MetricFailed(text) from error


def custom_metrics(given: Mapping[str, MetricFunction], spec: Spec) -> dict[str, CustomMetric]:
    """Return user-defined metrics by name. Raise an error for names in use, invalid values, and
    tasks that are evaluated without predictions."""
    if given and (not spec.has_targets or spec.continues):
        raise ConfigError(
            f"metrics= compares predictions with targets, but the task {spec.name} is evaluated "
            "without predictions. Remove metrics=."
        )
    found = {}
    for name, one in given.items():
        function, *more = one if isinstance(one, tuple) else (one,)
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(
                f"metrics={{{name!r}: …}}: the name may contain only letters, digits and "
                "underscores, and must not begin with a digit."
            )
        if name in spec.scores or name in LOG_KEYS:
            raise ConfigError(
                f"metrics={{{name!r}: …}}: the task {spec.name} already uses this name. Choose "
                "another name."
            )
        if not callable(function) or more not in ([], ["lower"]):
            raise ConfigError(
                f"metrics={{{name!r}: {one!r}}}: the value must be a function of predictions and "
                'targets, or (function, "lower") if lower values are better.'
            )
        found[name] = CustomMetric(named_metric(name, "lower" if more else "higher"), function)
    return found


class ObjectiveWithMetrics:
    """Wrapper of an objective that adds user-defined metrics to its scores."""

    def __init__(
        self, inner: Objective[Any], own: Mapping[str, CustomMetric], by: str = ""
    ) -> None:
        self.inner, self.own = inner, own
        self.metric = own[by].metric if by else inner.metric

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def evaluate(self, asked: EvalPass) -> Scores:
        scores = self.inner.evaluate(asked)
        more = {name: one.score(scores) for name, one in self.own.items()}
        return scores.updated(more, own=[one.metric for one in self.own.values()])


def with_metrics(
    objective: Objective[Any], own: Mapping[str, CustomMetric], by: str = ""
) -> Objective[Any]:
    """Return the objective with custom metrics in its scores; unchanged if there are none. `by`:
    name of the custom metric that selects the best checkpoint; empty: the task's own metric selects
    it."""
    return cast(Objective[Any], ObjectiveWithMetrics(objective, own, by)) if own else objective
