"""`headway average`: average the weights of the last checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.data_arguments import RunArgument, print_to_stderr
from headway.errors import UserError
from headway.settings.folder import CONFIG, WEIGHTS, file_in, run_folder


def average(
    name: RunArgument,
    last: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the newest checkpoints to average. [default: 5]"),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Use the best checkpoint instead.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for the model. Default: replace the weights of RUN."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store weight matrices in 8 bits, a quarter of the size.")
    ] = False,
) -> None:
    """Average the weights of the last checkpoints of a run.

    The result replaces model.safetensors in RUN, or is written to a new folder (--out).
    """
    if best and last is not None:
        raise UserError(
            "--best and --last cannot be combined: --best uses one checkpoint, and --last averages "
            "several. Give one of them."
        )
    run = run_folder(name)
    file_in(run, CONFIG)  # report a folder that is not a run before importing torch
    from headway.training.average import average_run

    taken = average_run(
        run, None if best else last or 5, out or run, int8=int8, log=print_to_stderr
    )
    print(f"wrote {(out or run) / WEIGHTS}: {taken}")
