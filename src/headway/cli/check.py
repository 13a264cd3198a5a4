"""`headway check TASK`: what is odd about the data, before any training."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.config.run import TASKS, RunSettings, load_run_settings
from headway.errors import ConfigError, suggest

if TYPE_CHECKING:
    from headway.data.report import CheckReport

Files = Annotated[list[str], typer.Option(help="May be given several times; `-`: standard input.")]


def check(
    words: Annotated[
        list[str], typer.Argument(help="The task (translate), then key=value settings.")
    ],
    source: Files = [],  # noqa: B006 (typer's way to say: none)
    target: Files = [],  # noqa: B006
    pairs: Annotated[list[str], typer.Option(help="TSV or JSONL with both sides.")] = [],  # noqa: B006
    valid_source: Files = [],  # noqa: B006
    valid_target: Files = [],  # noqa: B006
    valid_pairs: Files = [],  # noqa: B006
    encoding: Annotated[str | None, typer.Option(help="Of the text files; UTF-8.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check the data: counts, alignment, duplicates, lengths, characters. Exit code 2 if it cannot
    be trained on."""
    options = {
        "source": source, "target": target, "pairs": pairs, "valid_source": valid_source,
        "valid_target": valid_target, "valid_pairs": valid_pairs, "encoding": encoding,
    }  # fmt: skip
    settings = _settings(words, {f"data.{name}": value for name, value in options.items() if value})
    report = _report(settings)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 2 if report.impossible else 0


def _settings(words: list[str], given: dict[str, Any]) -> RunSettings:
    task, *rest = words
    if task not in TASKS:
        raise ConfigError(f"unknown task {task!r}.{suggest(task, TASKS)}")
    settings = load_run_settings(None, rest, {**given, "task": task})
    if not settings.data.source and not settings.data.pairs:
        raise ConfigError(
            "no data to check. Give --source FILE --target FILE, or --pairs FILE (TSV or JSONL)."
        )
    return settings


def _report(settings: RunSettings) -> CheckReport:
    """Everything that training would do with the data, in a folder that goes away."""
    from headway.data.store import ImpossibleData, prepare

    def note(text: str) -> None:
        print(text, file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="headway-check-") as folder:
        try:
            return prepare(settings, Path(folder), note).report
        except ImpossibleData as error:
            return error.report
