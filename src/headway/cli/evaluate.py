"""`headway evaluate`: how good a model's translations are, with scores that can be compared."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.predict import decode_settings, run_folders
from headway.config.data import DataSettings
from headway.errors import ConfigError, UserError

if TYPE_CHECKING:
    from headway.decode.translator import Translator
    from headway.metrics.translation import Comparison, Interval, Score

Row = tuple[str, str, str]


def evaluate(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run folder or shipped model; several with commas."),
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="decode.* settings.")
    ] = None,
    source: Annotated[list[str] | None, typer.Option(help="Sources, a line each.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="References, a line each.")] = None,
    pairs: Annotated[
        list[str] | None, typer.Option(help="TSV or JSONL with both, instead.")
    ] = None,
    hypotheses: Annotated[
        str | None, typer.Option(metavar="FILE", help="Score these lines; translate nothing.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="RUN|FILE", help="Compare with another run, or with its output."),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1 is greedy.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Case does not count.")] = False,
    tokenize: Annotated[str, typer.Option(help="sacreBLEU's: 13a, intl, zh, char ...")] = "13a",
    tokenised: Annotated[
        str | None,
        typer.Option(
            metavar="en|de|fr", help="Also Moses-tokenised lower-cased BLEU, as in papers."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the translations go.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of the text files.")] = "utf-8",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto: a GPU if any.")] = "auto",
) -> None:
    """Translate a test set and print BLEU and chrF with their signatures, loss and perplexity."""
    if run is None and hypotheses is None:
        raise UserError("name a run to evaluate, or give its output with --hypotheses FILE.")
    overrides = _settings_only(words or [])
    files = HeldOut(
        DataSettings(
            source=tuple(source or ()),
            target=tuple(target or ()) if source else (),
            pairs=tuple(pairs or ()),
            encoding=encoding,
        ),
        references=tuple(target or ()),
    )
    job = Job(files, overrides, beam, device)
    first = job.outputs_of(run, hypotheses)
    if out is not None:
        _write(out, first.outputs)
    second = None
    if against is not None:
        is_file = Path(against).is_file()
        second = job.outputs_of(None if is_file else against, against if is_file else None)
    measures = _measure(first, second, files.targets, lowercase, tokenize, tokenised)
    if as_json:
        print(json.dumps(_facts(measures), indent=2, ensure_ascii=False))
    else:
        _show(measures)


@dataclass
class HeldOut:
    """What a test set consists of; the sources may be unknown where nothing is translated."""

    settings: DataSettings
    references: tuple[str, ...]
    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from headway.data.files import open_lines
        from headway.data.pairs import read_pairs

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
    """How outputs come about: read from a file, or made by a run."""

    files: HeldOut
    overrides: list[str]
    beam: int | None
    device: str

    def outputs_of(self, run: str | None, file: str | None) -> Outputs:
        translator = None if run is None else self._translator(run)
        loss = None if translator is None else self._loss(translator)
        if file is not None:
            from headway.data.files import open_lines

            lines = list(open_lines(file, self.files.settings.encoding))
            if len(lines) != len(self.files.targets):
                raise UserError(
                    f"{file} has {len(lines):,} lines, but the test set has "
                    f"{len(self.files.targets):,}."
                )
            return Outputs(lines, loss)
        assert translator is not None
        return self._translated(translator, loss)

    def _translator(self, run: str) -> Translator:
        if not self.files.sources:
            raise UserError("the sources are needed to translate them: --source FILE.")
        folders = run_folders(run, [])
        settings = decode_settings(folders[0], self.overrides, {"beam": self.beam})
        from headway.decode.translator import Translator
        from headway.train.ranks import pick_device

        return Translator.load(folders, settings, device=pick_device(self.device))

    def _loss(self, translator: Translator) -> float:
        """Nats a target token, the end counted, without smoothing."""
        pairs = zip(self.files.sources, self.files.targets, strict=True)
        scores = list(translator.score(pairs))
        return -sum(s.log_prob for s in scores) / sum(s.n_tokens for s in scores)

    def _translated(self, translator: Translator, loss: float | None) -> Outputs:
        from headway.train.progress import Progress

        outputs = []
        with Progress(unit="line") as progress:
            progress.start(len(self.files.sources))
            for number, found in enumerate(translator.translate(self.files.sources), 1):
                outputs.append(found.text)
                progress.update(number)
        summary = translator.summary
        print(f"headway evaluate: {summary.text()}", file=sys.stderr)
        return Outputs(outputs, loss, summary.tokens / max(summary.seconds, 1e-9))


@dataclass
class Measures:
    n_pairs: int
    first: Outputs
    scores: list[Score]
    interval: Interval
    comparison: Comparison | None


def _measure(
    first: Outputs,
    second: Outputs | None,
    targets: Sequence[str],
    lowercase: bool,
    tokenize: str,
    tokenised: str | None,
) -> Measures:
    from headway.metrics import translation as metrics

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
    return Measures(len(targets), first, scores, interval, comparison)


def _show(measures: Measures) -> None:
    from headway.cli.table import show_table

    first, rows = measures.first, [("pairs", f"{measures.n_pairs:,}", "")]
    if first.loss is not None:
        rows.append(("loss", f"{first.loss:.4f}", "nats a target token, without smoothing"))
        rows.append(("perplexity", f"{math.exp(first.loss):.3f}", ""))
    for score in measures.scores:
        rows.append((score.name, f"{score.value:.2f}", score.signature))
    low, high = measures.interval.low, measures.interval.high
    rows.insert(-len(measures.scores) + 1, ("  95 % interval", "", f"{low:.2f} to {high:.2f}"))
    if first.tokens_per_s is not None:
        rows.append(("speed", f"{first.tokens_per_s:,.0f}", "target tokens a second"))
    show_table(["score", "value", ""], rows, {"value"})
    if measures.comparison is not None:
        print(_verdict(measures.comparison))


def _verdict(found: Comparison) -> str:
    change = found.difference
    is_clear = found.p_value < 0.05
    which = "better" if change.value > 0 else "worse"
    said = f"it is {which} than the other" if is_clear else "no clear difference from the other"
    return (
        f"\n{change.value:+.2f} BLEU (95 % interval {change.low:+.2f} to {change.high:+.2f}), "
        f"p = {found.p_value:.3f}: {said}"
    )


def _facts(measures: Measures) -> dict[str, object]:
    first, comparison = measures.first, measures.comparison
    facts: dict[str, object] = {
        "pairs": measures.n_pairs,
        "loss": first.loss,
        "perplexity": None if first.loss is None else math.exp(first.loss),
        "scores": [asdict(score) for score in measures.scores],
        "bleu_interval": [measures.interval.low, measures.interval.high],
        "tokens_per_s": first.tokens_per_s,
    }
    return facts if comparison is None else {**facts, "comparison": asdict(comparison)}


def _settings_only(words: Sequence[str]) -> list[str]:
    for word in words:
        if "=" not in word:
            raise UserError(f"{word!r} is no key=value setting. Files go to --source and --target.")
        if not word.startswith("decode."):
            raise ConfigError(f"{word!r} has no effect here: only decode.* settings have.")
    return list(words)


def _write(out: str, lines: Sequence[str]) -> None:
    try:
        Path(out).write_text("".join(line + "\n" for line in lines), "utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}.") from error
