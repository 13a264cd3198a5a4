"""The scores of the tasks, in one table: the loop, checks, reports and evaluations read it.

A task reports no score that has no record here, and what `train.metric` may name is in
`METRICS_OF`, so that a wrong name is refused before any data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.errors import ConfigError, suggest


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    """As in `metrics.jsonl` and `train.metric`."""

    label: str
    """For people."""

    lower: bool = False
    """Whether less is better."""

    unit: str = ""
    digits: int = 2

    def shown(self, value: float) -> str:
        return f"{value:.{self.digits}f}" + (f" {self.unit}" if self.unit else "")

    @property
    def axis(self) -> str:
        """The label with its unit, over a column or beside an axis."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def better(self, one: float, other: float) -> bool:
        return one < other if self.lower else one > other


METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        Metric(name="accuracy", label="accuracy", unit="%"),
        Metric(name="top5", label="top 5", unit="%"),
        Metric(name="f1", label="F1", unit="%"),
        Metric(name="precision", label="precision", unit="%"),
        Metric(name="recall", label="recall", unit="%"),
        Metric(name="mrr", label="MRR", unit="%"),
        Metric(name="exact", label="exact match", unit="%"),
        Metric(name="bleu", label="BLEU"),
        Metric(name="chrf", label="chrF"),
        Metric(name="cider", label="CIDEr-D", unit="of 10", digits=3),
        Metric(name="wer", label="WER", lower=True, unit="%"),
        Metric(name="cer", label="CER", lower=True, unit="%"),
        Metric(name="explained", label="explained", unit="%"),
        Metric(name="ppl", label="perplexity", lower=True),
        Metric(name="bits_per_byte", label="bits per byte", lower=True, digits=3),
        Metric(name="loss", label="loss", lower=True, digits=3),
    )
}
"""In the order of reports. `mrr` is the mean reciprocal rank, `explained` the share of the variance
of hidden rows that is rebuilt."""

_CLASSES = ("accuracy", "f1", "loss", "top5")
METRICS_OF: dict[str, tuple[str, ...]] = {
    "translate": ("bleu", "chrf", "loss", "ppl"),
    "complete": ("loss", "ppl", "bits_per_byte"),
    "fill": ("loss", "ppl", "accuracy"),
    "fill media": ("loss", "explained"),
    "classify": ("accuracy", "f1", "loss"),
    "tag": ("f1", "accuracy", "precision", "recall", "loss"),
    "embed": ("accuracy", "mrr", "loss"),
    "see": _CLASSES,
    "watch": _CLASSES,
    "identify": _CLASSES,
    "caption": ("exact", "cider", "bleu", "chrf", "loss", "ppl"),
    "transcribe": ("wer", "cer", "loss"),
}
"""What each task reports, its own first; the data may take some away (`top5` of three classes)."""


def metrics_of(task: str, *, media: bool = False) -> tuple[str, ...]:
    """`media`: the task is given pictures or recordings, which only `fill` may also do without."""
    return METRICS_OF[f"{task} media" if task == "fill" and media else task]


def check_metric(
    metric: str | None, task: str, names: Sequence[str], locate: Callable[[str], str] | None = None
) -> None:
    """Refuse what is no score of the task. `locate` begins the message: a file and its line."""
    if metric is not None and metric not in names:
        near, where = suggest(metric, names), locate("train.metric") if locate else ""
        raise ConfigError(f"{where}train.metric={metric!r} is no score of the task {task}.{near}")
