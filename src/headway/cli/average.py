"""`headway average`: one model from the last checkpoints of a run."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.given import RunName
from headway.errors import FolderError, UserError
from headway.settings.folder import CONFIG, TOKENIZER, WEIGHTS, file_in, run_folder
from headway.storage import replace_file

if TYPE_CHECKING:
    from headway.training.checkpoint import Checkpoints


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
    config = file_in(run, CONFIG)
    if out is not None and out.resolve() != run.resolve() and (out / CONFIG).exists():
        raise FolderError(f"{out} already holds a model. Give --out another folder.")
    from headway.models.build import build_model
    from headway.models.compact import to_int8
    from headway.models.folder import load_weights, model_weights, save_weights
    from headway.nn.lora import merge_tensors
    from headway.settings.folder import load_run, load_settings
    from headway.training.average import average_of
    from headway.training.checkpoint import Checkpoints

    found = Checkpoints(run, keep=1, log=_say, owner=False)
    paths = _best(found, run) if best else _last(found, run, last or 5)
    model = build_model(load_settings(run))
    tensors = average_of(paths)
    lora = load_run(run).lora
    if lora.rank:
        tensors = merge_tensors(tensors, lora.alpha)
    load_weights(model, tensors, f"the checkpoints do not fit the model of {config}.")
    folder = out or run
    weights = model_weights(model)
    save_weights(folder, to_int8(weights) if int8 else weights)
    if folder.resolve() != run.resolve():
        # The settings last: a folder that has them is complete.
        for path in (run / TOKENIZER, config):
            if path.is_file():
                replace_file(folder / path.name, partial(shutil.copyfile, path))
    steps = ", ".join(path.name.removeprefix("step-") for path in paths)
    what = f"the best checkpoint, step {steps}" if best else f"the mean of steps {steps}"
    print(f"{folder / WEIGHTS}: {what}")


def _last(found: Checkpoints, run: Path, n: int) -> list[Path]:
    from headway.training.average import newest_whole

    paths = newest_whole(found, n)
    if len(paths) < n:
        have = f"{len(paths)} whole checkpoint{'s' * (len(paths) != 1)}"
        way_out = f"Use --last {len(paths)}." if paths else "Train it first with `headway train`."
        raise FolderError(f"{run} has {have}, not the {n} that --last asks for. {way_out}")
    return paths


def _best(found: Checkpoints, run: Path) -> list[Path]:
    path = found.best_path()
    if path is None:
        raise FolderError(f"{run} has no best checkpoint that is whole. Use --last.")
    return [path]


def _say(line: str) -> None:
    print(line, file=sys.stderr)
