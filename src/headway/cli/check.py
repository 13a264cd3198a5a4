"""`headway check TASK FILES`: report problems in the data before training."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headway.cli import completion
from headway.cli.data_arguments import (
    EncodingOption,
    FromOption,
    JsonOption,
    TeacherOption,
    ValidOption,
)
from headway.cli.flags import OptionValues
from headway.cli.train import train_request
from headway.errors import ConfigError, columns_by_option, visible


def check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK|FILE|KEY=VALUE",
            help="A task of `headway train`, data files, and settings.",
            autocompletion=completion.to_train,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="The task, when the arguments are only FILES."),
    ] = None,
    valid: ValidOption = None,
    start: FromOption = None,
    teacher: TeacherOption = None,
    encoding: EncodingOption = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show one example after each stage of preprocessing.")
    ] = False,
    as_json: JsonOption = False,
    *,
    named: OptionValues,
) -> int:
    """Check data before training and report problems.

    The report covers counts, alignment, duplicates, lengths and characters. The exit code is 2 if
    no model can be trained on the data. Name files and columns as for `headway train`."""
    request = train_request(
        words, named, task=task, encoding=encoding, valid=valid, start=start, teacher=teacher,
        command="check",
    )  # fmt: skip
    if task is not None and request.data is None:
        raise ConfigError(f"--task {task} needs files to check: headway check FILE --task {task}")
    from headway.training.data_report import data_report

    found = request.resolve()
    with columns_by_option(request.data, request.overrides):
        report = data_report(found, steps=steps)
    if as_json:
        more = {"tables": report.tables} | ({"steps": report.steps} if steps else {})
        print(visible(json.dumps(report.to_dict() | more, indent=2, ensure_ascii=False)))
    else:
        print(visible(str(report)))
    return 2 if report.impossible else 0
