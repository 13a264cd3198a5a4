"""Scores of a model on a validation or test set, with baselines, intervals and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway.errors import Option
from headway.specs.metrics import METRICS, Metric
from headway.specs.tasks import Spec

Baselines = dict[str, dict[str, float]]
"""Scores of the baselines, by baseline and metric."""

ScoreRow = tuple[str, str, str]
"""Row of a score table: name, value and remark."""

Range = tuple[float, float]
"""Lower and upper bounds of a 95 % confidence interval."""

MODEL = "this model"

NEURAL, NGRAMS = "neural model alone", "n-grams alone"
"""Names of the two members of a model with n-grams. The model predicts their weighted mean
(`models/parts/ngrams.py`)."""


def member_remark(name: str, share: float) -> str:
    """Return the weight of a member in the prediction, as a remark for tables."""
    return f"weight {share if name == NGRAMS else 1 - share:.0%}"


@dataclass(frozen=True)
class Temperature:
    """Calibration temperature, by which logits are divided."""

    value: float
    examples: int
    """Number of examples that the temperature was fitted on."""

    ngram_weight: float | None = None
    """Weight of the n-grams, which is fitted together with the temperature; None for a model
    without n-grams."""

    has_probabilities: bool = True
    """Whether predictions are probabilities. If not, only `ngram_weight` is fitted, and the
    temperature is 1."""

    def describe(self, unit: str) -> str:
        if not self.has_probabilities:
            return (
                f"predictions: n-grams have a weight of {self.ngram_weight or 0.0:.0%}, fitted on "
                f"{self.examples:,} validation {unit}"
            )
        of_ngrams = (
            ""
            if self.ngram_weight is None
            else f" and n-grams have a weight of {self.ngram_weight:.0%}"
        )
        return (
            f"probabilities: logits are divided by a temperature of {self.value:.2f}{of_ngrams}, "
            f"fitted on {self.examples:,} validation {unit}"
        )


NGRAM_WEIGHTS = tuple(n / 10 for n in range(10))
"""Candidate weights of the n-grams. All are below 1, so that the neural layers always
contribute."""


def fit_temperature(
    fit: Callable[[float | None], float | None],
    loss: Callable[[float, float | None], float],
    examples: int,
    ngrams: bool,
) -> Temperature | None:
    """Return the temperature and the weight of the n-grams that give the lowest loss.

    Args:
        fit: Function that returns the best temperature for a weight, or None without probabilities.
        loss: Function that returns the loss for a temperature and a weight.
        examples: Number of examples of the fit.
        ngrams: Whether the model has n-grams.
    """
    if not ngrams:
        found = fit(None)
        return None if found is None else Temperature(found, examples)
    tried = {share: fit(share) for share in NGRAM_WEIGHTS}
    share = min(tried, key=lambda one: loss(tried[one] or 1.0, one))
    value = tried[share]
    return Temperature(value or 1.0, examples, share, has_probabilities=value is not None)


PredictionsAndTargets = tuple[Sequence[Any], Sequence[Any]]
"""Predictions, and their targets in the same order: texts, labels or lists of tags."""

Intervals = Mapping[str, Range]
"""95 % confidence intervals, by metric name."""


class MethodScores:
    """Scores of a method with which the model is compared: a baseline, or one member of the
    model."""

    def __init__(
        self,
        values: Mapping[str, float],
        remark: str = "",
        find_intervals: Callable[[], Intervals] = dict,
    ) -> None:
        """Store the scores of a method.

        Args:
            values: Metric values by name.
            remark: How the method predicts, for tables.
            find_intervals: Function that computes the confidence intervals. It is called on first
                use, because some take long.
        """
        self.values, self.remark = dict(values), remark
        self._find_intervals = find_intervals

    @cached_property
    def intervals(self) -> Intervals:
        return self._find_intervals()

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "remark": self.remark, "intervals": dict(self.intervals)}


Methods = dict[str, MethodScores]


class Scores(Mapping[str, float]):
    """Metrics by name, such as `scores["accuracy"]`, with baselines and intervals.

    Example:
        >>> test = [{"source": "Danke.", "target": "Thanks."}]
        >>> scores = run.evaluate(test)
        >>> sorted(scores), scores.n
        (['bleu', 'chrf', 'loss', 'ppl'], 1)
    """

    def __init__(
        self,
        values: Mapping[str, float],
        *,
        n: int | None = None,
        unit: str = "examples",
        remarks: Mapping[str, str] | None = None,
        find_intervals: Callable[[], Intervals] = dict,
        details: Sequence[ScoreRow] = (),
        facts: Mapping[str, Any] | None = None,
        samples: Sequence[dict[str, str]] = (),
        figures: Mapping[str, Any] | None = None,
        find_answers: Callable[[], PredictionsAndTargets] = lambda: ((), ()),
        find_members: Callable[[], Methods] = dict,
        find_baselines: Callable[[], Methods] = dict,
        examples: int | None = None,
        own: Sequence[Metric] = (),
        temperature: Temperature | None = None,
        fitted: Mapping[str, float] | None = None,
        cautions: Sequence[str] = (),
        find_late_facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Store metrics, and functions that compute slow results on first use: some baselines take
        as long as an evaluation.

        Args:
            values: Metric values by name, the main metric first.
            n: Number of scored examples, in `unit`; None: unknown.
            unit: Plural noun for the examples.
            remarks: Explanations of metrics that depend on the data, by name. Other metrics are
                explained by `METRICS`.
            find_intervals: Computes confidence intervals by metric.
            details: Further results for people, as table rows.
            facts: Further results for programs, as JSON values.
            samples: Examples with their targets and outputs, for the report.
            figures: Data for the figures of the report.
            find_answers: Returns the predictions and the targets.
            find_members: Computes the scores of each member of the model alone.
            find_baselines: Computes the scores of baselines.
            examples: Number of examples that a time budget allowed; None: no limit.
            own: Custom metrics, which are not in `METRICS`.
            temperature: Temperature that was fitted for these scores; None: not fitted.
            fitted: Run settings that were fitted on the same examples, by dotted name.
            cautions: Warnings that the data is too small for reliable scores.
            find_late_facts: Computes results for the report that take long, such as learning
                curves. It is called once, at the end of training.
        """
        self.metrics = METRICS | {one.name: one for one in own}
        self._check(values)
        self._values = dict(values)
        self.n, self.unit, self.examples = n, unit, examples
        self.remarks, self.details = dict(remarks or {}), list(details)
        self.own_facts = dict(facts or {})
        self.samples, self.figures = list(samples), dict(figures or {})
        self._find_intervals, self._find_answers = find_intervals, find_answers
        self._find_members, self._find_baselines = find_members, find_baselines
        self.temperature, self.fitted = temperature, dict(fitted or {})
        self.cautions, self._find_late_facts = list(cautions), find_late_facts

    def updated(
        self,
        more: Mapping[str, float] | None = None,
        *,
        examples: int | None = None,
        own: Sequence[Metric] = (),
        details: Sequence[ScoreRow] = (),
        facts: Mapping[str, Any] | None = None,
        figures: Mapping[str, Any] | None = None,
        find_baselines: Callable[[], Methods] | None = None,
        cautions: Sequence[str] = (),
        find_late_facts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> Scores:
        """Return a copy with additional results, other baselines, or another number of examples."""
        return Scores(
            self._values | dict(more or {}), n=self.n, unit=self.unit, remarks=self.remarks,
            find_intervals=lambda: self.intervals, details=[*self.details, *details],
            facts=self.own_facts | dict(facts or {}),
            samples=self.samples, figures=self.figures | dict(figures or {}),
            find_answers=lambda: self._answered,
            find_members=lambda: self._members,
            find_baselines=find_baselines or (lambda: self._baselines),
            examples=self.examples if examples is None else examples,
            own=own or [one for one in self.metrics.values() if one.name not in METRICS],
            temperature=self.temperature, fitted=self.fitted, cautions=[*self.cautions, *cautions],
            find_late_facts=find_late_facts or (lambda: self.late_facts),
        )  # fmt: skip

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(f"no score {name!r}; available: {', '.join(self._values)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @cached_property
    def _baselines(self) -> Methods:
        found = self._find_baselines()
        self._check(*(one.values for one in found.values()))
        return found

    @property
    def baselines(self) -> Baselines:
        """Metric values of each baseline, by name of the baseline."""
        return {name: one.values for name, one in self._baselines.items() if one.values}

    @cached_property
    def _members(self) -> Methods:
        found = self._find_members()
        self._check(*(one.values for one in found.values()))
        return found

    @property
    def members(self) -> Baselines:
        """Metric values of each member of the model alone; empty for a model without members."""
        return {name: one.values for name, one in self._members.items()}

    @cached_property
    def late_facts(self) -> dict[str, Any]:
        """Results for the report that take long to compute, such as learning curves."""
        return dict(self._find_late_facts())

    @cached_property
    def intervals(self) -> Intervals:
        """95 % confidence intervals `(low, high)` by metric name, for metrics that have one."""
        return self._find_intervals()

    def ranges(self, metric: str) -> dict[str, Range]:
        """Return the 95 % confidence intervals of one metric, by method: the model, its members and
        the baselines.

        Args:
            metric: Name of the metric.
        """
        others = {**self._members, **self._baselines}
        found = {MODEL: self.intervals, **{name: one.intervals for name, one in others.items()}}
        return {name: one[metric] for name, one in found.items() if metric in one}

    @property
    def methods(self) -> Methods:
        """Scores of the model's members and of the baselines by name, each with a remark."""
        return self._members | self._baselines

    @property
    def rows(self) -> list[ScoreRow]:
        """Rows of the table that `headway evaluate` prints: name, value and remark."""
        from headway.tasks.format import score_rows

        return score_rows(self)

    @property
    def facts(self) -> dict[str, Any]:
        """All results as JSON values, as `headway evaluate --json` prints them."""
        from headway.tasks.format import score_facts

        return score_facts(self)

    @cached_property
    def _answered(self) -> PredictionsAndTargets:
        return self._find_answers()

    @property
    def answers(self) -> Sequence[Any]:
        """Predictions in the order of the examples; empty if the task does not keep them."""
        return self._answered[0]

    @property
    def truth(self) -> Sequence[Any]:
        """Targets, in the order of `answers`."""
        return self._answered[1]

    def _check(self, *every: Mapping[str, float]) -> None:
        unknown = {name for values in every for name in values} - self.metrics.keys()
        assert not unknown, f"no record in specs/metrics.py: {', '.join(sorted(unknown))}"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling. All lazy values are computed first, because the functions
        that compute them cannot be pickled."""
        self._baselines, self._members, self.intervals, self._answered  # noqa: B018
        self.late_facts  # noqa: B018
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_find_")}

    def __repr__(self) -> str:
        shown = (f"{name} {self.metrics[name].shown(value)}" for name, value in self.items())
        return f"Scores({', '.join(shown)})"

    def _repr_html_(self) -> str:
        from headway.tasks.format import scores_html

        return scores_html(self)


PAGE = "docs/tasks/training.md#when-a-baseline-is-better"


def of_metric(baselines: Baselines, metric: Metric) -> dict[str, float]:
    """Return the values of one metric by baseline, best first. Baselines without the metric are
    left out."""
    found = {name: one[metric.name] for name, one in baselines.items() if metric.name in one}
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=not metric.lower))


@dataclass(frozen=True)
class Standing:
    """Score of a model or baseline, with its confidence interval (`range`) if known."""

    name: str
    value: float
    range: Range | None = None

    @property
    def facts(self) -> dict[str, Any]:
        low, high = self.range or (None, None)
        return {"name": self.name, "value": self.value, "low": low, "high": high}


def standings(
    value: float,
    baselines: Baselines,
    ranges: Mapping[str, Range],
    metric: Metric,
    members: Baselines | None = None,
) -> list[Standing]:
    """Return the values of a metric to compare: baselines with the best last, then the model's
    members, then the model. The list is empty without baselines and members."""
    found = [*reversed(of_metric(baselines, metric).items())]
    found += [*reversed(of_metric(members or {}, metric).items())]
    rows = [Standing(name, one, ranges.get(name)) for name, one in found]
    return [*rows, Standing(MODEL, value, ranges.get(MODEL))] if rows else []


def advice(
    spec: Spec,
    value: float,
    baselines: Baselines,
    metric: Metric,
    steps: int,
    *,
    tuned: bool = False,
) -> str | None:
    """Return a warning with remedies if the best baseline is at least as good as the model; None if
    the model is better.

    Args:
        spec: Definition of the task, which has the remedies.
        value: Score of the model.
        baselines: Scores of the baselines.
        metric: Metric to compare.
        steps: Number of training steps of the run; 0 if more would not help.
        tuned: Whether the run started from a pretrained encoder.
    """
    found = of_metric(baselines, metric)
    if not found:
        return None
    name, best = next(iter(found.items()))
    perfect = 0.0 if metric.lower else 100.0
    if metric.better(value, best) or value == perfect:
        return None
    which = "as good as" if value == best else "better than"
    longer = (
        f"; longer training (train.steps={2 * steps}, or a longer {Option('budget')})"
        if steps
        else ""
    )
    return (
        f"warning: a baseline is {which} this model. {metric.label} of the baseline ({name}): "
        f"{metric.shown(best)}, of the model: {metric.shown(value)}. What helps: "
        f"{spec.remedies(tuned=tuned)}{longer}. See {PAGE}"
    )
