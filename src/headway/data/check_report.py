"""Report of the data check, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

FEW_HELD = 5
"""Minimum number of validation examples per label; labels with fewer are reported. With five
examples, each changes the score of the label by 20 percentage points."""


def counted(n: int, unit: str, which: str = "") -> str:
    """Return a count with its unit, such as `1 pair`, `2 pairs` or `1 validation pair`."""
    return f"{n:,} {which}{unit.removesuffix('s') if n == 1 else unit}"


Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class ReportedExample:
    """Example that is quoted in a finding."""

    place: str
    """File and line of the example."""

    source: str
    """Source of a pair, or the text of an example. For media it is the target, or the reason why
    the item cannot be read."""

    target: str
    """Target or label; empty if there is none."""


@dataclass(frozen=True)
class Finding:
    """Unusual property of the data, found by the data check."""

    level: Level
    """Severity: `error` if training is impossible, otherwise `warning` or `note`."""

    name: str
    """Machine-readable name, such as `empty` or `swapped`."""

    count: int
    """Number of examples or classes that the finding is about."""

    text: str
    """Message for the user."""

    examples: tuple[ReportedExample, ...] = ()
    """Some of the examples that the finding is about."""

    def shown(self) -> list[str]:
        """Return the quoted examples as text, one line each."""
        return [
            f"    {one.place}: {one.source!r}" + f" | {one.target!r}" * bool(one.target)
            for one in self.examples
        ]


@dataclass
class Report:
    """Result of a data check. `print(report)` shows it as `headway check` does.

    Example:
        >>> rows = [{"text": f"{n} cats", "label": "ab"[n % 2]} for n in range(40)]
        >>> report = headway.check("classify", rows)
        >>> report.columns, report.labels["a"]
        ({'text': 'text', 'label': 'label'}, (20, 0))
    """

    n_pairs: int = 0
    """Number of training examples."""

    n_valid: int | None = None
    """Number of examples in validation files; None without such files."""

    findings: list[Finding] = field(default_factory=list)
    """Unusual properties of the data. Each has a `level` (error, warning or note), `name`, `count`,
    `text` and `examples`."""

    over_long: dict[int, int] = field(default_factory=dict)
    """Number of training examples that are longer than each limit in tokens, by limit. For a pair,
    the longer side counts."""

    sizes: dict[str, float] = field(default_factory=dict)
    """Statistics of the data, such as numbers of characters and tokens, and vocabulary sizes."""

    unit: str = "pairs"
    """Unit in which examples are counted, such as `pairs` or `images`."""

    labels: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Numbers of training and of validation examples, by label or tag."""

    fingerprint: str = ""
    """Fingerprint of the data that training would use; empty if training is impossible."""

    columns: dict[str, str] = field(default_factory=dict)
    """Role of each column, by column name. The role is empty for columns that are not read."""

    tables: list[str] = field(default_factory=list)
    """Lines that describe the files and their columns."""

    steps: list[str] = field(default_factory=list)
    """Lines that show one example after each stage of preparation; empty unless requested."""

    @property
    def ok(self) -> bool:
        """Whether training on the data is possible. There may still be warnings."""
        return not self.impossible

    @property
    def impossible(self) -> bool:
        """Whether an error in the data makes training impossible."""
        return any(finding.level == "error" for finding in self.findings)

    def counts(self) -> list[str]:
        """Return lines of text that describe the amount of data."""
        valid = (
            "" if self.n_valid is None else f", {counted(self.n_valid, self.unit, 'validation ')}"
        )
        shown = [counted(self.n_pairs, self.unit) + valid]
        if self.sizes.get("source_tokens"):
            shown.append(_tokens(self.sizes, self.n_pairs))
        elif self.sizes.get("tokens"):
            shown.append(_text_tokens(self.sizes))
        if self.labels:
            what = "tags" if self.unit == "sentences" else "labels"
            shown.append(_labels(self.labels, what))
        if self.over_long:
            limits = ", ".join(f"{n:,} over {limit:,}" for limit, n in self.over_long.items())
            side = " of the longer side" if self.unit == "pairs" else ""
            shown.append(f"{self.unit} by length in tokens{side}: {limits}")
        return shown

    def lines(self, *levels: Level) -> list[str]:
        """Return the report as lines of text.

        Args:
            *levels: Levels of the findings to show: error, warning or note. Default: all.
        """
        shown = self.counts()
        for level in levels or ("error", "warning", "note"):
            for finding in self.findings:
                if finding.level == level:
                    shown += [f"{level}: {finding.text}", *finding.shown()]
        if not self.findings:
            shown.append("no problems found")
        return shown

    def __str__(self) -> str:
        return "\n".join([*self.tables, *self.lines(), *self.steps])

    def _repr_html_(self) -> str:
        """Return the report as HTML for notebooks."""
        taken = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(what) or 'not read'}</td></tr>"
            for name, what in self.columns.items()
        )
        table = f"<table><tr><th>column</th><th>used as</th></tr>{taken}</table>" if taken else ""
        return f"{table}<pre>{escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `headway check --json` prints."""
        found = asdict(self) | {"impossible": self.impossible}
        beside = ("fingerprint", "columns", "tables", "steps")
        return {key: one for key, one in found.items() if key not in beside}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        findings = [
            Finding(**{**one, "examples": tuple(ReportedExample(**e) for e in one["examples"])})
            for one in values["findings"]
        ]
        limits = {int(limit): n for limit, n in values["over_long"].items()}
        labels = {name: (train, valid) for name, (train, valid) in values.get("labels", {}).items()}
        counts = values["n_pairs"], values["n_valid"]
        return cls(*counts, findings, limits, values["sizes"], values.get("unit", "pairs"), labels)


def _tokens(sizes: Mapping[str, float], n_pairs: int) -> str:
    sides = [
        f"{side} {sizes[f'{side}_tokens'] / max(n_pairs, 1):.1f} tokens per line, "
        f"{sizes[f'{side}_characters'] / max(sizes[f'{side}_tokens'], 1):.1f} characters per "
        f"token, vocabulary {sizes[f'{side}_vocabulary']:,.0f}"
        for side in ("source", "target")
    ]
    return "; ".join(sides)


def _text_tokens(sizes: Mapping[str, float]) -> str:
    return (
        f"{sizes['tokens']:,.0f} training tokens, {sizes['valid_tokens']:,.0f} for validation, "
        f"{sizes['characters'] / max(sizes['tokens'], 1):.1f} characters per token, "
        f"vocabulary {sizes['vocabulary']:,.0f}"
    )


def _labels(labels: Mapping[str, tuple[int, int]], what: str, most: int = 20) -> str:
    total = max(sum(n for n, _ in labels.values()), 1)
    shown = [f"{name} {n:,} ({n / total:.1%})" for name, (n, _) in list(labels.items())[:most]]
    what = what.removesuffix("s") if len(labels) == 1 else what
    return f"{len(labels)} {what}: " + ", ".join(shown) + (", …" if len(labels) > most else "")


def listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")


def rare_label_note(counts: Mapping[str, int], what: str = "validation examples") -> str:
    """Return a sentence that lists the labels with too few examples for scores of their own;
    empty if there are none."""
    few = [name for name in sorted_labels(counts) if counts[name] < FEW_HELD]
    if not few:
        return ""
    shown = ", ".join(f"{name!r} ({counts[name]})" for name in few[:10]) + ", …" * (len(few) > 10)
    return f"{len(few)} of {len(counts)} labels have fewer than {FEW_HELD} {what}: {shown}."


def sorted_labels(names: Iterable[str]) -> list[str]:
    """Return labels sorted by name, or by value if all of them are numbers."""
    names = list(names)
    try:
        return sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(names)
