"""Metrics of the server in the Prometheus text format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

MetricLabels = tuple[tuple[str, str], ...]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of histogram buckets for durations in seconds: the defaults of Prometheus and three
longer ones."""

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds of histogram buckets for batch sizes: powers of two."""


class Metrics:
    """Counters, histograms and gauges by name. Gauges are evaluated when `text` is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._help: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[MetricLabels, float]] = {}
        self._buckets: dict[str, Sequence[float]] = {}
        self._hists: dict[str, dict[MetricLabels, list[float]]] = {}
        self._gauges: dict[str, list[tuple[MetricLabels, Callable[[], float]]]] = {}

    def counter(self, name: str, help: str, **known: str) -> Callable[..., None]:
        """Add a counter and return a function that increments it. `known`: label values whose
        counts start at 0, so that they are reported before the first event."""
        self._help[name] = (help, "counter")
        values = self._counts.setdefault(name, {})
        if known:
            values.setdefault(tuple(sorted(known.items())), 0)

        def add(value: float = 1, **labels: str) -> None:
            key = tuple(sorted(labels.items()))
            with self._lock:
                values[key] = values.get(key, 0) + value

        return add

    def histogram(self, name: str, help: str, buckets: Sequence[float]) -> Callable[..., None]:
        self._help[name] = (help, "histogram")
        self._buckets[name] = buckets
        values = self._hists.setdefault(name, {})

        def observe(value: float, times: int = 1, **labels: str) -> None:
            key = tuple(sorted(labels.items()))
            with self._lock:
                row = values.setdefault(key, [0.0] * (len(buckets) + 2))
                for place, bound in enumerate(buckets):
                    row[place] += times * (value <= bound)
                row[-2] += times
                row[-1] += times * value

        return observe

    def gauge(self, name: str, help: str, ask: Callable[[], float], **labels: str) -> None:
        self._help[name] = (help, "gauge")
        self._gauges.setdefault(name, []).append((tuple(sorted(labels.items())), ask))

    def text(self) -> str:
        lines = []
        with self._lock:
            for name, (help, kind) in self._help.items():
                lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
                for labels, value in self._counts.get(name, {}).items():
                    lines.append(f"{name}{_shown(labels)} {_number(value)}")
                for labels, row in self._hists.get(name, {}).items():
                    for bound, value in zip(self._buckets[name], row, strict=False):
                        more = (*labels, ("le", _number(bound)))
                        lines.append(f"{name}_bucket{_shown(more)} {_number(value)}")
                    lines.append(f"{name}_bucket{_shown((*labels, ('le', '+Inf')))} {int(row[-2])}")
                    lines.append(f"{name}_sum{_shown(labels)} {_number(row[-1])}")
                    lines.append(f"{name}_count{_shown(labels)} {int(row[-2])}")
                for labels, ask in self._gauges.get(name, []):
                    lines.append(f"{name}{_shown(labels)} {_number(ask())}")
        return "\n".join(lines) + "\n"


def _shown(labels: MetricLabels | Mapping[str, str]) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in dict(labels).items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"
