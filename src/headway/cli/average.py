"""`headway average`: one model from the last checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.data_arguments import RunName, say
from headway.errors import UserError
from headway.settings.folder import CONFIG, WEIGHTS, file_in, run_folder


def average(
    name: RunName,
    last: Annotated[
        int | None, typer.Option(min=1, help="How many of the newest checkpoints. [default: 5]")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Take the best checkpoint instead.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for the model; without it that of RUN is replaced."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store matrices in 8 bits: a quarter of the size.")
    ] = False,
) -> None:
    """Average the last checkpoints of a run into its model.safetensors, or into a new folder."""
    if best and last is not None:
        raise UserError("--best takes one checkpoint and --last the mean of several: give one.")
    run = run_folder(name)
    file_in(run, CONFIG)  # what is no run is said before torch is there
    from headway.training.average import average_run

    taken = average_run(run, None if best else last or 5, out or run, int8=int8, log=say)
    print(f"{(out or run) / WEIGHTS}: {taken}")
