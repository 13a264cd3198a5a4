"""`headway check TASK`: what is odd about the data, before any training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.train import task_and_settings
from headway.errors import ConfigError
from headway.settings.asked import Asked
from headway.settings.run import RunSettings
from headway.tasks.specs import SPECS

Files = Annotated[list[str], typer.Option(help="May be given several times; `-`: standard input.")]


def check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK|FILE... [KEY=VALUE]...",
            help="A task as of train, or files with --task; and settings.",
        ),
    ],
    text: Annotated[
        list[str],
        typer.Option(help="Plain text, JSONL, TSV or CSV with labels, CoNLL columns."),
    ] = [],  # noqa: B006
    valid_text: Files = [],  # noqa: B006
    media: Annotated[
        list[str],
        typer.Option(help="Pictures, videos, recordings: folders by class, or TSV/JSONL of paths."),
    ] = [],  # noqa: B006
    valid_media: Files = [],  # noqa: B006
    source: Files = [],  # noqa: B006 (typer's way to say: none)
    target: Files = [],  # noqa: B006
    pairs: Annotated[list[str], typer.Option(help="TSV or JSONL with both sides.")] = [],  # noqa: B006
    valid_source: Files = [],  # noqa: B006
    valid_target: Files = [],  # noqa: B006
    valid_pairs: Files = [],  # noqa: B006
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="Of the files that are named without one.")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="RUN", help="As of train.")] = None,
    teacher: Annotated[str | None, typer.Option(metavar="RUN", help="As of train.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of the text files; UTF-8.")] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="One example after each stage on its way to a batch.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check the data: counts, alignment, duplicates, lengths, characters. Exit code 2 if it cannot
    be trained on."""
    options = {
        "source": source, "target": target, "pairs": pairs, "valid_source": valid_source,
        "valid_target": valid_target, "valid_pairs": valid_pairs, "encoding": encoding,
        "text": text, "valid_text": valid_text, "media": media, "valid_media": valid_media,
    }  # fmt: skip
    files = Asked.from_flags({f"data.{name}": value for name, value in options.items() if value})
    from headway.training.arguments import report_of

    if task is not None:
        words, named = _named(task, words)
        files |= named
    settings = _settings(words, files, start, teacher)
    report = report_of(settings, steps=steps)
    if as_json:
        more = {"tables": report.tables} | ({"steps": report.steps} if steps else {})
        print(json.dumps(report.to_dict() | more, indent=2, ensure_ascii=False))
    else:
        print(report)
    return 2 if report.impossible else 0


def _named(task: str, words: list[str]) -> tuple[list[str], Asked]:
    """The task and the settings, and the files: as the task reads such."""
    from headway.data.memory import given

    paths = [word for word in words if "=" not in word or Path(word).exists()]
    if not paths:
        raise ConfigError(f"name files to check: headway check FILE --task {task}")
    found = given(task, paths).settings(Path())
    files = Asked({f"data.{key}": one for key, one in found.items()}, "headway check")
    return [task, *(word for word in words if word not in paths)], files


def _settings(
    words: list[str], given: Asked, start: str | None, teacher: str | None
) -> RunSettings:
    first = next((word for word in words if "=" not in word), "")
    if first not in SPECS and Path(first).is_file():
        raise ConfigError(
            f"{first} is a file. Say what it is for: headway check {first} --task {'|'.join(SPECS)}"
        )
    task, rest = task_and_settings(words)
    if task is None:
        raise ConfigError(f"name a task: {', '.join(SPECS)}.")
    from headway.training.arguments import settings_for

    return settings_for(
        task, given, rest, start=start, teacher=teacher, whence=f"headway check {task}"
    )
