"""How good translations are: BLEU and chrF with their signatures, loss, two systems compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.data.files import open_lines
from headway.data.pairs import read_pairs
from headway.decode.writer import Writer
from headway.errors import UserError
from headway.metrics import translation as metrics
from headway.metrics.translation import Comparison, Interval, Score
from headway.progress import SILENT, Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.tasks.opened import Opened
from headway.tasks.scores import Baselines, Row, Scores
from headway.tasks.write_answers import writer_of


def evaluate_translations(
    opened: Opened | None,
    decode: DecodeSettings,
    data: DataSettings,
    options: Mapping[str, Any],
    progress: Progress = SILENT,
) -> Scores:
    """Options: `target`, the references; `hypotheses`, a file of outputs to score instead of those
    of the runs, which then need not be; `against` or `against_runs`, another system: a file of its
    outputs, or what was opened."""
    files = HeldOut(data, tuple(options.get("target") or ()))
    job = Job(files, decode, progress)
    first = job.outputs_of(opened, options.get("hypotheses"))
    if options.get("out"):
        _write(options["out"], first.outputs)
    second = None
    if options.get("against") or options.get("against_runs"):
        second = job.outputs_of(options.get("against_runs"), options.get("against"))
    with progress.stage("measuring how sure the scores are"):
        measures = _measure(first, second, files, options)
    rows = _rows(measures)
    if measures.comparison is not None:
        rows.append(("comparison", "", _verdict(measures.comparison)))
    return Scores(
        _values(measures),
        rows=rows,
        facts=_facts(measures),
        find_baselines=lambda: _trivial(measures),
        find_answers=lambda: (first.outputs, files.targets),
    )


@dataclass
class HeldOut:
    """What a test set consists of; the sources may be unknown where nothing is translated."""

    settings: DataSettings
    references: tuple[str, ...]
    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        data = self.settings
        if data.source or data.pairs:
            for one, other in read_pairs(data.source, data.target, data.pairs, data):
                self.sources.append(one)
                self.targets.append(other)
        elif self.references:
            for path in self.references:
                self.targets += open_lines(path, data.encoding)
        else:
            raise UserError("give a test set: --source FILE --target FILE, or --pairs FILE.")
        if not self.targets:
            raise UserError("the test set is empty.")


@dataclass
class Outputs:
    outputs: list[str]
    loss: float | None = None
    tokens_per_s: float | None = None


@dataclass
class Job:
    """How outputs come about: read from a file, or made by runs."""

    files: HeldOut
    decode: DecodeSettings
    progress: Progress = SILENT

    def outputs_of(self, opened: Opened | None, file: str | None) -> Outputs:
        writer = None if opened is None else self._writer(opened)
        loss = None
        if opened is not None and writer is not None and opened.engine is None:
            loss = self._loss(writer)  # an engine searches and no more
        if file is not None:
            lines = list(open_lines(file, self.files.settings.encoding))
            if len(lines) != len(self.files.targets):
                raise UserError(
                    f"{file} has {len(lines):,} lines, but the test set has "
                    f"{len(self.files.targets):,}."
                )
            return Outputs(lines, loss)
        assert writer is not None
        return self._translated(writer, loss)

    def _writer(self, opened: Opened) -> Writer:
        if not self.files.sources:
            raise UserError("the sources are needed to translate them: --source FILE.")
        return writer_of(opened, self.decode)

    def _loss(self, writer: Writer) -> float:
        """Nats a target token, the end counted, without smoothing."""
        pairs = zip(self.files.sources, self.files.targets, strict=True)
        scores = []
        with self.progress.stage("measuring the loss", len(self.files.targets), "pairs") as stage:
            for score in writer.score(pairs):
                scores.append(score)
                stage.update(len(scores))
        return -sum(s.log_prob for s in scores) / sum(s.n_tokens for s in scores)

    def _translated(self, writer: Writer, loss: float | None) -> Outputs:
        outputs = []
        with self.progress.stage("translating", len(self.files.sources), "lines") as stage:
            for found in writer.write(self.files.sources, on_progress=stage.update):
                outputs.append(found.text)
        self.progress.note(writer.summary.text())
        summary = writer.summary
        return Outputs(outputs, loss, summary.tokens / max(summary.seconds, 1e-9))


@dataclass
class Measures:
    n_pairs: int
    first: Outputs
    scores: list[Score]
    interval: Interval
    comparison: Comparison | None
    copied: Score | None
    """Of the sources as they are, in place of translations."""


def _measure(
    first: Outputs,
    second: Outputs | None,
    files: HeldOut,
    options: Mapping[str, Any],
) -> Measures:
    sources, targets = files.sources, files.targets
    lowercase, tokenised = bool(options.get("lowercase")), options.get("tokenised")
    tokenize = options.get("tokenize") or "13a"
    bleu_kind: dict[str, Any] = {"lowercase": lowercase, "tokenize": tokenize}
    scores = [
        metrics.bleu(first.outputs, targets, **bleu_kind),
        metrics.chrf(first.outputs, targets, lowercase=lowercase),
    ]
    if tokenised is not None:
        scores.append(metrics.tokenised_bleu(first.outputs, targets, tokenised))
    scores.append(metrics.exact_match(first.outputs, targets, lowercase=lowercase))
    comparison = None
    if second is not None:
        comparison = metrics.compare_bleu(first.outputs, second.outputs, targets, **bleu_kind)
    interval = metrics.bleu_interval(first.outputs, targets, **bleu_kind)
    copied = metrics.bleu(sources, targets, **bleu_kind) if sources else None
    return Measures(len(targets), first, scores, interval, comparison, copied)


def _rows(measures: Measures) -> list[Row]:
    first, rows = measures.first, [("pairs", f"{measures.n_pairs:,}", "")]
    if first.loss is not None:
        rows.append(("loss", f"{first.loss:.4f}", "nats a target token, without smoothing"))
        rows.append(("perplexity", f"{math.exp(first.loss):.3f}", ""))
    for score in measures.scores:
        rows.append((score.name, f"{score.value:.2f}", score.signature))
    low, high = measures.interval.low, measures.interval.high
    rows.insert(-len(measures.scores) + 1, ("  95 % interval", "", f"{low:.2f} to {high:.2f}"))
    if measures.copied is not None:
        rows.append(("baseline: the source itself", f"{measures.copied.value:.2f}", "BLEU"))
    if first.tokens_per_s is not None:
        rows.append(("speed", f"{first.tokens_per_s:,.0f}", "target tokens a second"))
    return rows


def _verdict(found: Comparison) -> str:
    change = found.difference
    is_clear = found.p_value < 0.05
    which = "better" if change.value > 0 else "worse"
    said = f"it is {which} than the other" if is_clear else "no clear difference from the other"
    return (
        f"{change.value:+.2f} BLEU (95 % interval {change.low:+.2f} to {change.high:+.2f}), "
        f"p = {found.p_value:.3f}: {said}"
    )


def _values(measures: Measures) -> dict[str, float]:
    loss = measures.first.loss
    found = {"bleu": measures.scores[0].value, "chrf": measures.scores[1].value}
    return found if loss is None else {**found, "loss": loss, "ppl": math.exp(loss)}


def _trivial(measures: Measures) -> Baselines:
    return {} if measures.copied is None else {"the source itself": {"bleu": measures.copied.value}}


def _facts(measures: Measures) -> dict[str, object]:
    first, comparison = measures.first, measures.comparison
    facts: dict[str, object] = {
        "pairs": measures.n_pairs,
        "loss": first.loss,
        "perplexity": None if first.loss is None else math.exp(first.loss),
        "scores": [asdict(score) for score in measures.scores],
        "bleu_interval": [measures.interval.low, measures.interval.high],
        "tokens_per_s": first.tokens_per_s,
        "copy_bleu": None if measures.copied is None else measures.copied.value,
    }
    return facts if comparison is None else {**facts, "comparison": asdict(comparison)}


def _write(out: str, lines: Sequence[str]) -> None:
    try:
        Path(out).write_text("".join(line + "\n" for line in lines), "utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}.") from error
