"""Scores of a model on a validation or test set, with baselines, intervals and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from headway.specs.metrics import METRICS, Metric
from headway.specs.tasks import Spec

Baselines = dict[str, dict[str, float]]
"""Scores of baselines by name: what simple methods reach without training a network."""

ScoreRow = tuple[str, str, str]
"""Name, value, remark."""

Range = tuple[float, float]
"""Lower and upper end of the 95 % confidence interval of a score."""

MODEL = "this model"

NEURAL, NGRAMS = "neural model alone", "n-grams alone"
"""Members of a model whose prediction is the mean of both (`models/parts/ngrams.py`)."""


def member_remark(name: str, share: float) -> str:
    """The weight of a member in the prediction, as a remark in tables."""
    return f"weight {share if name == NGRAMS else 1 - share:.0%}"


@dataclass(frozen=True)
class Temperature:
    """Temperature that logits are divided by to calibrate the probabilities."""

    value: float
    examples: int
    """Number of examples that it was fitted on."""

    ngram_weight: float | None = None
    """Weight of the n-grams, fitted together with it, if the model has an n-gram member."""

    has_probabilities: bool = True
    """Whether predictions have probabilities. If not, only the share is fitted and `value` is 1."""

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
"""Weights of n-grams that are tried. All are below 1, so that the layers always contribute."""


def fit_temperature(
    fit: Callable[[float | None], float | None],
    loss: Callable[[float, float | None], float],
    examples: int,
    ngrams: bool,
) -> Temperature | None:
    """The weight of n-grams and the temperature with the lowest loss. `fit` returns the temperature
    at a weight, or None without probabilities; `loss` takes a temperature and a weight."""
    if not ngrams:
        found = fit(None)
        return None if found is None else Temperature(found, examples)
    tried = {share: fit(share) for share in NGRAM_WEIGHTS}
    share = min(tried, key=lambda one: loss(tried[one] or 1.0, one))
    value = tried[share]
    return Temperature(value or 1.0, examples, share, has_probabilities=value is not None)


PredictionsAndTargets = tuple[Sequence[Any], Sequence[Any]]
"""Predictions and targets: texts, labels or lists of tags."""


class Scores(Mapping[str, float]):
    """Metrics by name, such as `scores["accuracy"]`, in the units that `METRICS` defines.

    In addition: scores of the `baselines`, data for reports (`figures`, such as a confusion
    matrix), and predictions with their targets (`answers` and `truth`) if the task has them.
    """

    def __init__(
        self,
        values: Mapping[str, float],
        *,
        samples: Sequence[dict[str, str]] = (),
        figures: Mapping[str, Any] | None = None,
        find_baselines: Callable[[], Baselines] = dict,
        find_members: Callable[[], Baselines] = dict,
        find_answers: Callable[[], PredictionsAndTargets] = lambda: ((), ()),
        find_ranges: Callable[[], Mapping[str, Range]] = dict,
        examples: int | None = None,
        rows: Sequence[ScoreRow] = (),
        facts: Mapping[str, Any] | None = None,
        own: Sequence[Metric] = (),
        temperature: Temperature | None = None,
        fitted: Mapping[str, float] | None = None,
    ) -> None:
        """Functions `find_…` are called on first use, because some baselines take as long as an
        evaluation. `find_members`: scores of each member of the model alone. `find_ranges`: known
        intervals of the main metric, for the model (`MODEL`) and the baselines.

        `examples`: number of examples, if a time budget limits it. `rows` and `facts`: results on a
        test set, for people and for programs. `own`: custom metrics, which are not in `METRICS`.
        `temperature`: the fitted temperature of these scores, if any. `fitted`: run settings
        that were fitted on the same examples, by dotted name."""
        self.metrics = METRICS | {one.name: one for one in own}
        self._check(values)
        self._values = dict(values)
        self.samples = list(samples)
        self.figures = dict(figures or {})
        self._find_baselines, self._find_answers = find_baselines, find_answers
        self._find_members = find_members
        self._find_ranges, self.temperature = find_ranges, temperature
        self.fitted = dict(fitted or {})
        self.examples = examples
        self.rows = list(rows)
        self.facts = dict(facts or values)

    def updated(
        self,
        more: Mapping[str, float] | None = None,
        *,
        examples: int | None = None,
        own: Sequence[Metric] = (),
    ) -> Scores:
        """A copy with additional metrics or another number of examples."""
        return Scores(
            self._values | dict(more or {}), samples=self.samples, figures=self.figures,
            find_baselines=lambda: self.baselines, find_answers=lambda: self._answered,
            find_members=lambda: self.members, find_ranges=lambda: self.ranges,
            examples=self.examples if examples is None else examples, rows=self.rows,
            facts=self.facts, own=own, temperature=self.temperature, fitted=self.fitted,
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
    def baselines(self) -> Baselines:
        """Scores of the baselines, on the whole set or, if that is cheaper, on the same examples
        as the model."""
        found = self._find_baselines()
        self._check(*found.values())
        return found

    @cached_property
    def members(self) -> Baselines:
        """Scores of the model's members, each alone; empty for a model without members."""
        found = self._find_members()
        self._check(*found.values())
        return found

    @cached_property
    def ranges(self) -> dict[str, Range]:
        return dict(self._find_ranges())

    @cached_property
    def _answered(self) -> PredictionsAndTargets:
        return self._find_answers()

    @property
    def answers(self) -> Sequence[Any]:
        return self._answered[0]

    @property
    def truth(self) -> Sequence[Any]:
        return self._answered[1]

    def _check(self, *every: Mapping[str, float]) -> None:
        unknown = {name for values in every for name in values} - self.metrics.keys()
        assert not unknown, f"no record in specs/metrics.py: {', '.join(sorted(unknown))}"

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling: all lazy values are computed first, because the functions that find
        them cannot be pickled."""
        self.baselines, self.members, self.ranges, self._answered  # noqa: B018
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_find_")}

    def __repr__(self) -> str:
        shown = (f"{name} {self.metrics[name].shown(value)}" for name, value in self.items())
        return f"Scores({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """HTML table for notebooks: test rows, or all metrics with those of the baselines."""
        if self.rows:
            return _table(("score", "value", ""), self.rows)
        names = [name for name in self.metrics if name in self]
        rows = [("model", *(self._cell(self, name) for name in names))]
        for who, values in [*self.members.items(), *self.baselines.items()]:
            rows.append((who, *(self._cell(values, name) for name in names)))
        return _table(("", *(self.metrics[name].label for name in names)), rows)

    def _cell(self, values: Mapping[str, float], name: str) -> str:
        return self.metrics[name].shown(values[name]) if name in values else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


PAGE = "docs/tasks/training.md#when-a-baseline-is-better"


def of_metric(baselines: Baselines, metric: Metric) -> dict[str, float]:
    """Values of the baselines that have this metric, the best first."""
    found = {name: one[metric.name] for name, one in baselines.items() if metric.name in one}
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=not metric.lower))


@dataclass(frozen=True)
class Standing:
    """The score of a model or baseline, with its interval if that is known."""

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
    """Scores of the baselines, the best last, then of the model's members and of the model; empty
    if there is nothing to compare the model with."""
    found = [*reversed(of_metric(baselines, metric).items())]
    found += [*reversed(of_metric(members or {}, metric).items())]
    rows = [Standing(name, one, ranges.get(name)) for name, one in found]
    return [*rows, Standing(MODEL, value, ranges.get(MODEL))] if rows else []


def compared(rows: Sequence[Standing], metric: Metric) -> list[str]:
    """Lines of the table that compares the model with the baselines at the end of training."""
    wide = max((len(row.name) for row in rows), default=0)
    values = [f"{row.value:.{metric.digits}f}" for row in rows]
    most = max(map(len, values), default=0)
    known = ", with 95 % intervals" * any(row.range for row in rows)
    lines = [f"validation {metric.axis}{known}:"] if rows else []
    for row, value in zip(rows, values, strict=True):
        between = ""
        if row.range:
            low, high = (f"{one:.{metric.digits}f}" for one in row.range)
            between = f"  ({low} – {high})"
        lines.append(f"  {row.name:<{wide}}  {value:>{most}}{between}")
    return lines


def advice(
    spec: Spec,
    value: float,
    baselines: Baselines,
    metric: Metric,
    steps: int,
    *,
    tuned: bool = False,
) -> str | None:
    """A warning with remedies if the best baseline is at least as good as the model; None if not.
    `steps`: training steps of the run, or 0 if more would not help. `tuned`: whether the run
    started from an encoder."""
    found = of_metric(baselines, metric)
    if not found:
        return None
    name, best = next(iter(found.items()))
    perfect = 0.0 if metric.lower else 100.0
    if metric.better(value, best) or value == perfect:
        return None
    which = "as good as" if value == best else "better than"
    longer = f"; longer training (train.steps={2 * steps}, or a longer --budget)" if steps else ""
    return (
        f"warning: a baseline is {which} this model. {metric.label} of the baseline ({name}): "
        f"{metric.shown(best)}, of the model: {metric.shown(value)}. What helps: "
        f"{spec.lacks_data if tuned else spec.lacks}{longer}. See {PAGE}"
    )
