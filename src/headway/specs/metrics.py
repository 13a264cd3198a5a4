"""Names, units and directions of the metrics that tasks report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.errors import ConfigError, suggest


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    """Name of the metric in `metrics.jsonl` and as a value of `train.metric`."""

    label: str
    """Name of the metric in tables, reports and pages."""

    lower: bool = False
    """Whether lower values are better."""

    unit: str = ""
    digits: int = 2
    remark: str = ""
    """Explanation that tables print next to the value."""

    @property
    def most(self) -> float | None:
        """The largest possible value, or None if there is no limit. Error rates, for example, may
        exceed 100 %."""
        in_percent = self.unit == "%" or self.name in ("bleu", "chrf")
        return 100.0 if in_percent and not self.lower else None

    def shown(self, value: float) -> str:
        return f"{value:.{self.digits}f}" + (f" {self.unit}" if self.unit else "")

    def interval_text(self, interval: tuple[float, float]) -> str:
        low, high = interval
        return f"95 %: {low:.{self.digits}f} – {high:.{self.digits}f}"

    @property
    def axis(self) -> str:
        """Label with the unit, for the headings of table columns and chart axes."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def better(self, one: float, other: float) -> bool:
        return one < other if self.lower else one > other


METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        Metric(name="accuracy", label="accuracy", unit="%"),
        Metric(
            name="top5",
            label="top-5 accuracy",
            unit="%",
            remark="correct class among the 5 most likely",
        ),
        Metric(name="micro_f1", label="micro F1", unit="%"),
        Metric(name="f1", label="F1", unit="%"),
        Metric(name="precision", label="precision", unit="%"),
        Metric(name="recall", label="recall", unit="%"),
        Metric(name="mrr", label="MRR", unit="%", remark="mean reciprocal rank, times 100"),
        Metric(
            name="exact_match",
            label="exact match",
            unit="%",
            remark="predictions equal to the target",
        ),
        Metric(name="bleu", label="BLEU"),
        Metric(name="chrf", label="chrF"),
        Metric(name="cider", label="CIDEr-D", unit="of 10", digits=3),
        Metric(name="wer", label="WER", lower=True, unit="%"),
        Metric(name="cer", label="CER", lower=True, unit="%"),
        Metric(
            name="map",
            label="mean average precision",
            unit="%",
            remark="independent of the threshold",
        ),
        Metric(name="mae", label="MAE", lower=True, digits=4),
        Metric(name="rmse", label="RMSE", lower=True, digits=4, remark="root mean squared error"),
        Metric(name="r2", label="R²", digits=4, remark="fraction of the variance explained"),
        Metric(name="pearson", label="Pearson", digits=4, remark="correlation"),
        Metric(name="spearman", label="Spearman", digits=4, remark="rank correlation"),
        Metric(name="variance_explained", label="variance explained", unit="%"),
        Metric(
            name="ppl", label="perplexity", lower=True, remark="per token; depends on the tokenizer"
        ),
        Metric(name="bits_per_byte", label="bits per byte", lower=True, digits=3),
        Metric(name="loss", label="loss", lower=True, digits=3),
    )
}
"""All built-in metrics by name, in the order of reports. A task can only report metrics that are
listed here. `mrr` is the mean reciprocal rank. `variance_explained` is the fraction of the variance
of masked parts that the model reconstructs."""


def named_metric(name: str, better: object) -> Metric:
    return Metric(name=name, label=name, lower=better == "lower", digits=3)


def custom_metrics_of(asked: Mapping[str, object]) -> dict[str, Metric]:
    """Return the custom metrics of a run from its `metrics.NAME` settings. Their values, `lower` or
    `higher`, give the better direction."""
    keys = {key.removeprefix("metrics."): one for key, one in asked.items()
            if key.startswith("metrics.")}  # fmt: skip
    return {name: named_metric(name, better) for name, better in keys.items()}


def scored(*names: str) -> tuple[Metric, ...]:
    return tuple(METRICS[name] for name in names)


def check_metric(
    metric: str | None,
    task: str,
    names: Sequence[str],
    locate: Callable[[str], object] | None = None,
) -> None:
    """Raise a `ConfigError` if the task does not have this metric. `locate` returns the prefix of
    the error, such as the file and line."""
    if metric is not None and metric not in names:
        near, where = suggest(metric, names), locate("train.metric") if locate else ""
        raise ConfigError(
            f"{where}train.metric={metric!r} is not a metric of the task {task}.{near}"
        )


def has_span_tags(labels: tuple[str, ...]) -> bool:
    """Whether the labels are span tags: `O`, or one of B, I, E, S before a dash and a type."""
    return all(label == "O" or (label[:1] in "BIES" and label[1:2] == "-") for label in labels)
